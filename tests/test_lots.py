"""Draws and lots: what is drawn is charged, and nothing of a lot shows."""

import tracemalloc

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

import sordino as sd
from sordino.rng.streams import Rng
from tests.problems import Rows, cross_entropy, dpsgd, linear, network, parameters, private

STEP = sd.events.Poisson(0.2, sd.events.Gaussian(1.0))


def charged(steps: int) -> sd.events.Event:
    return sd.events.canonical(sd.events.Repeat(STEP, steps))


def test_a_loop_left_early_is_charged_for_the_lots_it_drew():
    p = private()
    for lot in p.draws(linear(), sd.Poisson(0.2), steps=10):
        p.backward(lot)
        if p.steps == 3:
            break
    assert p.event == charged(3)


def test_a_lot_drawn_and_not_used_is_charged():
    p = private()
    for _ in p.draws(linear(), sd.Poisson(0.2), steps=4):
        pass
    assert p.event == charged(4)


def test_nothing_is_charged_before_the_first_lot_is_drawn():
    p = private()
    p.draws(linear(), sd.Poisson(0.2), steps=4)
    assert p.event == sd.events.Together()


def test_a_loss_that_raises_half_way_is_charged_and_the_next_lot_is_clean():
    fail = False
    calls = 0

    def loss(model, x, y):
        nonlocal calls
        calls += 1
        if fail and calls % 3 == 0:
            raise RuntimeError("no memory")
        return cross_entropy(model, x, y)

    def run(breaks: bool):
        nonlocal fail, calls
        model = network()
        p = sd.Private(model, loss, dpsgd(multiplier=0.0), seed=0, backend=sd.per_sample.Loop())
        lots = p.draws(linear(), sd.Poisson(0.3), steps=2, physical_batch=2)
        first = next(lots)
        if breaks:
            fail, calls = True, 0
            with pytest.raises(RuntimeError):
                p.backward(first)
            fail = False
        p.backward(next(lots))
        return [q.grad.clone() for q in model.parameters()], p

    interrupted, charged_twice = run(breaks=True)
    clean, _ = run(breaks=False)
    assert all(torch.equal(a, b) for a, b in zip(interrupted, clean, strict=True))
    assert charged_twice.steps == 2


def test_two_backwards_on_one_lot_are_two_releases_amplified_once():
    p = private()
    for lot in p.draws(linear(), sd.Poisson(0.2), steps=1):
        p.backward(lot)
        p.backward(lot)
    assert p.event == sd.events.Poisson(0.2, sd.events.Repeat(sd.events.Gaussian(1.0), 2))


def test_an_old_lot_is_refused():
    p = private()
    lots = p.draws(linear(), sd.Poisson(0.2), steps=2)
    first = next(lots)
    next(lots)
    with pytest.raises(sd.Refusal, match="not the one drawn last"):
        p.backward(first)


def test_a_lot_tells_neither_its_size_nor_its_records():
    p = private()
    lot = next(p.draws(linear(), sd.Poisson(0.2), steps=1))
    assert repr(lot) == "Lot(step=0, size=Sealed(…), expected_batch=12.8)"
    with pytest.raises(TypeError):
        len(lot)
    with pytest.raises(TypeError):
        iter(lot)


def test_losses_are_sealed():
    p = private()
    lot = next(p.draws(linear(), sd.Poisson(0.5), steps=1))
    losses = p.backward(lot)
    assert repr(losses) == "Sealed(…)"
    with pytest.raises(TypeError, match="private"):
        float(losses)


@pytest.mark.parametrize("sampler", [sd.Poisson(1.0), sd.Poisson(0.5), sd.Full(), sd.FixedSize(1), sd.Shuffle(1)])
def test_a_dataset_of_one_record(sampler):
    p = private()
    for lot in p.draws(linear(1), sampler, steps=5):
        p.backward(lot)
    assert p.steps == 5


def test_a_rate_of_one_takes_everybody():
    p = private()
    lot = next(p.draws(linear(), sd.Poisson(1.0), steps=1))
    assert lot.size.expose("to test it") == 64


def test_a_draw_from_ten_million_costs_as_much_as_its_lot(monkeypatch):
    """O(expected batch): the random words and the memory of a draw of 250 do not grow with the ten million."""
    asked = []
    words = Rng.words
    monkeypatch.setattr(Rng, "words", lambda self, n: asked.append(n) or words(self, n))
    n, steps = 10**7, 50
    draws = sd.Poisson(250 / n).draws(n, Rng.from_seed(0), 0)
    tracemalloc.start()
    taken = sum(len(next(draws).indices) for _ in range(steps))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert abs(taken - 250 * steps) < 6 * (250 * steps) ** 0.5
    assert sum(asked) < 2 * 250 * steps
    assert peak < 1 << 20  # a flag for each record would be ten times that


def test_tensor_datasets_lists_and_workers_load_the_same_lots():
    def run(dataset, **options):
        model = network()
        p = private(model)
        for lot in p.draws(dataset, sd.Poisson(0.3), steps=4, physical_batch=4, **options):
            p.backward(lot)
            torch.optim.SGD(model.parameters(), lr=0.1).step()
        return parameters(model)

    by_index = run(linear())
    assert torch.equal(by_index, run(Rows()))
    assert torch.equal(by_index, run(Rows(), workers=2))
    assert torch.equal(by_index, run(Subset(linear(), range(64))))
    assert torch.equal(by_index, run(Subset(Rows(), range(64))))
    assert torch.equal(by_index, run([linear()[i] for i in range(64)]))


def test_workers_skip_what_an_abandoned_lot_left_behind():
    def run(workers: int):
        model = network()
        p = private(model)
        for lot in p.draws(Rows(), sd.Poisson(0.3), steps=4, physical_batch=4, workers=workers):
            if p.steps % 2 == 0:
                p.backward(lot)
                torch.optim.SGD(model.parameters(), lr=0.1).step()
        return parameters(model)

    assert torch.equal(run(0), run(1))


def test_a_collate_function_is_used():
    def collate(rows):
        return torch.stack([row[0] for row in rows]) * 2, torch.stack([row[1] for row in rows])

    doubled = TensorDataset(linear().tensors[0] * 2, linear().tensors[1])
    grads = []
    for dataset, options in ((Rows(), {"collate": collate}), (doubled, {})):
        model = network()
        p = private(model)
        p.backward(next(p.draws(dataset, sd.Poisson(0.3), steps=1, **options)))
        grads.append(torch.cat([q.grad.flatten() for q in model.parameters()]))
    assert torch.equal(*grads)


def test_dictionaries_go_to_the_loss_as_they_are():
    class Texts(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            return {"x": torch.full((6,), float(i)), "y": torch.tensor(i % 2)}

    p = sd.Private(network(), lambda m, batch: cross_entropy(m, batch["x"], batch["y"]), dpsgd(), seed=0)
    for lot in p.draws(Texts(), sd.Poisson(0.5), steps=2):
        p.backward(lot)
    assert isinstance(p.claim(1e-5), sd.Guarantee)


def test_the_expected_batch_keeps_the_size_of_the_dataset_private():
    p, q = private(), private()
    list(p.draws(linear(), sd.Poisson(0.2), steps=1))
    list(q.draws(linear(), sd.Poisson(0.2), steps=1, expected_batch=13))
    assert "dataset size" in p.claim(1e-5).not_covered
    assert "dataset size" not in q.claim(1e-5).not_covered


def test_without_a_seed_no_two_runs_are_alike():
    grads = []
    for _ in range(2):
        model = network()
        p = private(model, seed=None)
        p.backward(next(p.draws(linear(), sd.Full(), steps=1)))
        grads.append(torch.cat([q.grad.flatten() for q in model.parameters()]))
    assert not torch.equal(*grads)


def test_a_seed_is_named_as_not_covered():
    p, q = private(seed=3), private(seed=None)
    for run in (p, q):
        list(run.draws(linear(), sd.Poisson(0.2), steps=1))
    assert "seed" in p.claim(1e-5).not_covered
    assert "seed" not in q.claim(1e-5).not_covered


def test_dropout_follows_our_stream_and_leaves_torchs_alone():
    def run():
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
        p = private(model)
        torch.manual_seed(4)
        for lot in p.draws(linear(), sd.Poisson(0.5), steps=2):
            p.backward(lot)
        return torch.cat([q.grad.flatten() for q in model.parameters()]), torch.rand(1)

    torch.manual_seed(4)
    untouched = torch.rand(1)
    (one, after), (other, _) = run(), run()
    assert torch.equal(one, other)
    assert torch.equal(after, untouched)


def test_two_calls_of_draws_are_two_passes_of_a_shuffle():
    p = private()
    for _ in range(2):
        for _ in p.draws(linear(), sd.Shuffle(16), steps=2):
            pass
    one = sd.events.Shuffle(sd.events.Repeat(sd.events.Gaussian(1.0), 2))
    assert p.event == sd.events.Repeat(one, 2)


@pytest.mark.parametrize("sampler", [sd.Shuffle(16), sd.BallsInBins(4)], ids=str)
@pytest.mark.parametrize("order", [[0, 1] * 20, [0] * 3 + [1] * 20 + [0] * 17, [0, 0, 0, 1] * 6 + [1] * 14 + [0, 0]])
def test_draws_used_in_turn_are_charged_as_one_after_the_other(sampler, order):
    """Five passes each of two iterators, whatever the order: ten passes."""
    p = private()
    lots = [p.draws(linear(), sampler, steps=20) for _ in range(2)]
    for which in order:
        p.backward(next(lots[which]))
    one = sd.dry_run(dpsgd(), sampler, 64, 4)
    assert p.event == sd.events.Repeat(one, 10)


def test_draws_used_in_turn_draw_what_each_would_have_drawn():
    def indices(order):
        p = private(seed=4)
        lots = [p.draws(linear(), sd.Shuffle(16), steps=4) for _ in range(2)]
        found = ([], [])
        for lot in lots:  # begun in this order
            found[lots.index(lot)].append(next(lot) and p._last_records.tolist())
        for which in order:
            next(lots[which])
            found[which].append(p._last_records.tolist())
        return found

    assert indices([0, 1, 0, 1, 0, 1]) == indices([0, 0, 0, 1, 1, 1])
    for passed in indices([0, 1, 0, 1, 0, 1]):
        assert sorted(row for rows in passed for row in rows) == list(range(64))


def test_of_draws_used_in_turn_a_state_goes_on_with_the_last_and_the_other_begins_anew():
    p, q = private(), private()
    lots = [p.draws(linear(), sd.Shuffle(16), steps=4), p.draws(linear(), sd.Shuffle(8), steps=8)]
    for which in (0, 1, 0):
        next(lots[which])
    secret = p.secret_state()
    q.load_state_dict(p.state_dict(), replay=sd.Replay("a test", secret=secret))
    assert q.state_dict()["position"] == 2
    list(q.draws(linear(), sd.Shuffle(16), steps=2))
    list(q.draws(linear(), sd.Shuffle(8), steps=7))
    covers = [entry[2].rsplit("/", 2)[1] for entry in q.state_dict()["ledger"]["entries"]]
    assert covers == ["0", "1", "0", "2"]


def test_numpy_numbers_are_numbers():
    assert sd.Poisson(np.float32(0.5)).rate == 0.5
    assert sd.Flat(np.float64(2.0)).bound == 2.0
    assert sd.FixedSize(np.int64(4)).batch_size == 4

"""Sorted lots: each way to fill one against its definition; passes cover everyone once; no ε; runs resume."""

import json
import math

import numpy as np
import pytest
import torch

import sordino as sd
from sordino.events import Poisson
from sordino.per_sample import Loop
from sordino.rng.streams import Rng
from sordino.sampling import Draw, Records
from sordino.sampling.sampler import RANKED_BEFORE_DRAWING, draw_lots
from sordino.sampling.sorted import Longest, LongestOfEachClass, Neighbours, UpperQuantile
from tests.problems import cross_entropy, linear, network, private

WAYS = {
    "top_k": lambda **more: sd.Sorted.top_k(7, **more),
    "quantile": lambda **more: sd.Sorted.quantile(7, **more),
    "class_diverse": lambda **more: sd.Sorted.class_diverse(7, **more),
    "similar_length": lambda **more: sd.Sorted.similar_length(7, **more),
}
CHEAPER = [{}, {"refresh": 3}, {"pool": 2}, {"pool": 4, "refresh": 2}]


class Asked(Records):
    """Records with given lengths and classes, which remember what was asked."""

    def __init__(self, lengths, classes=None):
        values = np.asarray(lengths, dtype=np.float32)
        kinds = np.zeros(len(values), dtype=np.int64) if classes is None else np.asarray(classes)
        super().__init__(len(values), self.answer, lambda rows, label: kinds[rows])
        self.values, self.asked = values, []

    def answer(self, rows):
        self.asked.append(len(rows))
        return self.values[rows]


def lots(sampler, records, count, seed=0):
    """The first lots of a sampler."""
    draws = draw_lots(sampler, records, Rng.from_seed(seed), 0)
    return [next(draws).indices for _ in range(count)]


def test_the_lots_are_those_of_sorting_everyone_left_by_the_gradients_of_a_plain_loop_at_the_current_model():
    model, dataset = network(), linear(40)
    run = private(model, seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    left, used = set(range(40)), []
    for lot in run.draws(dataset, sd.Sorted.top_k(9), steps=5):
        lengths = Loop().per_sample(model, cross_entropy, dataset.tensors).norms().total()
        longest = sorted(left, key=lambda i: -float(lengths[i]))[:9]
        there = torch.cat([batch[0] for batch in lot.loads()])
        assert {tuple(row) for row in there.tolist()} == {tuple(dataset.tensors[0][i].tolist()) for i in longest}
        left -= set(longest)
        used += longest
        run.backward(lot)
        optimizer.step()
    assert sorted(used) == list(range(40))


@pytest.mark.parametrize("cheaper", CHEAPER, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_every_record_is_in_one_lot_of_a_pass(way, cheaper):
    lengths = np.random.default_rng(0).exponential(size=50)
    draws = draw_lots(WAYS[way](**cheaper), Asked(lengths, np.arange(50) % 3), Rng.from_seed(1), 0)
    for _ in range(3):
        seen = []
        while len(seen) < 50:
            seen += next(draws).indices.tolist()
        assert sorted(seen) == list(range(50))


def test_the_longest_are_the_longest():
    lengths = np.random.default_rng(1).permutation(30).astype(np.float32)
    assert sorted(lengths[Longest()(lengths, None, 8, Rng.from_seed(0))]) == list(range(22, 30))
    assert len(Longest()(lengths[:5], None, 8, Rng.from_seed(0))) == 5


def test_quantilesort_samples_the_upper_quarter_when_it_is_larger_than_the_lot():
    lengths = np.arange(400, dtype=np.float32)
    counts = np.zeros(400)
    for k in range(400):
        counts[UpperQuantile(0.75)(lengths, None, 40, Rng.from_seed(k))] += 1
    upper = lengths >= np.quantile(lengths, 0.75)  # 100 records, each with probability 0.4
    assert not counts[~upper].any()
    # 100 records, 400 draws: the standard error of the mean rate is 0.0024
    assert counts[upper].mean() / 400 == pytest.approx(0.4, abs=0.012)
    assert np.abs(counts[upper] / 400 - 0.4).max() < 0.12  # five standard errors of one record's


def test_quantilesort_takes_the_whole_upper_quarter_and_fills_up_when_it_is_smaller_than_the_lot():
    lengths = np.arange(400, dtype=np.float32)
    upper = lengths >= np.quantile(lengths, 0.75)
    sizes = []
    for k in range(200):
        found = UpperQuantile(0.75)(lengths, None, 160, Rng.from_seed(k))
        assert set(np.flatnonzero(upper)) <= set(found)
        sizes.append(len(found))
    assert np.mean(sizes) == pytest.approx(160, abs=2.5)  # standard error 0.49: (160 − 100)/(400 − 100) = 0.2 of 300


def test_no_class_has_more_than_its_share_while_others_have_records():
    rng = np.random.default_rng(2)
    classes = np.array([0] * 60 + [1] * 30 + [2] * 4)
    lengths = (rng.exponential(size=94) + 10 * (classes == 0)).astype(np.float32)  # by length alone it were all class 0
    found = LongestOfEachClass(None)(lengths, lambda: classes, 30, Rng.from_seed(0))
    assert np.bincount(classes[found]).tolist() == [13, 13, 4]
    for kind in (0, 1):
        mine = np.flatnonzero(classes == kind)
        assert set(found[classes[found] == kind]) == set(mine[np.argsort(-lengths[mine])[:13]])


def test_similar_lengths_are_neighbours_in_the_sorted_order_and_not_always_the_longest():
    lengths = np.random.default_rng(3).permutation(50).astype(np.float32)
    starts = set()
    for k in range(40):
        values = sorted(lengths[Neighbours()(lengths, None, 10, Rng.from_seed(k))])
        assert values == list(range(int(values[0]), int(values[0]) + 10))
        starts.add(values[0])
    assert len(starts) > 10


def test_refresh_asks_for_lengths_only_every_so_many_lots_and_pool_only_for_so_many_records():
    each, rarely, few = Asked(np.arange(50.0)), Asked(np.arange(50.0)), Asked(np.arange(50.0))
    lots(sd.Sorted.top_k(5), each, 4)
    lots(sd.Sorted.top_k(5, refresh=3), rarely, 7)
    lots(sd.Sorted.top_k(5, pool=2), few, 4)
    assert each.asked == [50, 45, 40, 35]
    assert rarely.asked == [50, 35, 20]
    assert few.asked == [10, 10, 10, 10]


def test_with_refresh_the_lots_in_between_are_the_next_longest_by_the_old_lengths():
    records = Asked(np.arange(50.0))
    draws = draw_lots(sd.Sorted.top_k(5, refresh=2), records, Rng.from_seed(0), 0)
    next(draws)
    records.values = records.values[::-1].copy()
    assert next(draws).indices.tolist() == [40, 41, 42, 43, 44]
    assert next(draws).indices.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("way", WAYS)
def test_there_is_no_epsilon_however_much_noise_is_added(way):
    run = private(query=sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1e6)))
    for lot in run.draws(linear(), WAYS[way](), steps=2):
        run.backward(lot)
    assert run.claim(1e-5) == sd.NoGuarantee(RANKED_BEFORE_DRAWING)


class SaysItIsPoisson:
    """Takes the longest and says that it flipped coins."""

    size_is_public = False

    def expected_size(self, n):
        return 4.0

    def draws(self, n, rng, start):
        return self.draws_from(Asked(np.zeros(n)), rng, start, None)

    def draws_from(self, records, rng, start, memory):
        while True:
            longest = np.argsort(-records.lengths(np.arange(len(records))))[:4]
            yield Draw(longest, lambda event: Poisson(0.01, event))


def test_a_sampler_that_looked_has_no_guarantee_whatever_it_says():
    run = private()
    for lot in run.draws(linear(), SaysItIsPoisson(), steps=2):
        run.backward(lot)
    assert run.claim(1e-5) == sd.NoGuarantee(RANKED_BEFORE_DRAWING)
    assert sd.dry_run(sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), SaysItIsPoisson(), 64, 2) == run.event


def test_lots_that_depend_on_the_model_cannot_be_loaded_ahead():
    with pytest.raises(sd.Refusal, match="cannot be loaded ahead"):
        private().draws(linear(), sd.Sorted.top_k(5), steps=2, workers=1)


def test_class_diverse_needs_a_class_per_record():
    dataset = torch.utils.data.TensorDataset(torch.randn(20, 6), torch.randn(20, 2))
    run = private(query=sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))
    run._loss_fn = lambda model, x, y: (model(x) - y).square().sum(1)
    with pytest.raises(sd.Refusal, match="Classes are whole numbers"):
        next(run.draws(dataset, sd.Sorted.class_diverse(5), steps=1))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sd.Sorted.top_k(0), "batch_size=0"),
        (lambda: sd.Sorted.top_k(5, refresh=0), "refresh=0"),
        (lambda: sd.Sorted.top_k(5, refresh=3, pool=2), "pool=2: must hold the 3 lots"),
        (lambda: sd.Sorted.quantile(5, 1.5), "quantile=1.5"),
    ],
)
def test_what_cannot_be_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize("stop", [1, 4, 7, 11])
@pytest.mark.parametrize("cheaper", CHEAPER, ids=str)
def test_a_sorted_run_resumed_anywhere_draws_what_it_would_have_drawn(cheaper, stop):
    def run(model, begun, optimizer, steps):
        for lot in begun.draws(linear(), sd.Sorted.quantile(9, **cheaper), steps=steps):
            begun.backward(lot)
            optimizer.step()
        return begun

    def fresh(seed):
        model = network()
        return model, private(model, seed=seed), torch.optim.SGD(model.parameters(), lr=0.5)

    whole = fresh(4)
    run(*whole, 12)
    first = fresh(4)
    run(*first, stop)
    second = fresh(99)
    second[0].load_state_dict(first[0].state_dict())
    replay = sd.Replay("a test", entered=True, secret=first[1].secret_state())
    second[1].load_state_dict(json.loads(json.dumps(first[1].state_dict())), replay=replay)
    run(*second, 12 - stop)
    assert all(torch.equal(a, b) for a, b in zip(whole[0].parameters(), second[0].parameters(), strict=True))
    whole[1].secret_state()
    states = [whole[1].state_dict(), second[1].state_dict()]
    for state in states:
        # How many lots were tested: a loop that ends is tested at its end, and here two of them end.
        del state["tested"], state["ledger"]["counts"]
    assert states[0] == states[1]


@pytest.mark.parametrize(
    "sampler", [sd.Sorted.top_k(5), sd.Threshold(1.0, 0.1, 0.2, refresh=2)], ids=["sorted", "threshold"]
)
def test_a_draw_that_depends_on_those_before_it_is_refused_without_them(sampler):
    with pytest.raises(sd.Refusal, match="Resume from a checkpoint"):
        next(draw_lots(sampler, Asked(np.ones(20)), Rng.from_seed(0), 3))


def test_a_sampler_cannot_forget_to_charge_what_it_released():
    class Forgetful(SaysItIsPoisson):
        def draws_from(self, records, rng, start, memory):
            while True:
                records.measure()
                records.release(sd.PrivateQuantile(0.5, 1.0, epsilon=0.3), rng)
                yield Draw(np.arange(3), lambda event: Poisson(0.01, event))

    event = sd.dry_run(sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), Forgetful(), 64, 1)
    assert sd.events.Exponential(0.3) in event.events


def test_without_bound_and_noise_it_is_plain_sgd_on_the_sorted_lots():
    model, plain, dataset = network(), network(), linear(30)
    run = private(model, query=sd.NoisySum(sd.Flat(math.inf), sd.Gaussian(0.0)))
    ours = torch.optim.SGD(model.parameters(), lr=0.3)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.3)
    for lot in run.draws(dataset, sd.Sorted.top_k(10), steps=3):
        x, y = next(iter(lot.loads()))
        theirs.zero_grad()
        cross_entropy(plain, x, y).mean().backward()
        run.backward(lot)
        ours.step()
        theirs.step()
        for a, b in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(a, b)

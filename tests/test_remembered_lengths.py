"""Sorted lots from remembered lengths against the exact order: what is measured, how stale it gets, how runs resume."""

import json

import numpy as np
import pytest
import torch

import sordino as sd
from sordino.lots.record_lengths import squared_lengths_by_stretch
from sordino.per_sample import Captured, Loop
from sordino.rng.streams import Rng
from sordino.sampling import Records
from sordino.sampling.remembered_lengths import RememberedLengths, lengths_of, measure_everyone, measure_likeliest
from sordino.sampling.sampler import RANKED_BEFORE_DRAWING, draw_lots
from sordino.sampling.sorted import Longest
from tests.problems import cross_entropy, linear, network, private


class Moving(Records):
    """Records of which the squared lengths by stretch are given for every lot; `now` is the number of the lot."""

    def __init__(self, squares, classes):
        super().__init__(squares.shape[1], self.total, lambda rows, label: classes[rows], self.by_stretch)
        self.squares, self.now, self.asked = squares.astype(np.float32), 0, []

    def by_stretch(self, rows):
        self.asked.append(rows)
        return self.squares[self.now, rows]

    def total(self, rows):
        return lengths_of(self.squares[self.now, rows])

    def exact_lot(self, left, size):
        lengths = self.total(left)
        return set(left[np.argsort(-lengths)[:size]].tolist())


def drifting(lots, n=2_000, seed=0):
    """Records of five classes, whose lengths grow and shrink by their class and by what share of them is in a stretch."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 5, size=n)
    squares = rng.exponential(size=(n, 3)) + 0.1
    rows = [squares]
    for _ in range(lots - 1):
        share = rows[-1] / rows[-1].sum(axis=1, keepdims=True)
        by_class, by_stretch = rng.normal(0, 0.4, size=5), rng.normal(0, 0.4, size=3)
        rows.append(rows[-1] * np.exp(by_class[classes] + share @ by_stretch)[:, None])
    return np.stack(rows), classes


def share_of_exact_lots(records, sampler, lots):
    """The share of the drawn records that are among the longest of all that were left, over some lots."""
    draws, left, shares = draw_lots(sampler, records, Rng.from_seed(1), 0), set(range(len(records))), []
    for k in range(lots):
        records.now = k
        wanted = records.exact_lot(np.array(sorted(left)), sampler.batch_size)
        lot = set(next(draws).indices.tolist())
        shares.append(len(lot & wanted) / len(wanted))
        left -= lot
    return shares


def test_lots_are_the_exact_ones_where_lengths_stay_as_they_are():
    squares = np.repeat(np.random.default_rng(2).exponential(size=(1, 300, 1)), 10, axis=0)
    records = Moving(squares, np.zeros(300, dtype=np.int64))
    assert share_of_exact_lots(records, sd.Sorted.top_k(20, remeasured=3), 10) == [1.0] * 10
    assert [len(rows) for rows in records.asked[:5]] == [300, 15, 15, 15, 15]


def test_where_lengths_drift_by_class_and_stretch_nearly_all_lots_are_the_exact_ones():
    squares, classes = drifting(12)
    shares = share_of_exact_lots(Moving(squares, classes), sd.Sorted.top_k(50, remeasured=10), 12)
    assert shares[0] == 1.0  # all are measured before the first lot
    assert np.mean(shares) > 0.97


def test_without_the_prediction_the_same_drift_would_lose_many_of_the_longest():
    # The oracle of the test above: if remembered lengths sufficed as they are, it would show nothing.
    squares, classes = drifting(12)
    records = Moving(squares, classes)
    last, left, shares = records.total(np.arange(2_000)), np.arange(2_000), []
    for k in range(12):
        records.now = k
        measured = left[np.argsort(-last[left])[:500]]
        last[measured] = records.total(measured)
        wanted = records.exact_lot(left, 50)
        lot = measured[np.argsort(-last[measured])[:50]]
        shares.append(len(set(lot.tolist()) & wanted) / 50)
        left = np.setdiff1d(left, lot)
    assert np.mean(shares) < 0.9


def test_only_so_many_are_measured_and_nobody_is_forgotten():
    squares, classes = drifting(31)
    records = Moving(squares, classes)
    remembered = measure_everyone(records, np.arange(2_000), 0)
    records.asked.clear()
    for k in range(1, 31):
        records.now = k
        found, remembered = measure_likeliest(
            records,
            remembered,
            np.arange(2_000),
            classes,
            400,
            k,
            lambda lengths, rows, size: Longest()(lengths, None, size, None),
            Rng.from_seed(k),
        )
        assert len(found) == 400
        assert sum(len(rows) for rows in records.asked) == 400 * k
        np.testing.assert_array_equal(remembered.squares[found], records.squares[k, found])
        # A quarter of 400 are the stalest of 2,000: after twenty lots everyone had a turn.
        assert k - remembered.measured_at.min() <= 20


@pytest.mark.parametrize("classes", [np.zeros(40, dtype=np.int64), np.arange(40)])
def test_vanished_gradients_and_classes_of_one_record_do_no_harm(classes):
    squares = np.random.default_rng(3).exponential(size=(6, 40, 2))
    squares[:, :25] = 0.0
    squares[3, 30] = np.inf
    draws = draw_lots(sd.Sorted.top_k(4, remeasured=2), Moving(squares, classes), Rng.from_seed(0), 0)
    seen = [index for _ in range(10) for index in next(draws).indices.tolist()]
    assert sorted(seen) == list(range(40))


def test_class_diverse_lots_are_the_exact_ones_where_lengths_stay_as_they_are():
    lengths = np.random.default_rng(4).exponential(size=(1, 200, 1)).repeat(8, axis=0)
    classes = np.arange(200) % 4
    exact = draw_lots(sd.Sorted.class_diverse(20), Moving(lengths, classes), Rng.from_seed(0), 0)
    remembered = draw_lots(sd.Sorted.class_diverse(20, remeasured=3), Moving(lengths, classes), Rng.from_seed(0), 0)
    for _ in range(8):
        assert next(exact).indices.tolist() == next(remembered).indices.tolist()


def test_squared_lengths_by_stretch_are_those_of_a_plain_loop():
    model, (x, y) = network(), linear(20).tensors
    expected = Loop().per_sample(model, cross_entropy, (x, y)).norms().squared
    parts = [Captured().per_sample(model, cross_entropy, (x[at], y[at])) for at in torch.arange(20).split(7)]
    torch.testing.assert_close(squared_lengths_by_stretch(parts).to(expected.dtype), expected)


def test_a_network_of_many_parameters_is_divided_into_sixteen_stretches():
    model = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(10)))
    x, y = linear(5).tensors
    part = Loop().per_sample(model, cross_entropy, (x, y))
    found = squared_lengths_by_stretch([part])
    assert found.shape == (5, 16)
    torch.testing.assert_close(found.sum(1), part.norms().squared.sum(1))


def test_with_everyone_measured_the_lots_of_a_run_are_those_of_the_exact_order():
    def indices(sampler):
        run = private(network(), seed=3)
        optimizer = torch.optim.SGD(run._model.parameters(), lr=1.0)
        found = []
        for lot in run.draws(linear(40), sampler, steps=5):
            found.append([tuple(row) for batch in lot.loads() for row in batch[0].tolist()])
            run.backward(lot)
            optimizer.step()
        return found

    assert indices(sd.Sorted.top_k(9)) == indices(sd.Sorted.top_k(9, remeasured=5))


def test_there_is_no_epsilon():
    run = private(query=sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1e6)))
    for lot in run.draws(linear(), sd.Sorted.top_k(5, remeasured=2), steps=3):
        run.backward(lot)
    assert run.claim(1e-5) == sd.NoGuarantee(RANKED_BEFORE_DRAWING)


def test_what_is_remembered_comes_back_from_a_checkpoint_bit_for_bit():
    squares = np.random.default_rng(5).exponential(size=(30, 3)).astype(np.float32)
    kept = RememberedLengths(squares, np.arange(30))
    found = RememberedLengths.unpack(json.loads(json.dumps(kept.pack())))
    assert found.squares.tobytes() == squares.tobytes()
    assert found.measured_at.tolist() == list(range(30))


@pytest.mark.parametrize("stop", [1, 4, 9])
def test_a_run_resumed_anywhere_draws_what_it_would_have_drawn(stop):
    def run(model, begun, optimizer, steps):
        for lot in begun.draws(linear(), sd.Sorted.top_k(6, remeasured=2), steps=steps):
            begun.backward(lot)
            optimizer.step()

    def fresh(seed):
        model = network()
        return model, private(model, seed=seed), torch.optim.SGD(model.parameters(), lr=0.5)

    whole, first, second = fresh(4), fresh(4), fresh(99)
    run(*whole, 12)
    run(*first, stop)
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
    # The remembered lengths are private: they are in the encrypted part, and nowhere else.
    assert states[0]["remembers_records"]
    assert "squares" not in json.dumps(states[0])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sd.Sorted.top_k(5, remeasured=1), "remeasured=1: must be at least 2"),
        (lambda: sd.Sorted.top_k(5, remeasured=3, pool=4), "give one of the three"),
        (lambda: sd.Sorted.top_k(5, remeasured=3, refresh=2), "give one of the three"),
        (lambda: sd.Sorted(5, sd.Sorted.similar_length(5).fill, remeasured=3), "only for the longest"),
    ],
)
def test_what_cannot_be_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()

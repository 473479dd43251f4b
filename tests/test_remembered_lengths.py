"""Sorted lots from remembered lengths against the exact order: what is measured, how stale it gets, how runs resume."""

import json

import numpy as np
import pytest
import torch

import sordino as sd
from sordino.lots.record_lengths import summarise_batch
from sordino.rng.streams import Rng
from sordino.sampling import Records
from sordino.sampling.record_access import Summaries
from sordino.sampling.remembered_lengths import RecordFeatures, RememberedLengths, measure_everyone, measure_likeliest
from sordino.sampling.sampler import RANKED_BEFORE_DRAWING, draw_lots
from sordino.sampling.sorted import Longest
from tests.problems import linear, network, private


class Moving(Records):
    """Records of which the lengths are given for every lot; `now` is the number of the lot."""

    def __init__(self, lengths, classes, few=None):
        n = lengths.shape[1]
        summaries = Summaries(np.zeros((n, 0)) if few is None else few, np.zeros((n, 0)))
        super().__init__(n, self.answer, lambda rows, label: classes[rows], lambda rows: summaries)
        self.values, self.now, self.asked = lengths.astype(np.float32), 0, []

    def answer(self, rows):
        self.asked.append(len(rows))
        return self.values[self.now, rows]

    def exact_lot(self, left, size):
        return set(left[np.argsort(-self.values[self.now, left])[:size]].tolist())


def drifting(lots, n=2_000, seed=0):
    """Records of five classes, whose lengths grow and shrink by their class and by two numbers of their own."""
    rng = np.random.default_rng(seed)
    classes, few = rng.integers(0, 5, size=n), rng.normal(size=(n, 2))
    rows = [rng.exponential(size=n) + 0.1]
    for _ in range(lots - 1):
        by_class, by_number = rng.normal(0, 0.3, size=5), rng.normal(0, 0.3, size=2)
        rows.append(rows[-1] * np.exp(by_class[classes] + few @ by_number))
    return np.stack(rows), classes, few


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
    lengths = np.repeat(np.random.default_rng(2).exponential(size=(1, 300)), 10, axis=0)
    records = Moving(lengths, np.zeros(300, dtype=np.int64))
    assert share_of_exact_lots(records, sd.Sorted.top_k(20, remeasured=3), 10) == [1.0] * 10
    # All before the first lot. Then 60 before each: a tenth, and the others in ten rounds.
    assert records.asked[0] == 300
    assert records.asked[1] == 6
    assert sum(records.asked[1:12]) == 60
    assert max(records.asked[2:12]) == 6


def test_where_lengths_drift_by_class_and_summary_nearly_all_lots_are_the_exact_ones():
    shares = share_of_exact_lots(Moving(*drifting(12)), sd.Sorted.top_k(50, remeasured=10), 12)
    assert shares[0] == 1.0  # all are measured before the first lot
    assert np.mean(shares) > 0.97


def test_without_the_prediction_the_same_drift_would_lose_many_of_the_longest():
    # The oracle of the test above: if remembered lengths sufficed as they are, it would show nothing.
    records = Moving(*drifting(12))
    last, left, shares = records.values[0].copy(), np.arange(2_000), []
    for k in range(12):
        records.now = k
        measured = left[np.argsort(-last[left])[:500]]
        last[measured] = records.values[k, measured]
        lot = measured[np.argsort(-last[measured])[:50]]
        shares.append(len(set(lot.tolist()) & records.exact_lot(left, 50)) / 50)
        left = np.setdiff1d(left, lot)
    assert np.mean(shares) < 0.9


def longest(lengths, rows, size):
    return Longest()(lengths, None, size, None)


def test_only_so_many_are_measured_and_nobody_is_forgotten():
    records = Moving(*drifting(61))
    features = RecordFeatures(records.labels(np.arange(2_000), None), records.summaries())
    _, remembered = measure_everyone(records, np.arange(2_000), 0)
    records.asked.clear()
    for k in range(1, 61):
        records.now = k
        found, lengths, remembered = measure_likeliest(
            records, remembered, np.arange(2_000), features, 400, k, longest, Rng.from_seed(k)
        )
        assert len(set(found.tolist())) == 400
        assert sum(records.asked) == 400 * k
        np.testing.assert_array_equal(lengths, records.values[k, found])
        np.testing.assert_allclose(remembered.logs[found], np.log(np.maximum(lengths, 1e-6)), rtol=1e-6, atol=1e-6)
        # A tenth of 400 are the stalest of 2,000: after fifty lots everyone had a turn.
        assert k - remembered.measured_at.min() <= 50
    assert remembered.measured_at.min() > 0


@pytest.mark.parametrize("classes", [np.zeros(140, dtype=np.int64), np.arange(140)])
def test_vanished_gradients_and_classes_of_one_record_do_no_harm(classes):
    lengths = np.random.default_rng(3).exponential(size=(35, 140))
    lengths[:, :100] = 0.0
    lengths[3, 130], lengths[4, 131] = np.inf, np.nan
    few = np.full((140, 2), np.nan)
    draws = draw_lots(sd.Sorted.top_k(4, remeasured=2), Moving(lengths, classes, few), Rng.from_seed(0), 0)
    seen = [index for _ in range(35) for index in next(draws).indices.tolist()]
    assert sorted(seen) == list(range(140))


def test_class_diverse_lots_are_the_exact_ones_where_lengths_stay_as_they_are():
    lengths = np.random.default_rng(4).exponential(size=(1, 200)).repeat(8, axis=0)
    classes = np.arange(200) % 4
    exact = draw_lots(sd.Sorted.class_diverse(20), Moving(lengths, classes), Rng.from_seed(0), 0)
    remembered = draw_lots(sd.Sorted.class_diverse(20, remeasured=3), Moving(lengths, classes), Rng.from_seed(0), 0)
    for _ in range(8):
        assert next(exact).indices.tolist() == next(remembered).indices.tolist()


def test_an_image_is_summarised_by_its_channels_its_roughness_and_a_small_picture():
    x = torch.zeros(2, 3, 8, 8)
    x[1, 0, :, 4:] = 1.0  # half of the first channel is bright
    few, many = summarise_batch((x, torch.zeros(2, dtype=torch.long)))
    assert few.shape == (2, 8)
    assert many.shape == (2, 48)
    assert not few[0].any()
    # Means of three channels; deviations; one of seven steps across is 1 in one of three channels, and none down.
    torch.testing.assert_close(few[1, :3], torch.tensor([0.5, 0.0, 0.0]))
    torch.testing.assert_close(few[1, 6:], torch.tensor([1 / 21, 0.0]))
    torch.testing.assert_close(many[1, :16].view(4, 4), torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(4, 4))


@pytest.mark.parametrize(
    ("x", "columns"),
    [(torch.randn(5, 6), 2), (torch.randn(5, 1), 2), (torch.randint(0, 9, (5, 6)), 0), (torch.randn(5, 1, 2, 2), 2)],
)
def test_rows_of_numbers_have_a_mean_and_a_deviation_and_others_no_summary(x, columns):
    few, many = summarise_batch((x, torch.zeros(5)))
    assert few.shape == (5, columns)
    assert many.shape == (5, 0)
    assert few.isfinite().all()


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
    logs = np.random.default_rng(5).normal(size=30).astype(np.float32)
    kept = RememberedLengths(logs, np.arange(30))
    found = RememberedLengths.unpack(json.loads(json.dumps(kept.pack())))
    assert found.logs.tobytes() == logs.tobytes()
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
    assert "measured_at" not in json.dumps(states[0])


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

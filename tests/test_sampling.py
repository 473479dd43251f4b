"""Samplers draw what they say."""

import math
from itertools import islice

import numpy as np
import pytest
from scipy import stats

import sordino as sd
from sordino import events
from sordino.rng.streams import Rng
from sordino.sampling.poisson import flip_coins
from tests.problems import linear, private

ALPHA = 1e-6
SAMPLERS = [sd.Poisson(0.1), sd.Shuffle(30), sd.FixedSize(20), sd.FixedSize(150), sd.Full(), sd.BallsInBins(5)]


def draws(sampler, n, k, seed=0, start=0):
    return [draw.indices for draw in islice(sampler.draws(n, Rng.from_seed(seed), start), k)]


def test_poisson_lots_have_a_binomial_size_and_every_record_its_own_coin():
    n, q, k = 500, 0.1, 2000
    lots = draws(sd.Poisson(q), n, k)
    sizes = np.array([len(lot) for lot in lots])
    z = (sizes.var(ddof=1) / (n * q * (1 - q)) - 1) * np.sqrt((k - 1) / 2)
    assert abs(z) < stats.norm.isf(ALPHA / 2)
    assert abs(sizes.mean() - n * q) < stats.norm.isf(ALPHA / 2) * np.sqrt(n * q * (1 - q) / k)
    counts = np.bincount(np.concatenate(lots), minlength=n)
    spread = ((counts - k * q) ** 2 / (k * q * (1 - q))).sum()
    assert stats.chi2.sf(spread, n) > ALPHA
    assert stats.chi2.cdf(spread, n) > ALPHA


def test_poisson_coins_of_neighbouring_records_are_independent():
    lots = draws(sd.Poisson(0.3), 2, 20_000)
    table = np.zeros((2, 2))
    for lot in lots:
        table[int(0 in lot), int(1 in lot)] += 1
    assert stats.chi2_contingency(table).pvalue > ALPHA


@pytest.mark.parametrize("rate", [1e-9, 1e-3, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("n", [1, 2, 1000])
def test_poisson_at_its_edges(rate, n):
    for lot in draws(sd.Poisson(rate), n, 50):
        assert len(np.unique(lot)) == len(lot) <= n
        assert ((lot >= 0) & (lot < n)).all()


@pytest.mark.parametrize(("n", "b"), [(200, 20), (200, 150), (7, 7), (7, 1)])
def test_fixed_size_lots_are_uniform_subsets(n, b):
    lots = draws(sd.FixedSize(b), n, 3000)
    assert all(len(np.unique(lot)) == b for lot in lots)
    counts = np.bincount(np.concatenate(lots), minlength=n)
    if b < n:
        spread = ((counts - 3000 * b / n) ** 2).sum() / (3000 * (b / n) * (1 - b / n)) * (n - 1) / n
        assert stats.chi2.sf(spread, n - 1) > ALPHA


def test_a_shuffle_visits_everybody_once_a_pass():
    lots = draws(sd.Shuffle(30), 100, 8)
    assert [len(lot) for lot in lots] == [30, 30, 30, 10] * 2
    for first in (0, 4):
        assert sorted(np.concatenate(lots[first : first + 4])) == list(range(100))
    assert not np.array_equal(lots[0], lots[4])


def test_balls_in_bins_are_one_bin_a_pass_for_everybody_by_independent_choice():
    n, bins, passes = 300, 4, 500
    lots = draws(sd.BallsInBins(bins), n, bins * passes)
    for k in range(0, len(lots), bins):
        assert sorted(np.concatenate(lots[k : k + bins])) == list(range(n))
    sizes = np.array([len(lot) for lot in lots[::bins]])  # the first bin of each pass: Binomial(n, 1/bins)
    z = (sizes.var(ddof=1) / (n * (1 / bins) * (1 - 1 / bins)) - 1) * np.sqrt((passes - 1) / 2)
    assert abs(z) < stats.norm.isf(ALPHA / 2)
    first = np.bincount(np.concatenate(lots[::bins]), minlength=n)
    spread = ((first - passes / bins) ** 2 / (passes / bins * (1 - 1 / bins))).sum()
    assert stats.chi2.sf(spread, n) > ALPHA


def test_full_is_everybody():
    assert all(np.array_equal(lot, np.arange(9)) for lot in draws(sd.Full(), 9, 3))


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_a_draw_is_a_function_of_its_number(sampler):
    whole = draws(sampler, 200, 12)
    rest = draws(sampler, 200, 5, start=7)
    assert all(np.array_equal(a, b) for a, b in zip(whole[7:], rest, strict=True))


@pytest.mark.parametrize("sampler", [each for each in SAMPLERS if not isinstance(each, sd.Full)], ids=repr)
def test_a_draw_follows_the_key(sampler):
    """Draws that anyone can repeat have no amplification: who was in a lot must be as secret as the key."""
    one, other = draws(sampler, 200, 3, seed=1), draws(sampler, 200, 3, seed=2)
    assert not any(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert not np.array_equal(one[0], one[1])


@pytest.mark.parametrize("sampler", [sd.Poisson(0.2), sd.Shuffle(40), sd.FixedSize(40), sd.BallsInBins(5)], ids=repr)
def test_two_runs_without_a_seed_draw_different_lots(sampler):
    """The chance that two draws of 40 of 200 records are equal is below 1e-40."""
    found = []
    for _ in range(2):
        run = private(seed=None)
        found += [run._last_records.copy() for _ in run.draws(linear(200), sampler, 1, expected_batch=40)]
    assert not np.array_equal(*found)


def test_two_calls_of_draws_do_not_draw_the_same_lots():
    run, found = private(), []
    for _ in range(2):
        found += [run._last_records.copy() for _ in run.draws(linear(200), sd.Poisson(0.2), 1, expected_batch=40)]
    assert not np.array_equal(*found)


@pytest.mark.parametrize("n", [999_999, 1_000_000])
@pytest.mark.parametrize("rate", [0.003, 0.05, 0.5, 0.95])
def test_poisson_draws_at_its_rate_to_a_tenth_of_a_percent(n, rate):
    """A rate 1 % higher than the one that is charged is noticed; the false-alarm rate of each setting is 1e-6."""
    least = 2e6  # heads, so that one standard deviation is 0.07 % of them or less
    k = max(2, int(np.ceil(least / (n * rate))))
    drawn = sum(len(lot) for lot in draws(sd.Poisson(rate), n, k, seed=n))
    deviation = np.sqrt(k * n * rate * (1 - rate))
    assert deviation < 0.001 * k * n * rate
    assert abs(drawn - k * n * rate) < stats.norm.isf(ALPHA / 2) * deviation


def test_a_run_draws_at_the_rate_it_is_charged():
    """Through `Private`, whose ledger names the rate: of 400,000 coins 80,000 heads, give or take 0.3 %."""
    n, rate, steps = 20_000, 0.2, 20
    run = private(seed=3)
    sizes = [len(run._last_records) for _ in run.draws(linear(n), sd.Poisson(rate), steps, expected_batch=n * rate)]
    assert f"rate={rate}," in repr(run.event)
    deviation = np.sqrt(steps * n * rate * (1 - rate))
    assert abs(sum(sizes) - steps * n * rate) < stats.norm.isf(ALPHA / 2) * deviation


@pytest.mark.parametrize(("n", "rate"), [(40, 0.3), (40, 0.97), (5, 0.01)])
def test_poisson_coins_are_the_gaps_of_their_stream_one_after_the_other(n, rate):
    """Against a loop over the same uniform numbers, with gaps 1 + floor(ln u / ln(1 - q))."""
    for seed in range(20):
        rng, block = Rng.from_seed(seed), int(n * rate + 6 * math.sqrt(n * rate) + 16)
        taken, place = [], -1
        while place < n:
            for u in rng.uniform(block):
                place += 1 + math.floor(math.log(u) / math.log1p(-rate))
                if place < n:
                    taken.append(place)
        assert flip_coins(n, rate, Rng.from_seed(seed)).tolist() == taken


def test_a_truncated_lot_is_a_uniform_part_of_its_coins_and_priced_for_one_record_more():
    n, rate, most, k = 60, 0.3, 15, 3000
    drawn = list(islice(sd.TruncatedPoisson(rate, most).draws(n, Rng.from_seed(0), 0), k))
    assert drawn[0].amplify(events.Gaussian(1.0)) == events.TruncatedPoisson(rate, n + 1, most, events.Gaussian(1.0))
    sizes = np.array([len(draw.indices) for draw in drawn])
    assert sizes.max() == most
    assert all((np.diff(draw.indices) > 0).all() for draw in drawn)
    # Binomial sizes, cut at the largest.
    expected = np.minimum(np.arange(n + 1), most) @ stats.binom.pmf(np.arange(n + 1), n, rate)
    assert abs(sizes.mean() - expected) < stats.norm.isf(ALPHA / 2) * sizes.std() / np.sqrt(k)
    # Everybody is cut equally often.
    counts, share = np.bincount(np.concatenate([draw.indices for draw in drawn]), minlength=n), sizes.mean() / n
    spread = ((counts - k * share) ** 2 / (k * share * (1 - share))).sum()
    assert stats.chi2.sf(spread, n - 1) > ALPHA

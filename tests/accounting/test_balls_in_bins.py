"""Balls in bins against sums computed another way: by quadrature, by enumeration of all outputs, by simulation."""

import math
from itertools import pairwise, product

import numpy as np
import pytest

from sordino import accounting as A
from sordino.events import BallsInBins, Gaussian, Poisson, RandomisedResponse, Repeat


def two_bins(sigma, epsilon):
    """δ(ε) of one pass of two bins, removing and adding: a product quadrature over both outputs."""
    z, width = np.linspace(-11, 12, 3001, retstep=True)
    base = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * width
    # E over the first output, the second in closed form: {r₂ > c} and {r₂ < c} are half-lines
    ratio = np.exp(z / sigma - 0.5 / sigma**2)
    from scipy.special import ndtr

    def above(c):
        """E[(r − c)₊] for the log-normal ratio; E[r − c] where c ≤ 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            at = sigma * np.log(np.maximum(c, 1e-300)) + 0.5 / sigma
        return np.where(c > 0, ndtr(1 / sigma - at) - c * ndtr(-at), 1 - c)

    removing = float(base @ above(2 * math.exp(epsilon) - ratio)) / 2
    gap = 2 * math.exp(-epsilon) - ratio
    adding = float(base @ (above(gap) - (1 - gap))) * math.exp(epsilon) / 2
    return max(removing, adding)


@pytest.mark.parametrize("sigma", [0.5, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.5, 4.0])
def test_two_bins_lie_between_the_bounds_and_close_to_both(sigma, epsilon):
    exact = two_bins(sigma, epsilon)
    low, high = A.PLD().delta_bounds(BallsInBins(2, Gaussian(sigma)), epsilon)
    assert low <= exact * (1 + 1e-7) + 1e-18
    assert exact <= high * (1 + 1e-7) + 1e-18
    if exact > 1e-12:
        assert high - low <= 5e-3 * exact


@pytest.mark.parametrize(
    ("bins", "flip", "buckets", "passes"), [(2, 0.5, 2, 1), (3, 0.4, 3, 1), (4, 0.7, 2, 1), (2, 0.6, 3, 3)]
)
def test_few_answers_match_an_enumeration_of_all_outputs(bins, flip, buckets, passes):
    """Every output of every pass, with its probability with and without the record."""
    other, true = flip / buckets, 1 - flip + flip / buckets
    rest = 1 - other - true
    answers = [(other, true), (true, other)] + ([(rest, rest)] if rest > 1e-12 else [])  # (Q, P) of a batch
    q, p = [], []
    for outputs in product(answers, repeat=bins):
        without = math.prod(each[0] for each in outputs)
        q.append(without)
        p.append(without * math.fsum(each[1] / each[0] for each in outputs) / bins)
    whole_q, whole_p = np.ones(1), np.ones(1)
    for _ in range(passes):
        whole_q, whole_p = np.multiply.outer(whole_q, q).ravel(), np.multiply.outer(whole_p, p).ravel()
    for epsilon in (0.1, 0.4, 1.0):
        exact = max(
            float(np.maximum(whole_p - math.exp(epsilon) * whole_q, 0).sum()),
            float(np.maximum(whole_q - math.exp(epsilon) * whole_p, 0).sum()),
        )
        low, high = A.PLD().delta_bounds(Repeat(BallsInBins(bins, RandomisedResponse(flip, buckets)), passes), epsilon)
        assert low <= exact * (1 + 1e-9) + 1e-12
        assert exact <= high * (1 + 1e-9) + 1e-12
        assert high <= exact * 1.05 + 2e-4


def test_many_bins_agree_with_a_simulation():
    """200,000 draws of S under Q: six standard errors, a false alarm in 5e8."""
    rng = np.random.default_rng(5)
    bins, sigma, draws = 40, 0.8, 200_000
    total = np.zeros(draws)
    for _ in range(bins):
        total += np.exp(rng.standard_normal(draws) / sigma - 0.5 / sigma**2)
    for epsilon in (0.1, 0.5):
        adding = np.maximum(1 - math.exp(epsilon) * total / bins, 0)
        low, high = A.PLD().delta_bounds(BallsInBins(bins, Gaussian(sigma)), epsilon)
        # the larger direction is at least the one simulated
        assert high >= adding.mean() - 6 * adding.std() / math.sqrt(draws)
        removing = np.maximum(total / bins - math.exp(epsilon), 0)
        both = max(adding.mean(), removing.mean())
        assert low <= both + 6 * max(adding.std(), removing.std()) / math.sqrt(draws)


def test_there_is_no_cliff_at_small_delta_and_both_bounds_are_close():
    """ε jumped from 0.99 to 6.2 between δ = 1e-10 and 1e-11, where rounding ate up the untilted transform."""
    event = BallsInBins(240, Gaussian(1.1))
    found = [A.PLD().bounds(event, 10.0**-k) for k in (9, 10, 11, 12)]
    for low, high in found:
        assert high - low <= 1e-3 * high
    highs = [high for _, high in found]
    assert all(0 < later - earlier < 0.4 for earlier, later in pairwise(highs))


def test_the_bounds_that_contradicted_each_other_agree():
    low, high = A.PLD().delta_bounds(BallsInBins(240, Gaussian(1.1)), 0.5)
    assert 0 < high - low <= 1e-3 * high
    inverse = A.PLD().bounds(BallsInBins(240, Gaussian(1.1)), high)
    assert inverse[0] <= 0.5 * (1 + 1e-3)
    assert inverse[1] >= 0.5 * (1 - 1e-3)


def test_the_trade_off_of_a_pass_is_that_of_its_bound_and_no_looser_than_poisson():
    """μ was 3.29 where Poisson sampling has 0.52: `delta` had no bound of its own at small δ."""
    pass_curve = A.tradeoff(Repeat(BallsInBins(50, Gaussian(1.0)), 2), points=12)
    coins = A.tradeoff(Repeat(Poisson(1 / 50, Gaussian(1.0)), 100), points=12)
    assert pass_curve.mu <= 1.3 * coins.mu


@pytest.mark.parametrize(
    ("bins", "sigma", "passes", "delta"), [(5, 0.5, 1, 1e-6), (30, 0.9, 20, 1e-5), (500, 2.0, 5, 1e-8)]
)
def test_the_gap_is_small(bins, sigma, passes, delta):
    low, high = A.PLD().bounds(Repeat(BallsInBins(bins, Gaussian(sigma)), passes), delta)
    assert 0 < low <= high <= low * 1.002

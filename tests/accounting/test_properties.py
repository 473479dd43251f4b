"""What must hold for every setting in the stated domain: σ ∈ [0.1, 10³], q ∈ (0, 1], T ≤ 10⁶, δ ∈ [1e-18, 0.5]."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sordino import accounting as A
from sordino.events import Gaussian, Laplace, Poisson, Repeat, Together

SLACK = 2e-4  # PLD's own relative accuracy is 6e-5 a side
GAP = 1e-6  # between the bounds, which come from two lattices: below ε ≈ 1e-3 it is absolute
TINY = 1e-7  # below this ε, rounding of the transform limits the lower bound

decades = lambda low, high: st.floats(low, high).map(lambda x: 10.0**x)  # noqa: E731
sigmas = decades(-1, 3)
rates = decades(-7, 0)
counts = decades(0, 6).map(int)
deltas = decades(-18, math.log10(0.5))
few = settings(max_examples=25, deadline=None, derandomize=True)


def run(sigma, q, steps):
    return Repeat(Poisson(q, Gaussian(sigma)), steps)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(sigmas, rates, counts, deltas)
def test_bounds_are_ordered_finite_and_close_everywhere(sigma, q, steps, delta):
    low, high = A.PLD().bounds(run(sigma, q, steps), delta)
    assert 0 <= low <= high < math.inf
    assert high - low <= (5e-3 if steps >= 10**6 else 1e-3) * high + GAP


@pytest.mark.parametrize("seed", range(40))
def test_bounds_are_ordered_finite_and_close_at_random_points_of_the_domain(seed):
    rng = np.random.default_rng(seed)
    sigma, q = 10 ** rng.uniform(-1, 3), 10 ** rng.uniform(-7, 0)
    steps, delta = int(10 ** rng.uniform(0, 6)), 10 ** rng.uniform(-18, math.log10(0.5))
    low, high = A.PLD().bounds(run(sigma, q, steps), delta)
    assert 0 <= low <= high < math.inf
    assert high - low <= 1e-3 * high + GAP


@few
@given(decades(-0.5, 2), decades(-4, -0.3), counts, decades(-12, -2), st.floats(1.02, 3.0))
def test_more_noise_means_less_epsilon(sigma, q, steps, delta, factor):
    pld = A.PLD()
    assert (
        pld.epsilon(run(factor * sigma, q, steps), delta)
        <= pld.epsilon(run(sigma, q, steps), delta) * (1 + SLACK) + TINY
    )


@few
@given(decades(-0.5, 2), decades(-4, -0.3), counts, decades(-12, -2), st.floats(1.02, 2.0))
def test_a_higher_rate_means_more_epsilon(sigma, q, steps, delta, factor):
    pld = A.PLD()
    assert (
        pld.epsilon(run(sigma, q, steps), delta)
        <= pld.epsilon(run(sigma, q * factor, steps), delta) * (1 + SLACK) + TINY
    )


@few
@given(decades(-0.5, 2), decades(-4, -0.3), decades(0, 5).map(int), decades(-12, -2), st.integers(1, 1000))
def test_more_steps_mean_more_epsilon(sigma, q, steps, delta, more):
    pld = A.PLD()
    assert (
        pld.epsilon(run(sigma, q, steps), delta) <= pld.epsilon(run(sigma, q, steps + more), delta) * (1 + SLACK) + TINY
    )


@few
@given(decades(-0.5, 2), decades(-4, -0.3), counts, decades(-14, -2), st.floats(1.1, 50.0))
def test_a_smaller_delta_means_more_epsilon(sigma, q, steps, delta, factor):
    pld = A.PLD()
    assert (
        pld.epsilon(run(sigma, q, steps), delta)
        <= pld.epsilon(run(sigma, q, steps), delta / factor) * (1 + SLACK) + TINY
    )


@few
@given(decades(-0.5, 2), decades(-4, -0.1), decades(0, 5).map(int), decades(-12, -3))
def test_pld_is_at_most_rdp_is_at_most_moments(sigma, q, steps, delta):
    event = run(sigma, q, steps)
    low, pld = A.PLD().bounds(event, delta)
    rdp, moments = A.RDP().epsilon(event, delta), A.Moments().epsilon(event, delta)
    assert low <= pld <= rdp * (1 + SLACK) + TINY
    assert rdp <= moments * (1 + 1e-12)


@few
@given(decades(-0.5, 1.5), decades(-3, -0.3), decades(0, 4).map(int), decades(-10, -3))
def test_delta_at_epsilon_at_delta_is_delta(sigma, q, steps, delta):
    event, pld = run(sigma, q, steps), A.PLD()
    epsilon = pld.epsilon(event, delta)
    low, high = pld.delta_bounds(event, epsilon)
    assert low <= high
    if epsilon > 1e-4:
        assert low <= delta * 1.001
        assert high == pytest.approx(delta, rel=0.01)


@pytest.mark.parametrize(
    "accountant", [A.Basic(), A.Advanced(), A.Strong(valid=True), A.Moments(), A.RDP(), A.PLD()], ids=lambda a: a.name
)
def test_n_at_once_is_n_times_one(accountant):
    for one in (Poisson(0.05, Gaussian(1.2)), Gaussian(3.0), Laplace(4.0)):
        together = accountant.epsilon(Together(*[one] * 7), 1e-5)
        assert accountant.epsilon(Repeat(one, 7), 1e-5) == pytest.approx(together, rel=1e-12)
        assert together > accountant.epsilon(one, 1e-5)


@given(st.floats(0.2, 20.0), decades(-10, -2))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_analytic_gaussian_meets_its_target_from_the_safe_side(epsilon, delta):
    sigma = A.analytic_gaussian(epsilon, delta)
    assert A.gaussian_delta(1 / sigma, epsilon) <= delta
    assert A.gaussian_delta(1.0001 / sigma, epsilon) > delta


@settings(max_examples=10, deadline=None, derandomize=True)
@given(decades(-3, -0.5), decades(1, 4).map(int), st.floats(0.3, 8.0), decades(-9, -4))
def test_calibrated_noise_satisfies_the_target_and_hardly_more(q, steps, epsilon, delta):
    pld = A.PLD()
    sigma = A.calibrate(lambda s: run(s, q, steps), pld, epsilon, delta)
    assert pld.epsilon(run(sigma, q, steps), delta) <= epsilon
    assert pld.epsilon(run(sigma * (1 - 5e-4), q, steps), delta) > epsilon


@settings(max_examples=6, deadline=None, derandomize=True)
@given(decades(0, 1), decades(-3, -1), st.floats(0.5, 5.0))
def test_calibrated_steps_are_the_most_that_fit(sigma, q, epsilon):
    rdp = A.RDP()
    assume(rdp.epsilon(run(sigma, q, 1), 1e-5) < epsilon)
    steps = A.calibrate(lambda n: run(sigma, q, n), rdp, epsilon, 1e-5, whole=True)
    assert isinstance(steps, int)
    assert rdp.epsilon(run(sigma, q, steps), 1e-5) <= epsilon < rdp.epsilon(run(sigma, q, steps + 1), 1e-5)


def test_calibration_finds_a_rate_and_stops_at_its_domain():
    pld = A.PLD()
    rate = A.calibrate(lambda q: run(2.0, q, 500), pld, 2.0, 1e-5)
    assert pld.epsilon(run(2.0, rate, 500), 1e-5) <= 2.0 < pld.epsilon(run(2.0, rate * 1.001, 500), 1e-5)
    assert A.calibrate(lambda q: run(100.0, q, 2), pld, 5.0, 1e-5) == pytest.approx(1.0, abs=1e-6)

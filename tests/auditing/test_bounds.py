"""The bounds equal their closed forms, and hold: of thousands of simulated exact mechanisms they contradict too few."""

import math

import numpy as np
import pytest
from scipy.special import logit, ndtr, ndtri
from scipy.stats import binom

from sordino.accounting import PLD
from sordino.accounting.tradeoff import tradeoff
from sordino.auditing.bounds import binomial, one_run, one_run_tradeoff, tradeoff_tests, two_worlds
from sordino.auditing.bounds.two_worlds import Errors
from sordino.events import Exponential, Gaussian, Poisson, Repeat, Together
from sordino.privacy_loss.gaussian import gaussian_epsilon

ERROR = 0.05
TRIALS = 2000
MOST_BROKEN = int(binom.ppf(1 - 1e-6, TRIALS, ERROR))
"""More violations than this have a chance of one in a million if each has 5 %."""


def test_clopper_pearson_has_the_closed_form_of_no_success():
    assert binomial.upper_bound(0, 50, ERROR) == pytest.approx(1 - ERROR ** (1 / 50), rel=1e-12)
    assert binomial.lower_bound(50, 50, ERROR) == pytest.approx(ERROR ** (1 / 50), rel=1e-12)
    assert binomial.upper_bound(50, 50, ERROR) == 1.0


def test_clopper_pearson_is_where_the_binomial_tail_is_the_error():
    assert binom.cdf(13, 40, binomial.upper_bound(13, 40, ERROR)) == pytest.approx(ERROR, rel=1e-9)


def test_the_bound_of_two_worlds_is_the_logarithm_of_its_rates():
    missed, alarms = binomial.upper_bound(10, 200, ERROR / 2), binomial.upper_bound(30, 300, ERROR / 2)
    expected = max(math.log((1 - 1e-5 - missed) / alarms), math.log((1 - 1e-5 - alarms) / missed))
    assert two_worlds.epsilon_lower_bound(Errors(10, 200, 30, 300), 1e-5) == pytest.approx(expected, rel=1e-12)


def test_mu_of_a_rate_passes_through_its_point():
    errors = Errors(40, 100, 2, 100)
    missed, alarms = errors.upper_rates(ERROR)
    from sordino.accounting.tradeoff import subsampled_tradeoff

    found = two_worlds.mu_lower_bound(errors, ERROR, rate=0.9)
    assert float(subsampled_tradeoff(found, 0.9, alarms)) == pytest.approx(missed, abs=1e-9)
    assert two_worlds.mu_lower_bound(errors) == pytest.approx(float(ndtri(1 - alarms) - ndtri(missed)))


@pytest.mark.parametrize("guesses", [1, 10, 100, 1000])
def test_all_guesses_right_is_a_power(guesses):
    """P[W = r] = p^r = 0.05."""
    expected = max(0.0, float(logit(ERROR ** (1 / guesses))))
    assert one_run.epsilon_lower_bound(guesses, guesses, guesses, 0.0) == pytest.approx(expected, abs=1e-8)


def test_one_run_is_the_loop_of_its_authors():
    """The program in their appendix D, written out: a sum in place of a tail."""
    m, r, v, epsilon, delta = 500, 120, 90, 0.7, 1e-4
    p = 1 / (1 + math.exp(-epsilon))
    total, worst = 0.0, 0.0
    for i in range(1, v + 1):
        total += binom.pmf(v - i, r, p)
        worst = max(worst, total / i)
    expected = binom.sf(v - 1, r, p) + worst * delta * 2 * m
    assert one_run.largest_probability(m, r, v, epsilon, delta) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.5])
def test_one_canary_is_the_best_test_between_two_worlds(mu):
    """A fair coin, one guess: right with probability Φ(μ/2) at most."""
    most = float(ndtr(mu / 2))
    assert not one_run_tradeoff.contradicts(1, 1, 1, tradeoff_tests.inverse_of_gaussian(mu), most * (1 - 1e-9))
    assert one_run_tradeoff.contradicts(1, 1, 1, tradeoff_tests.inverse_of_gaussian(mu), most * (1 + 1e-9))


def test_the_curve_of_a_run_lies_close_below_the_exact_one():
    exact, own = tradeoff_tests.inverse_of_gaussian(1.0), tradeoff_tests.inverse_of_curve(tradeoff(Gaussian(1.0)))
    for y in (1e-4, 0.01, 0.3, 0.7, 0.99):
        assert exact(y) * 0.97 - 1e-9 <= own(y) <= exact(y) + 1e-6


def test_a_louder_run_has_its_noise_scaled_and_its_choices_too():
    run = Together(Repeat(Poisson(0.1, Gaussian(4.0)), 7), Exponential(0.5))
    assert run.scale_noise(0.5) == Together(Repeat(Poisson(0.1, Gaussian(2.0)), 7), Exponential(1.0))


@pytest.fixture(scope="module")
def rng():
    return np.random.default_rng(20241)


def answers(rng, mu, canaries, each):
    """Right guesses of `TRIALS` runs that are exactly μ-GDP: every canary shifts a coordinate of its own."""
    right = np.empty(TRIALS, dtype=int)
    for trial in range(TRIALS):
        coins = rng.random(canaries) < 0.5
        order = np.argsort(coins * mu + rng.normal(size=canaries))
        right[trial] = (~coins[order[:each]]).sum() + coins[order[-each:]].sum()
    return right


def broken(right, canaries, guesses, refuted):
    """How many of the runs a test contradicts; the test is monotone, so its threshold is found once."""
    least = next((v for v in range(guesses + 1) if refuted(v)), guesses + 1)
    return int((right >= least).sum())


@pytest.mark.parametrize("mu", [0.25, 1.0])
def test_bounds_of_one_run_hold_for_exact_gaussians(rng, mu):
    canaries, each, delta = 200, 20, 1e-5
    right, guesses = answers(rng, mu, canaries, each), 2 * each
    true = gaussian_epsilon(mu, delta)
    by_epsilon = broken(
        right, canaries, guesses, lambda v: one_run.epsilon_lower_bound(canaries, guesses, v, delta) > true
    )
    own = tradeoff_tests.inverse_of_gaussian(mu)
    by_curve = broken(
        right, canaries, guesses, lambda v: one_run_tradeoff.contradicts(canaries, guesses, v, own, ERROR)
    )
    assert by_epsilon <= MOST_BROKEN
    assert by_curve <= MOST_BROKEN


def test_the_f_dp_test_sees_what_the_other_does_not(rng):
    """At twice the claimed μ."""
    canaries, each = 200, 20
    right, guesses = answers(rng, 2.0, canaries, each), 2 * each
    claimed = tradeoff_tests.inverse_of_gaussian(1.0)
    by_curve = broken(
        right, canaries, guesses, lambda v: one_run_tradeoff.contradicts(canaries, guesses, v, claimed, ERROR)
    )
    epsilon = gaussian_epsilon(1.0, 1e-5)
    by_epsilon = broken(
        right, canaries, guesses, lambda v: one_run.epsilon_lower_bound(canaries, guesses, v, 1e-5) > epsilon
    )
    assert by_curve > by_epsilon


def test_the_bound_of_one_run_holds_for_randomised_response_and_is_tight(rng):
    """The mechanism at which the theorem is an equality."""
    guesses, epsilon = 300, 1.0
    right = rng.binomial(guesses, 1 / (1 + math.exp(-epsilon)), size=TRIALS)
    found = broken(right, guesses, guesses, lambda v: one_run.epsilon_lower_bound(guesses, guesses, v, 0.0) > epsilon)
    assert TRIALS * ERROR / 2 < found <= MOST_BROKEN


@pytest.mark.parametrize("threshold", [0.5, 2.0])
def test_bounds_of_two_worlds_hold_for_exact_gaussians(rng, threshold):
    mu, n, delta = 1.0, 500, 1e-5
    missed = rng.binomial(n, float(ndtr(threshold - mu)), size=TRIALS)
    alarms = rng.binomial(n, float(ndtr(-threshold)), size=TRIALS)
    some = [Errors(int(a), n, int(b), n) for a, b in zip(missed, alarms, strict=True)]
    assert sum(two_worlds.mu_lower_bound(errors) > mu for errors in some) <= MOST_BROKEN
    assert (
        sum(two_worlds.epsilon_lower_bound(errors, delta) > gaussian_epsilon(mu, delta) for errors in some)
        <= MOST_BROKEN
    )


def test_the_bound_in_a_runs_own_family_is_its_claim_only_where_the_claim_is_contradicted():
    event, delta = Repeat(Poisson(0.5, Gaussian(12.0)), 50), 1e-5
    family = tradeoff_tests.LessNoisyFamily(event)
    claim = PLD().epsilon(event, delta)
    for right in (55, 75):
        refuted = one_run_tradeoff.contradicts(400, 80, right, family[0][1], ERROR)
        assert (one_run_tradeoff.epsilon_lower_bound(400, 80, right, family, delta) >= claim * (1 - 1e-9)) == refuted


def test_counts_that_no_audit_has_are_refused():
    with pytest.raises(ValueError, match="right=5, guesses=4"):
        one_run.epsilon_lower_bound(10, 4, 5, 0.0)
    with pytest.raises(ValueError, match="error=0"):
        binomial.upper_bound(1, 2, 0.0)

"""Unlike compositions against dp_accounting, which brackets the truth too, and against integrals of high precision."""

import math

import mpmath
import numpy as np
import pytest

from sordino import accounting as A
from sordino.events import DiscreteGaussian, Gaussian, Laplace, Poisson, Repeat, Together
from tests.accounting.compositions import log_uniform

INTERVAL = 2e-3  # of dp_accounting's lattice
DIGITS = 22


def theirs(parts, pessimistic):
    from dp_accounting.pld import privacy_loss_distribution as pld

    total = None
    for event, count in parts:
        options = {"value_discretization_interval": INTERVAL, "pessimistic_estimate": pessimistic}
        match event:
            case Poisson(rate=rate, event=Gaussian(multiplier=sigma)):
                one = pld.from_gaussian_mechanism(sigma, sampling_prob=rate, **options)
            case Poisson(rate=rate, event=Laplace(scale=scale)):
                one = pld.from_laplace_mechanism(scale, sampling_prob=rate, **options)
            case Gaussian(multiplier=sigma):
                one = pld.from_gaussian_mechanism(sigma, **options)
            case Laplace(scale=scale):
                one = pld.from_laplace_mechanism(scale, **options)
            case DiscreteGaussian(multiplier=sigma):
                one = pld.from_discrete_gaussian_mechanism(sigma, 1, **options)
        one = one.self_compose(count) if count > 1 else one
        total = one if total is None else total.compose(one)
    return total


def phase(rng):
    kind = int(rng.integers(6))
    count = int(log_uniform(rng, 1, 100))
    if kind == 0:
        return Gaussian(log_uniform(rng, 2, 50)), 1
    if kind == 1:
        return Laplace(log_uniform(rng, 2, 50)), int(rng.integers(1, 5))
    if kind == 2:
        return DiscreteGaussian(float(rng.integers(3, 20))), 1
    if kind == 3:
        return Poisson(log_uniform(rng, 1e-3, 0.1), Laplace(log_uniform(rng, 0.5, 5))), count
    return Poisson(log_uniform(rng, 1e-4, 0.05), Gaussian(log_uniform(rng, 0.1, 4))), count


@pytest.mark.parametrize("seed", range(12))
def test_dp_accounting_brackets_unlike_compositions(seed):
    rng = np.random.default_rng([seed, 7])
    parts = [phase(rng) for _ in range(2 + seed % 4)]
    delta = log_uniform(rng, 1e-6, 1e-3)
    low, high = A.PLD().bounds(Together(*(Repeat(event, count) for event, count in parts)), delta)
    assert low <= theirs(parts, True).get_epsilon_for_delta(delta) * (1 + 1e-6)
    assert high >= theirs(parts, False).get_epsilon_for_delta(delta) * (1 - 1e-6)


def gaussian_profile(mu, epsilon):
    """δ(ε) of a Gaussian, for every real ε."""
    return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def sampled_and_plain(rate, sigma, plain, epsilon):
    """δ(ε) of one Poisson-sampled Gaussian and one plain one: E over the first's loss of the second's profile."""
    q, mu, other = mpmath.mpf(rate), 1 / mpmath.mpf(sigma), 1 / mpmath.mpf(plain)

    def loss(z):
        return mpmath.log(1 - q + q * mpmath.exp(mu * z - mu**2 / 2))

    def remove(z):
        density = (1 - q) * mpmath.npdf(z) + q * mpmath.npdf(z - mu)
        return density * gaussian_profile(other, epsilon - loss(z))

    def add(z):
        return mpmath.npdf(z) * gaussian_profile(other, epsilon + loss(z))

    edges = [float(x) for x in np.arange(-12, float(mu) + 12.1, 1.0)]
    return max(mpmath.quad(remove, edges, maxdegree=5), mpmath.quad(add, edges, maxdegree=5))


@pytest.mark.parametrize(
    ("rate", "sigma", "plain", "delta"),
    [
        (0.001, 0.3, 10.0, 1e-5),
        (0.001, 0.1, 3.0, 1e-6),
        (0.05, 0.5, 20.0, 1e-8),
        (0.3, 1.0, 5.0, 1e-4),
        (1e-4, 0.15, 30.0, 1e-5),
    ],
)
def test_an_integral_lies_between_our_bounds(rate, sigma, plain, delta):
    low, high = A.PLD().bounds(Together(Gaussian(plain), Poisson(rate, Gaussian(sigma))), delta)
    with mpmath.workdps(DIGITS):
        assert sampled_and_plain(rate, sigma, plain, mpmath.mpf(high)) <= delta * (1 + 1e-9)
        assert sampled_and_plain(rate, sigma, plain, mpmath.mpf(low)) >= delta * (1 - 1e-9)
    assert high - low <= 2e-3 * high


@pytest.mark.parametrize(("scale", "plain", "delta"), [(0.5, 10.0, 1e-5), (2.0, 1.0, 1e-7), (0.1, 30.0, 1e-3)])
def test_an_integral_over_laplace_noise_lies_between_our_bounds(scale, plain, delta):
    low, high = A.PLD().bounds(Together(Gaussian(plain), Laplace(scale)), delta)

    def exact(epsilon):
        other, e = 1 / mpmath.mpf(plain), 1 / mpmath.mpf(scale)
        inside = mpmath.quad(
            lambda x: e / 2 * mpmath.exp(-e * (1 - x)) * gaussian_profile(other, epsilon - e * (2 * x - 1)),
            [k / 16 for k in range(17)],
        )
        ends = gaussian_profile(other, epsilon - e) + mpmath.exp(-e) * gaussian_profile(other, epsilon + e)
        return inside + ends / 2

    with mpmath.workdps(DIGITS):
        assert exact(mpmath.mpf(high)) <= delta * (1 + 1e-9)
        assert exact(mpmath.mpf(low)) >= delta * (1 - 1e-9)
    assert math.isfinite(high)

"""Adding a record to an asymmetric composition beside a release of rate one: the upper bound was below the truth."""

import math

import mpmath
import numpy as np
import pytest

from sordino import accounting as A
from sordino.events import Gaussian, Poisson, Together
from sordino.privacy_loss.lattice import Mesh, Sampled, base_ratio
from sordino.privacy_loss.pairs import GaussianPair


def exact_delta(sigma, rate, other, epsilon):
    """δ(ε) of Gaussian(σ) beside Poisson(rate, Gaussian(other)), both directions, by an integral of high precision."""
    mu, nu, q = 1 / mpmath.mpf(sigma), 1 / mpmath.mpf(other), mpmath.mpf(rate)

    def profile(e):
        return mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)

    def loss(z):
        return mpmath.log(1 - q + q * mpmath.exp(nu * z - nu**2 / 2))

    def remove(z):
        return ((1 - q) * mpmath.npdf(z) + q * mpmath.npdf(z - nu)) * profile(epsilon - loss(z))

    def add(z):
        return mpmath.npdf(z) * profile(epsilon + loss(z))

    edges = [float(x) for x in np.arange(-11, float(nu) + 11.1, 2.0)]
    return max(mpmath.quad(remove, edges, maxdegree=4), mpmath.quad(add, edges, maxdegree=4))


@pytest.mark.parametrize(("sigma", "rate", "other"), [(0.18, 0.1, 10.0), (0.1, 0.3, 2.0), (0.25, 0.02, 1.0)])
def test_a_release_of_little_noise_beside_a_sampled_one(sigma, rate, other):
    low, high = A.PLD().bounds(Together(Gaussian(sigma), Poisson(rate, Gaussian(other))), 1e-5)
    with mpmath.workdps(30):
        assert exact_delta(sigma, rate, other, mpmath.mpf(high)) <= 1e-5 * (1 + 1e-9)
        assert exact_delta(sigma, rate, other, mpmath.mpf(low)) >= 1e-5 * (1 - 1e-9)
    assert high - low <= 2e-3 * high


@pytest.mark.parametrize("rate", [1.0, 1 - 1e-12, 0.999, 0.3, 1e-6])
@pytest.mark.parametrize("epsilon", [0.0, 2.0, 20.0, 38.0, 45.0])
def test_atoms_of_one_release_dominate_its_profile_at_any_loss(rate, epsilon):
    """Balle, Barthe & Gaboardi 2018, in high precision; a cell whose mass goes to its wrong end has too small a δ."""
    with mpmath.workdps(40):
        mu, q, e = mpmath.mpf(6), mpmath.mpf(rate), mpmath.mpf(epsilon)

        def profile(x):
            return mpmath.ncdf(mu / 2 - x / mu) - mpmath.exp(x) * mpmath.ncdf(-mu / 2 - x / mu)

        left = 1 - mpmath.exp(e) * (1 - q)
        exact = {
            False: q * profile(mpmath.log(1 + (mpmath.exp(e) - 1) / q)),
            True: left * profile(e + mpmath.log(q / left)) if left > 0 else mpmath.mpf(0),
        }
    for add, truth in exact.items():
        atoms = Sampled(GaussianPair(6.0), rate).round_up(Mesh(0.05, 60.0, 1e-14), add)
        above = np.maximum(0.0, -np.expm1(np.minimum(epsilon - atoms.index * 0.05, 0.0)))
        found = float(above @ atoms.mass) + atoms.infinite
        assert float(truth) * (1 - 1e-9) <= found <= float(truth) * 1.01 + 2e-13


def test_ratios_near_the_smallest_loss_have_relative_precision():
    with mpmath.workdps(60):
        for rate in (1 - 1e-9, 0.5, 1e-3, 1e-8):
            bottom = math.log1p(-rate)
            for above in (1e-9, 1e-3, 0.3, 5.0, 50.0):
                loss = bottom + above * (1 + abs(bottom))
                exact = mpmath.log((mpmath.exp(mpmath.mpf(loss)) - 1 + mpmath.mpf(rate)) / mpmath.mpf(rate))
                found = float(base_ratio(rate, np.array([loss]))[0])
                # the loss itself is rounded: what that moves the ratio by is no error of ours
                room = (
                    4e-16
                    * (abs(loss) + abs(bottom))
                    * float(mpmath.exp(loss) / abs(mpmath.exp(mpmath.mpf(loss)) - 1 + mpmath.mpf(rate)))
                )
                assert found == pytest.approx(float(exact), rel=1e-12, abs=room + 1e-15)

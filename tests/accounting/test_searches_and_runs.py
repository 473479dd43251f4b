"""A search costs at least what one of its runs costs, however much a run costs."""

import math

import numpy as np
import pytest

from sordino import accounting as A
from sordino.accounting.accountants import search_bounds
from sordino.events import Gaussian, Poisson, Repeat, Together, TuneNegativeBinomial, TunePoisson
from sordino.privacy_loss.selection import Profile
from sordino.privacy_loss.soundness import Contradiction


def gaussian_epsilon(sigma, delta):
    """ε of one Gaussian release by bisection on its exact profile, in high precision."""
    import mpmath

    with mpmath.workdps(40):
        mu = 1 / mpmath.mpf(sigma)

        def excess(e):
            return mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu) - delta

        low, high = mpmath.mpf(0), mu**2 / 2 + 40 * mu + 1
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return float(low)


@pytest.mark.parametrize("sigma", [0.01, 0.025, 0.2, 3.0])
@pytest.mark.parametrize(
    "search", [lambda run: TunePoisson(run, 10.0), lambda run: TuneNegativeBinomial(run, 1.0, 0.1)]
)
def test_a_search_costs_at_least_one_of_its_runs(sigma, search):
    """At σ = 0.01 one run costs 5425; the search was priced at 714, where e^ε ends."""
    event = search(Gaussian(sigma))
    chance = -math.expm1(-event.mean) if isinstance(event, TunePoisson) else 1.0
    one_run = gaussian_epsilon(sigma, 1e-5 / chance)
    low, high = A.PLD().bounds(event, 1e-5)
    assert one_run * (1 - 1e-9) <= high
    assert low == pytest.approx(one_run, rel=1e-6)
    assert A.PLD().delta(event, one_run) >= chance * A.gaussian_delta(1 / sigma, one_run) * (1 - 1e-9)


def test_a_profile_is_read_between_its_points_however_large_epsilon_is():
    profile = Profile(np.array([0.0, 700.0, 1400.0]), np.array([1.0, 0.5, 0.25]))
    share = math.exp(-350) * -math.expm1(-350) / -math.expm1(-700)
    assert float(profile(np.array([1050.0]))[0]) == pytest.approx(0.5 - 0.25 * share, rel=1e-12)
    assert profile(np.array([0.0, 700.0, 1400.0, 5000.0])).tolist() == [1.0, 0.5, 0.25, 0.25]
    assert np.all(np.isfinite(profile.largest_neighbouring_chance(np.array([1e-12, 0.5, 1.0]))))


def test_a_search_priced_below_one_of_its_runs_is_not_returned(monkeypatch):
    class Cheap:
        def epsilon(self, delta, most):
            return 0.1

        def delta(self, epsilon):
            return 1e-9

    monkeypatch.setattr(search_bounds, "_bound_winner", lambda *given: Cheap())
    event = TunePoisson(Repeat(Poisson(0.02, Gaussian(0.9)), 50), 10.0)
    with pytest.raises(Contradiction, match="one run"):
        A.PLD().epsilon(event, 1e-5)
    with pytest.raises(Contradiction, match="one run"):
        A.PLD().delta(event, 0.5)


def test_the_lower_bound_of_a_search_beside_others_is_that_of_its_costliest_part():
    search = TunePoisson(Gaussian(5.0), 10.0)
    low, high = A.PLD().bounds(Together(search, Gaussian(3.0)), 1e-5)
    assert low == pytest.approx(A.PLD().epsilon(Gaussian(3.0), 1e-5), rel=1e-9)
    assert high >= A.PLD().bounds(search, 1e-5)[0]

"""No number that is not finite leaves a bound, and none that contradicts another."""

import math
from dataclasses import replace

import numpy as np
import pytest

from sordino import accounting as A
from sordino.events import Gaussian, Poisson, Repeat, Together
from sordino.privacy_loss import certified_bounds
from sordino.privacy_loss.composed_bounds import Setting, round_up_phases
from sordino.privacy_loss.lattice import Mesh, Sampled
from sordino.privacy_loss.pairs import DiscretePair, GaussianPair
from sordino.privacy_loss.soundness import Contradiction, NotFinite, require_all_finite, require_at_most, require_finite
from sordino.privacy_loss.spectra import Composed, compose_jumps, compose_masses
from sordino.privacy_loss.tilted_windows import Cumulant, Weighted, find_window

UNLIKE = Together(Gaussian(5.0), Repeat(Poisson(0.01, Gaussian(1.0)), 100))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_stopped(wrong):
    with pytest.raises(NotFinite):
        require_finite("a number", wrong)
    with pytest.raises(NotFinite):
        require_all_finite("numbers", np.array([0.0, wrong]))
    with pytest.raises(NotFinite):
        Composed(0, 0.1, 1.0, 0.0, np.array([0.5, wrong]), 0.0)


def test_a_nan_contradicts_everything():
    for low, high in ((math.nan, 1.0), (1.0, math.nan)):
        with pytest.raises(NotFinite):
            require_at_most(low, high, "bounds")
    with pytest.raises(Contradiction):
        require_at_most(1.001, 1.0, "bounds")
    require_at_most(1.0, math.inf, "bounds")


def test_a_mass_gone_astray_is_noticed():
    half = DiscretePair(np.array([-1.0, 1.0]), np.array([0.1, 0.3]), np.array([0.3, 0.1]))
    with pytest.raises(Contradiction, match="add up to one"):
        Sampled(half).round_up(Mesh(0.01, 50.0, 1e-12), False)


@pytest.mark.parametrize("wrong", ["compose_upper_bound", "compose_lower_bound"])
def test_a_composition_that_is_wrong_by_a_tenth_is_not_returned(monkeypatch, wrong):
    right = getattr(certified_bounds, wrong)

    class Off:
        def __init__(self, bound):
            self.bound = bound
            self.floor, self.length = getattr(bound, "floor", 0.0), getattr(bound, "length", 0)

        def epsilon(self, delta):
            return (0.9 if wrong == "compose_upper_bound" else 1.1) * self.bound.epsilon(delta)

    monkeypatch.setattr(certified_bounds, wrong, lambda *given: Off(right(*given)))
    with pytest.raises(Contradiction):
        A.PLD().bounds(UNLIKE, 1e-5)


def test_an_upper_bound_below_one_part_is_not_returned(monkeypatch):
    right = certified_bounds.compose_upper_bound

    class Low:
        floor, length = 0.0, 0

        def epsilon(self, delta):
            return 0.3

    certified_bounds._bound_phase_epsilon.cache_clear()

    def compose(phases, *rest):
        return Low() if len(phases) > 1 else right(phases, *rest)

    monkeypatch.setattr(certified_bounds, "compose_upper_bound", compose)
    with pytest.raises(Contradiction, match="one part"):
        A.PLD().epsilon(UNLIKE, 1e-5)


def test_the_lower_bound_uses_another_lattice_and_another_tilt():
    setting = Setting(2.0, Mesh(0.01, 50.0, 1e-12), 1.0, 3.0, 0.5)
    other = setting.for_lower_bound(1.1)
    assert other.theta != setting.theta
    assert other.jump_theta != setting.jump_theta
    assert other.limit != setting.limit
    ratio = other.mesh.step / setting.mesh.step
    assert all(abs(ratio * k - round(ratio * k)) > 1e-3 for k in range(1, 30))


def test_jumps_beside_a_bulk_that_has_died_away_are_finite_and_right():
    """The bulk of a wide phase is silent at frequencies that the jumps of a narrow one need."""
    step, theta = 0.01, 0.4
    phases = ((Sampled(GaussianPair(0.1)), 1), (Sampled(GaussianPair(2.0), 0.001), 10))
    parts, _ = round_up_phases(phases, False, Mesh(step, 60.0, 1e-12))
    limit = 100
    bulk = [Weighted(p.index[p.index <= limit], p.log_mass[p.index <= limit], p.count) for p in parts]
    jumps = [Weighted(p.index[p.index > limit], p.log_mass[p.index > limit], p.count) for p in parts]
    frame = find_window(Cumulant(parts, step), theta, step, 1e-14)
    whole = compose_masses(parts, theta, step, frame)
    without = compose_masses(bulk, theta, step, frame)
    apart = compose_jumps(bulk, jumps, theta, step, frame)
    scale = lambda one: math.exp(one.log_total - whole.log_total)  # noqa: E731
    together = without.masses * scale(without) + apart.masses * scale(apart)
    assert np.abs(together - whole.masses).max() <= whole.error + without.error + apart.error
    # and a jump's masses keep their relative precision where the bulk has none
    assert apart.error < 1e-12
    assert replace(whole, error=0.0).masses.sum() == pytest.approx(1.0, abs=1e-9)

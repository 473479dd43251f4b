"""Live answers are PLD's, at most a lattice point above."""

import pytest

from sordino.accounting import PLD, Live
from sordino.events import Gaussian, NonPrivate, Poisson, Repeat, Together

STEP = Poisson(0.01, Gaussian(1.1))


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 300, 7200])
def test_a_live_epsilon_is_a_bound_and_hardly_above_plds(count):
    event = Repeat(STEP, count)
    lower, upper = PLD().bounds(event, 1e-5)
    assert lower <= Live().epsilon(event, 1e-5) <= upper * 1.002


def test_a_run_of_several_phases_is_plds():
    event = Together(Repeat(STEP, 30), Gaussian(5.0))
    assert Live().epsilon(event, 1e-5) == PLD().epsilon(event, 1e-5)


def test_what_has_no_guarantee_has_none_live():
    assert Live().epsilon(Repeat(NonPrivate("why"), 3), 1e-5) == float("inf")


def test_counting_on_asks_the_same_meter():
    live = Live()
    spent = [live.epsilon(Repeat(STEP, k), 1e-5) for k in range(1, 200)]
    assert spent == sorted(spent)
    assert len(live._meters) == 1

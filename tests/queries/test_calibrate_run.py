"""Noise and length of a run from a budget: against a search that tries every length, and what no budget can meet."""

import pytest

from sordino.accounting import PLD, BudgetExhausted
from sordino.events import Gaussian, NonPrivate, Poisson, Repeat, Together
from sordino.queries.calibrate_run import calibrate_noise, calibrate_steps, find_linear_form

DELTA = 1e-5


def run(count, multiplier=1.5):
    return Repeat(Poisson(0.1, Gaussian(multiplier)), count)


def test_the_steps_are_the_most_that_a_search_of_all_lengths_finds():
    costs = [PLD().epsilon(run(count), DELTA) for count in range(1, 13)]
    for budget in (costs[0], costs[4], (costs[6] + costs[7]) / 2, costs[11]):
        wanted = max(count for count, cost in enumerate(costs, 1) if cost <= budget)
        assert calibrate_steps(run, 12, budget, DELTA) == wanted


def test_a_budget_that_one_step_exceeds_is_refused():
    with pytest.raises(BudgetExhausted, match="the first step would exceed it"):
        calibrate_steps(run, 12, 0.99 * PLD().epsilon(run(1), DELTA), DELTA)


def test_a_run_without_a_guarantee_has_no_length_and_no_noise():
    def leak(size):
        return Together(run(10, float(size)), NonPrivate("the weights as they are"))

    with pytest.raises(ValueError, match="no number of steps keeps to it"):
        calibrate_steps(leak, 12, 1.0, DELTA)
    with pytest.raises(ValueError, match="no noise meets it"):
        calibrate_noise(leak, 1.0, DELTA)


def test_what_is_released_besides_the_steps_may_cost_too_much_by_itself():
    def event(multiplier):
        return Together(Gaussian(1.0), run(10, multiplier))

    besides = PLD().epsilon(Gaussian(1.0), DELTA)
    with pytest.raises(ValueError, match="what is released besides the steps costs"):
        calibrate_noise(event, 0.99 * besides, DELTA)
    sigma = calibrate_noise(event, 1.01 * besides, DELTA)
    assert PLD().epsilon(event(sigma), DELTA) <= 1.01 * besides


@pytest.mark.parametrize("multiplier", [0.5, 3.0])
def test_a_form_that_is_linear_is_right_at_other_multipliers(multiplier):
    def form_at(s):
        return {"type": "Together", "events": [{"multiplier": s}, [2.0 * s, "name"], 7]}

    form = find_linear_form(form_at(1.0), form_at(2.0))
    assert form is not None
    assert form(multiplier) == form_at(multiplier)


@pytest.mark.parametrize("two", [[4.0, 1.0], [2.0], {"a": 2.0}, [2.0, "1.0"]])
def test_a_form_with_a_part_that_is_not_linear_is_none(two):
    assert find_linear_form([1.0, 1.0], two) is None

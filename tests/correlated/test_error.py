"""The error that correlated noise leaves in the parameters: measured in real runs, and against DP-SGD's at the same ε."""

import json
import math
from pathlib import Path

import pytest
import torch

import sordino as sd
from bench.correlated_accuracy import RESULTS, write_table
from sordino.accounting import PLD, calibrate
from sordino.events import Correlated, CyclicPoisson, Gaussian, Poisson, Repeat
from sordino.matrix_factorization.strategies import error_in, sensitivity_of
from sordino.matrix_factorization.workloads import Workload
from tests.correlated.noise_runs import create_run, records

DELTA = 1e-6
STRATEGIES = [
    sd.Banded(1),
    sd.Banded(16),
    sd.Banded.for_workload(16, Workload(60)),
    sd.InverseBanded(16),
    sd.Buffered.for_steps(3, 60),
]


def error_by_formula(strategy, steps):
    """Returns the RMSE of the sum of all releases over the steps, for a multiplier and a bound of 1."""
    return error_in(strategy, Workload(steps)).root_mean_square / sensitivity_of(strategy, steps)


def error_in_run(strategy, *, steps, width, multiplier=1.0):
    """Returns the RMSE of the sum of all releases in a real run of noise alone."""
    private, model = create_run(strategy, multiplier=multiplier, width=width)
    total, squares = torch.zeros(width, dtype=torch.float64), 0.0
    for lot in private.draws(records(steps, width), sd.FixedOrder(1), steps=steps, expected_batch=1.0):
        private.backward(lot)
        total += model.weight.grad.double().flatten()
        squares += float((total**2).mean())
    return math.sqrt(squares / steps)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: f"{s.kind}-{s.vectors}")
def test_the_error_of_a_real_run_is_that_of_the_formula_within_two_percent(strategy):
    """With 40,000 coordinates the standard error is below 0.36 %, also if all steps of a coordinate were one number.

    The scale is raised by half a percent for rounding, so the margin is four standard errors: a false alarm in 10⁴ seeds,
    and the seed is fixed.
    """
    measured = error_in_run(strategy, steps=60, width=40_000)
    assert measured == pytest.approx(error_by_formula(strategy, 60), rel=0.02)


def ratio(epsilon, epochs, strategy, lots):
    """Returns the RMSE with banded noise over DP-SGD's, at the same ε, expected lots and number of steps."""
    steps, bands = epochs * lots, strategy.bands
    plain = calibrate(lambda sigma: Repeat(Poisson(1 / lots, Gaussian(sigma)), steps), PLD(), epsilon, DELTA)
    banded = calibrate(
        lambda sigma: CyclicPoisson(bands / lots, bands, steps, Correlated(sigma, strategy.describe())),
        PLD(), epsilon, DELTA,
    )  # fmt: skip
    return banded * error_by_formula(strategy, steps) / (plain * error_by_formula(sd.Banded(1), steps))


@pytest.mark.parametrize(
    ("epsilon", "create", "most"),
    [
        (3.0, sd.Banded, 0.47),  # the issue's own figure is 0.44, with the best of all numbers of bands
        (3.0, lambda b: sd.Banded.for_workload(b, Workload(2000)), 0.40),
        (1.0, lambda b: sd.Banded.for_workload(b, Workload(2000)), 0.68),
    ],
    ids=["square root", "optimised", "optimised, little ε"],
)
def test_four_epochs_leave_less_than_half_of_the_error_of_dp_sgd(epsilon, create, most):
    assert ratio(epsilon, 4, create(32), 500) <= most


@pytest.mark.slow
def test_real_runs_of_four_epochs_at_epsilon_three_have_less_than_half_of_the_error_of_dp_sgd():
    """2,000 steps of noise alone with either noise, at the multipliers that ε = 3 needs with lots of 1/500.

    The ratio by the formula is 0.40. With 2,000 coordinates its standard error is below 2.3 %.
    """
    steps, bands = 2000, 32
    strategy = sd.Banded.for_workload(bands, Workload(steps))
    plain = calibrate(lambda sigma: Repeat(Poisson(1 / 500, Gaussian(sigma)), steps), PLD(), 3.0, DELTA)
    banded = calibrate(
        lambda sigma: CyclicPoisson(bands / 500, bands, steps, Correlated(sigma, strategy.describe())),
        PLD(), 3.0, DELTA,
    )  # fmt: skip
    measured = error_in_run(strategy, steps=steps, width=2000, multiplier=banded)
    assert measured <= 0.5 * error_in_run(sd.Banded(1), steps=steps, width=2000, multiplier=plain)


def test_forty_epochs_gain_with_small_lots_and_nothing_with_large_ones():
    """Forty epochs are 20,000 steps with lots of 1/500, and 2,000 with lots of 1/50."""
    assert ratio(3.0, 40, sd.Banded(8), 500) < 0.8
    assert all(ratio(3.0, 40, sd.Banded(bands), 50) > 1 for bands in (2, 4, 8))


def test_the_page_has_the_accuracies_that_were_measured():
    """The table of the how-to is written from the results of the bench."""
    page = Path(__file__).parents[2] / "docs" / "how_to" / "correlated_noise.md"
    assert write_table(json.loads(RESULTS.read_text())) in page.read_text()

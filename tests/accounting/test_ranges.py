"""No function of the accounting, and no event, takes what is not a number or lies outside of its range."""

import inspect
import math
from collections.abc import Callable

import numpy as np
import pytest

from sordino import accounting as A
from sordino import events as E
from sordino.accounting import meaning
from sordino.accounting.calibration import rejection as rejecting
from sordino.events import training

NOT_NUMBERS = ("1", b"1", math.nan, object(), [1.0, 2.0])
OUTSIDE = {
    "real": (math.inf, -math.inf),
    "positive": (0, -1.0, math.inf, -math.inf),
    "at least zero": (-1.0, -1e-300, math.inf, -math.inf),
    "zero to infinity": (-1.0, -1e-300, -math.inf),
    "inside zero to one": (0, 1, -0.1, 1.5, math.inf),
    "below one": (1, -0.1, 1.5, math.inf),
    "zero to one": (-0.1, 1.5, math.inf, -math.inf),
    "rate": (0, -0.1, 1.5, math.inf),
    "count": (0, -1, 1.5, math.inf, 2.0),
    "count or none": (-1, 1.5, math.inf),
    "whole from two": (0, 1, -1, 1.5),
    "order": (0.5, 1.0, -2.0, math.inf),
    "shape": (-1.0, -2.0, math.inf),
}
STEP = E.Poisson(0.01, E.Gaussian(1.1))
RUN = E.Repeat(STEP, 10)

# A callable, arguments that it takes, and the range of each argument that is a number.
FUNCTIONS: dict[str, tuple[Callable[..., object], dict[str, object], dict[str, str]]] = {
    "gaussian_delta": (A.gaussian_delta, {"mu": 1.0, "epsilon": 1.0}, {"mu": "at least zero", "epsilon": "real"}),
    "gaussian_epsilon": (
        A.gaussian_epsilon,
        {"mu": 1.0, "delta": 1e-5},
        {"mu": "at least zero", "delta": "zero to one"},
    ),
    "gaussian_mu": (
        A.gaussian_mu,
        {"epsilon": 1.0, "delta": 1e-5},
        {"epsilon": "at least zero", "delta": "inside zero to one"},
    ),
    "analytic_gaussian": (
        A.analytic_gaussian,
        {"epsilon": 1.0, "delta": 1e-5, "sensitivity": 1.0},
        {"epsilon": "positive", "delta": "inside zero to one", "sensitivity": "positive"},
    ),
    "classical_gaussian": (
        A.classical_gaussian,
        {"epsilon": 1.0, "delta": 1e-5, "sensitivity": 1.0},
        {"epsilon": "positive", "delta": "inside zero to one", "sensitivity": "positive"},
    ),
    "laplace": (
        A.laplace,
        {"epsilon": 1.0, "sensitivity": 1.0},
        {"epsilon": "positive", "sensitivity": "positive"},
    ),
    "exponential": (
        A.exponential,
        {"epsilon": 1.0, "sensitivity": 1.0},
        {"epsilon": "positive", "sensitivity": "positive"},
    ),
    "gaussian_tradeoff": (
        A.gaussian_tradeoff,
        {"mu": 1.0, "alpha": 0.1},
        {"mu": "at least zero", "alpha": "zero to one"},
    ),
    "subsampled_tradeoff": (
        A.subsampled_tradeoff,
        {"mu": 1.0, "rate": 0.1, "alpha": 0.1},
        {"mu": "at least zero", "rate": "rate", "alpha": "zero to one"},
    ),
    "epsilon_delta_tradeoff": (
        A.epsilon_delta_tradeoff,
        {"epsilon": 1.0, "delta": 1e-5, "alpha": 0.1},
        {"epsilon": "at least zero", "delta": "zero to one", "alpha": "zero to one"},
    ),
    "Tradeoff": (
        lambda epsilon, delta: A.Tradeoff(np.array([0.0, epsilon]), np.array([0.1, delta])),
        {"epsilon": 1.0, "delta": 1e-5},
        {"epsilon": "at least zero", "delta": "zero to one"},
    ),
    "Tradeoff called": (
        lambda alpha: A.Tradeoff(np.array([0.0, 1.0]), np.array([0.1, 0.01]))(alpha),
        {"alpha": 0.1},
        {"alpha": "zero to one"},
    ),
    "tradeoff": (
        lambda points: A.tradeoff(E.Gaussian(1.0), points=points),
        {"points": 4},
        {"points": "whole from two"},
    ),
    "sequential": (
        lambda epsilon, delta: A.sequential([(1.0, 0.0), (epsilon, delta)]),
        {"epsilon": 1.0, "delta": 1e-5},
        {"epsilon": "at least zero", "delta": "zero to one"},
    ),
    "parallel": (
        lambda epsilon, delta: A.parallel([(1.0, 0.0), (epsilon, delta)]),
        {"epsilon": 1.0, "delta": 1e-5},
        {"epsilon": "at least zero", "delta": "zero to one"},
    ),
    "advanced_drv": (
        A.advanced_drv,
        {"epsilon": 0.1, "delta": 1e-8, "count": 10, "slack": 1e-5},
        {"epsilon": "at least zero", "delta": "zero to one", "count": "count", "slack": "inside zero to one"},
    ),
    "advanced_kov": (
        A.advanced_kov,
        {"epsilon": 0.1, "delta": 1e-8, "count": 10, "slack": 1e-5},
        {"epsilon": "at least zero", "delta": "zero to one", "count": "count", "slack": "inside zero to one"},
    ),
    "optimal": (
        A.optimal,
        {"epsilon": 0.1, "delta": 1e-8, "count": 10, "total_delta": 1e-5},
        {"epsilon": "at least zero", "delta": "zero to one", "count": "count", "total_delta": "inside zero to one"},
    ),
    "optimal_delta": (
        A.optimal_delta,
        {"epsilon": 0.1, "delta": 1e-8, "count": 10, "total_epsilon": 0.5},
        {"epsilon": "at least zero", "delta": "zero to one", "count": "count", "total_epsilon": "at least zero"},
    ),
    "group_privacy": (
        A.group_privacy,
        {"epsilon": 0.1, "delta": 1e-8, "size": 10},
        {"epsilon": "at least zero", "delta": "zero to one", "size": "count"},
    ),
    "amplify_by_sampling": (
        A.amplify_by_sampling,
        {"epsilon": 0.1, "delta": 1e-8, "rate": 0.1},
        {"epsilon": "at least zero", "delta": "zero to one", "rate": "rate"},
    ),
    "post_processed": (
        A.post_processed,
        {"epsilon": 0.1, "delta": 1e-8},
        {"epsilon": "at least zero", "delta": "zero to one"},
    ),
    "expected_runs": (A.expected_runs, {"shape": 1.0, "stop": 0.1}, {"shape": "shape", "stop": "inside zero to one"}),
    "liu_talwar": (A.liu_talwar, {"epsilon": 0.1}, {"epsilon": "at least zero"}),
    "shuffle_lower_bound": (
        A.shuffle_lower_bound,
        {"multiplier": 1.1, "batches": 10, "epochs": 2, "delta": 1e-5},
        {"multiplier": "positive", "batches": "count", "epochs": "count", "delta": "inside zero to one"},
    ),
    "projected_clipping": (
        A.projected_clipping,
        {"multiplier": 1.1, "projections": 32, "lost": 1e-14},
        {"multiplier": "positive", "projections": "count", "lost": "inside zero to one"},
    ),
    "chance_of_acceptance": (
        A.chance_of_acceptance,
        {"batch": 10, "quantile": 0.5},
        {"batch": "count", "quantile": "inside zero to one"},
    ),
    "repeat_until_threshold": (
        A.repeat_until_threshold,
        {"epsilon": 0.1, "delta": 1e-8, "give_up": 0.1, "slack": 0.0},
        {
            "epsilon": "at least zero",
            "delta": "zero to one",
            "give_up": "inside zero to one",
            "slack": "at least zero",
        },
    ),
    "best_of": (
        A.best_of,
        {"batches": 2, "rate": 0.1, "multiplier": 1.1, "score_multiplier": 5.0, "steps": 3},
        {
            "batches": "count",
            "rate": "rate",
            "multiplier": "positive",
            "score_multiplier": "positive",
            "steps": "count",
        },
    ),
    "rejection": (
        A.rejection,
        {
            "rate": 0.004,
            "multiplier": 1.1,
            "steps": 10,
            "batch": 20,
            "quantile": 0.5,
            "delta": 1e-5,
            "delta_of_a_try": 1e-11,
            "give_up": 0.5,
            "slack": 0.02,
        },
        {
            "rate": "rate",
            "multiplier": "positive",
            "steps": "count",
            "batch": "count",
            "quantile": "inside zero to one",
            "delta": "inside zero to one",
            "delta_of_a_try": "inside zero to one",
            "give_up": "inside zero to one",
            "slack": "at least zero",
        },
    ),
    "Rejection": (
        A.Rejection,
        {"tries": 10.0, "epsilon_of_a_try": 0.1, "epsilon_of_a_step": 0.2, "epsilon": 3.0, "delta": 1e-5},
        {
            "tries": "zero to infinity",
            "epsilon_of_a_try": "at least zero",
            "epsilon_of_a_step": "at least zero",
            "epsilon": "at least zero",
            "delta": "inside zero to one",
        },
    ),
    "calibrate": (
        lambda epsilon, delta, start, accuracy: A.calibrate(
            E.Gaussian, A.RDP(), epsilon, delta, start=start, accuracy=accuracy
        ),
        {"epsilon": 1.0, "delta": 1e-5, "start": 1.0, "accuracy": 1e-3},
        {"epsilon": "positive", "delta": "inside zero to one", "start": "positive", "accuracy": "inside zero to one"},
    ),
    "RDP": (lambda order: A.RDP(orders=(order, 2.0, 8.0)), {"order": 1.5}, {"order": "order"}),
    "RDP.profile": (
        lambda epsilon: A.RDP(orders=(2.0,)).profile(RUN)(epsilon),
        {"epsilon": 1.0},
        {"epsilon": "at least zero"},
    ),
    "Moments": (A.Moments, {"most": 4}, {"most": "count"}),
    "PLD": (A.PLD, {"tolerance": 1e-4}, {"tolerance": "inside zero to one"}),
    "PLD.bounds": (lambda delta: A.PLD().bounds(RUN, delta), {"delta": 1e-5}, {"delta": "below one"}),
    "PLD.delta_bounds": (
        lambda epsilon: A.PLD().delta_bounds(RUN, epsilon),
        {"epsilon": 1.0},
        {"epsilon": "at least zero"},
    ),
    "Meter": (lambda delta: A.Meter(STEP, delta), {"delta": 1e-5}, {"delta": "inside zero to one"}),
    "Meter.epsilon": (lambda count: A.Meter(STEP, 1e-5).epsilon(count), {"count": 3}, {"count": "count or none"}),
    "tier": (meaning.tier, {"epsilon": 1.0}, {"epsilon": "zero to infinity"}),
    "percent": (meaning.percent, {"share": 0.5}, {"share": "zero to infinity"}),
    "training_event": (
        training.training_event,
        {"rate": 0.1, "release": E.Gaussian(1.0), "steps": 10},
        {"rate": "rate", "steps": "count"},
    ),
    "training_event in passes": (
        lambda rate, steps: training.training_event(rate, E.Gaussian(1.0), steps, "shuffle"),
        {"rate": 0.1, "steps": 10},
        {"rate": "rate", "steps": "count"},
    ),
    "passes_event": (
        lambda rate, passes: training.passes_event(rate, E.Gaussian(1.0), passes, "shuffle"),
        {"rate": 0.1, "passes": 10},
        {"rate": "rate", "passes": "count"},
    ),
    "lots_in_a_pass": (training.lots_in_a_pass, {"rate": 0.1}, {"rate": "rate"}),
    "Gaussian": (E.Gaussian, {"multiplier": 1.0}, {"multiplier": "positive"}),
    "Laplace": (E.Laplace, {"scale": 1.0}, {"scale": "positive"}),
    "Exponential": (E.Exponential, {"epsilon": 1.0}, {"epsilon": "positive"}),
    "DiscreteGaussian": (E.DiscreteGaussian, {"multiplier": 1.0}, {"multiplier": "positive"}),
    "RandomisedResponse": (
        E.RandomisedResponse,
        {"flip": 0.5, "buckets": 3},
        {"flip": "rate", "buckets": "whole from two"},
    ),
    "Mixture": (
        lambda weight: E.Mixture((0.5, weight), (E.Gaussian(1.0), E.Gaussian(2.0))),
        {"weight": 0.25},
        {"weight": "zero to one"},
    ),
    "ProjectedClip": (
        E.ProjectedClip,
        {"multiplier": 1.0, "projections": 32},
        {"multiplier": "positive", "projections": "count"},
    ),
    "Poisson": (E.Poisson, {"rate": 0.1, "event": E.Gaussian(1.0)}, {"rate": "rate"}),
    "FixedSize": (
        E.FixedSize,
        {"batch_size": 10, "dataset_size": 100, "event": E.Gaussian(1.0)},
        {"batch_size": "count", "dataset_size": "count"},
    ),
    "TruncatedPoisson": (
        E.TruncatedPoisson,
        {"rate": 0.1, "dataset_size": 100, "max_batch": 20, "event": E.Gaussian(1.0)},
        {"rate": "rate", "dataset_size": "count", "max_batch": "count"},
    ),
    "Correlated": (E.Correlated, {"multiplier": 3.0, "strategy": ("banded", 4)}, {"multiplier": "positive"}),
    "CyclicPoisson": (
        E.CyclicPoisson,
        {"rate": 0.1, "groups": 4, "steps": 16, "event": E.Correlated(3.0, ("banded", 4))},
        {"rate": "rate", "groups": "count", "steps": "count"},
    ),
    "FixedOrder": (
        E.FixedOrder,
        {"steps": 16, "separation": 4, "event": E.Correlated(3.0, ("banded", 4))},
        {"steps": "count", "separation": "count"},
    ),
    "BallsInBins": (E.BallsInBins, {"bins": 10, "event": E.Gaussian(1.0)}, {"bins": "count"}),
    "Repeat": (E.Repeat, {"event": E.Gaussian(1.0), "count": 10}, {"count": "count"}),
    "Group": (E.Group, {"event": E.Gaussian(1.0), "size": 3}, {"size": "count"}),
    "TunePoisson": (E.TunePoisson, {"event": E.Gaussian(1.0), "mean": 10.0}, {"mean": "positive"}),
    "TuneNegativeBinomial": (
        E.TuneNegativeBinomial,
        {"event": E.Gaussian(1.0), "shape": 1.0, "stop": 0.1},
        {"shape": "shape", "stop": "inside zero to one"},
    ),
}
ACCOUNTANTS = {
    "PLD": A.PLD(),
    "RDP": A.RDP(),
    "Moments": A.Moments(),
    "Basic": A.Basic(),
    "Advanced": A.Advanced(),
    "Strong": A.Strong(),
    "GaussianCLT": A.GaussianCLT(),
    "Live": A.Live(),
}
for _name, _accountant in ACCOUNTANTS.items():
    FUNCTIONS[f"{_name}.epsilon"] = (
        lambda delta, _accountant=_accountant: _accountant.epsilon(RUN, delta),
        {"delta": 1e-5},
        {"delta": "below one"},
    )
    FUNCTIONS[f"{_name}.delta"] = (
        lambda epsilon, _accountant=_accountant: _accountant.delta(RUN, epsilon),
        {"epsilon": 1.0},
        {"epsilon": "at least zero"},
    )
NO_NUMBERS = {
    "OPACUS_ORDERS": "a constant",
    "ORDERS": "a constant",
    "Accountant": "a protocol",
    "Unsupported": "an error",
    "Budget": "a file, tested with the budget",
    "BudgetExhausted": "an error",
    "relation_of": "takes an event",
    "Batch": "takes an event",
    "Shuffle": "takes an event",
    "Together": "takes events",
    "Event": "the base class",
    "NonPrivate": "takes a sentence",
    "Relation": "takes a name",
    "canonical": "takes an event",
    "children": "takes an event",
    "compose": "takes events",
    "event_counts": "takes an event",
    "from_json": "makes an event, which checks its own fields",
    "relations": "takes an event",
    "to_json": "takes an event",
    "is_private": "takes an event",
    "register_event": "takes a class",
    "walk": "takes an event",
}
ARRAYS = {"Tradeoff", "RDP.profile"}
"""These take arrays."""
CASES = [(name, argument) for name, (_, _, ranges) in FUNCTIONS.items() for argument in ranges]


def test_every_public_name_is_in_the_table():
    named = {name.split(".")[0].split(" ")[0] for name in FUNCTIONS} | set(NO_NUMBERS)
    assert set(A.__all__) | set(E.__all__) <= named
    functions = [name for name, value in vars(rejecting).items() if inspect.isfunction(value)]
    assert {name for name in functions if not name.startswith("_")} - {"dataclass", "advanced_kov"} <= named


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_in_range_are_taken(name):
    function, arguments, _ = FUNCTIONS[name]
    function(**arguments)


@pytest.mark.parametrize(("name", "argument"), CASES)
def test_what_is_no_number_or_out_of_range_is_refused(name, argument):
    function, arguments, ranges = FUNCTIONS[name]
    for wrong in (*NOT_NUMBERS, True, *OUTSIDE[ranges[argument]]):
        if name in ARRAYS and wrong is True:
            continue  # numpy made a number of it before it was passed
        if (argument == "alpha" or name in ARRAYS) and isinstance(wrong, list):
            wrong = [0.1, math.nan]  # an array is fine, one with a NaN in it is not
        with pytest.raises((ValueError, TypeError)):
            function(**{**arguments, argument: wrong})


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if "event" in FUNCTIONS[name][1]])
def test_what_is_no_event_is_refused(name):
    function, arguments, _ = FUNCTIONS[name]
    for wrong in (1.0, "Gaussian(1.0)", None, math.nan):
        with pytest.raises(TypeError):
            function(**{**arguments, "event": wrong})


def test_an_order_of_one_half_no_longer_prints_zero():
    """RDP(orders=(0.5, 2, 8)) printed ε = 0 for a run that costs 8.67."""
    training_run = E.Repeat(E.Poisson(0.05, E.Gaussian(0.8)), 1000)
    with pytest.raises(ValueError, match="orders"):
        A.RDP(orders=(0.5, 2, 8)).epsilon(training_run, 1e-5)
    assert A.RDP(orders=(2, 8)).epsilon(training_run, 1e-5) > A.PLD().epsilon(training_run, 1e-5) > 8


def test_large_numbers_in_range_are_answered_without_overflow():
    assert A.group_privacy(500.0, 1e-300, 3) == (1500.0, 1.0)
    assert A.amplify_by_sampling(2000.0, 0.0, 0.5)[0] == pytest.approx(2000 + math.log(0.5))
    assert A.gaussian_epsilon(1e200, 1e-5) == math.inf
    assert A.gaussian_delta(1e200, 1.0) == 1.0
    assert float(A.epsilon_delta_tradeoff(5000.0, 1e-5, 1e-320)) == 0.0
    assert float(A.epsilon_delta_tradeoff(5000.0, 1e-5, 0.0)) == pytest.approx(1 - 1e-5)
    assert A.repeat_until_threshold(800.0, 1e-5, 0.1, 0.0) == (1600.0, 1.0)
    assert A.advanced_drv(800.0, 0.0, 2, 1e-5)[0] == math.inf


def test_a_count_beyond_the_whole_numbers_of_floats_is_refused():
    with pytest.raises(ValueError, match="21 digits"):
        E.Repeat(E.Gaussian(1.0), 10**20)
    with pytest.raises(ValueError, match="digits"):
        E.Gaussian(10**400)

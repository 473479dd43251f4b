"""Computes a scenario's curves: ε against epochs and noise, the trade-off curve, other samplers.

**Privacy:** all points are upper bounds, and the trade-off curve bounds every attack. A point without a finite ε is null.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from sordino.accounting import PLD, Meter, Unsupported, calibrate, meaning, tradeoff
from sordino.app.planner.answer import find_noise
from sordino.app.planner.scenario import LEAST_NOISE, Scenario
from sordino.events import Correlated, Event, FixedOrder, Gaussian
from sordino.events.training import lots_in_a_pass, passes_event
from sordino.matrix_factorization.strategies import Banded, error_in, sensitivity_of
from sordino.matrix_factorization.workloads import Workload

_MANY_LOTS = 200_000
"""Beyond this, curves are drawn through fewer points."""
_MANY_STEPS = 50_000
"""Beyond this, the error of correlated noise is not drawn."""
_MOST_BANDS = 64
"""The error is drawn up to so many bands, or to those of the scenario."""
_BEND = (0.002, 0.005, 0.01, 0.02, 0.035)
"""Shares of the epochs at which ε still rises steeply."""
_REACH = 3.0
"""The noise is shown from σ divided by this to σ times this."""
_PASSES = {
    "balls-in-bins": "Balls in bins: each record in one lot per epoch, by its own choice",
    "shuffle": "Shuffled epochs, as most data loaders draw (an upper bound: no amplification is claimed)",
}
"""Ways to draw in whole passes, as the page says it."""


@lru_cache(maxsize=64)
def curves(scenario: Scenario) -> dict[str, Any]:
    """Returns the curves of a scenario that the planner's page draws.

    >>> drawn = curves(Scenario(1000, 100, 2, 1e-5, multiplier=2.0))
    >>> sorted(drawn)
    ['attack', 'bands', 'epochs', 'noise', 'otherwise', 'tradeoff']
    """
    multiplier = find_noise(scenario)
    event = scenario.event(multiplier)
    use_fewer_points = scenario.lots > _MANY_LOTS
    curve = tradeoff(event, points=14 if use_fewer_points else 40)
    alpha = np.unique(np.concatenate([np.geomspace(1e-5, 1, 51), np.linspace(0, 1, 51)]))
    attack = meaning.attack(event, curve)
    return {
        "epochs": _epsilon_by_epochs(scenario, multiplier, 12 if use_fewer_points else 40),
        "noise": _epsilon_by_noise(scenario, multiplier, 11 if use_fewer_points else 31),
        "tradeoff": {"x": alpha.tolist(), "y": curve.power(alpha).tolist()},
        "attack": {
            "mu": _finite_or_none(attack.mu),
            "hits": [[meaning.percent(a), meaning.percent(b)] for a, b in attack.hits],
        },
        "otherwise": _epsilon_by_sampler(scenario, multiplier),
        "bands": _error_by_bands(scenario, multiplier),
    }


def _epsilon_by_epochs(scenario: Scenario, multiplier: float, points: int) -> dict[str, list[Any]]:
    """Returns a scenario's curve of ε up to twice the epochs asked for."""
    if scenario.bands > 1:
        return _epsilon_by_cycles(scenario, multiplier)
    # The meter composes one lot many times and is read at each number of lots.
    meter = Meter(scenario.event(multiplier, 1).event, scenario.delta)  # type: ignore[attr-defined]
    shares = [*_BEND, *np.linspace(0, 2, points + 1)[1:]]
    lots = sorted({max(1, round(scenario.lots * share)) for share in shares})
    return {
        "x": [0.0, *(count * scenario.rate for count in lots)],
        "y": [0.0, *(_finite_or_none(meter.epsilon(count)) for count in lots)],
    }


def _epsilon_by_cycles(scenario: Scenario, multiplier: float) -> dict[str, list[Any]]:
    """Returns a scenario's curve of ε up to twice the epochs asked for, with correlated noise, of which every length of
    run is an event of its own.
    """
    method = PLD(tolerance=3e-4)
    lots = sorted({max(1, round(scenario.lots * share)) for share in np.linspace(0, 2, 13)[1:]})
    found = [_finite_or_none(method.epsilon(scenario.event(multiplier, count), scenario.delta)) for count in lots]
    return {"x": [0.0, *(count * scenario.rate for count in lots)], "y": [0.0, *found]}


def _error_by_bands(scenario: Scenario, multiplier: float) -> dict[str, list[Any]]:
    """Returns a scenario's curve of the error against the number of bands: RMSE of the parameters' sum over DP-SGD's at
    the same ε.

    Both see lots of the same expected size for as many steps. It has no points where there are so many lots that an answer
    would take long, or no finite ε.
    """
    method = PLD(tolerance=3e-4)
    epsilon = method.epsilon(scenario.event(multiplier), scenario.delta)
    # With b bands a record is drawn in every b-th step, at b times the rate, which cannot be above 1.
    tried = [1 << power for power in range(_MOST_BANDS.bit_length()) if (1 << power) * scenario.rate <= 1]
    bands = sorted({*tried, scenario.bands})
    # An answer must come while the user waits, and errors relative to DP-SGD need at least two points.
    if scenario.lots > _MANY_STEPS or not math.isfinite(epsilon) or len(bands) < 2:
        return {"x": [], "y": []}
    workload, errors = Workload(scenario.lots), []
    for count in bands:
        other, strategy = replace(scenario, bands=count), Banded(count)
        # Error for each unit of noise: what the strategy adds up to, over what one record can change in it.
        per_multiplier = error_in(strategy, workload).root_mean_square / sensitivity_of(strategy, scenario.lots)
        errors.append(calibrate(other.event, method, epsilon, scenario.delta) * per_multiplier)
    return {"x": bands, "y": [error / errors[0] for error in errors]}


def _epsilon_by_noise(scenario: Scenario, multiplier: float, points: int) -> dict[str, list[Any]]:
    """Returns a scenario's curve of ε around the noise asked for, which is the middle one of an odd number
    of points.
    """
    method = PLD(tolerance=3e-4)
    grid = [
        float(s)
        for s in np.geomspace(multiplier / _REACH, multiplier * _REACH, points)
        if s >= LEAST_NOISE * (1 - 1e-9)
    ]
    return {"x": grid, "y": [_finite_or_none(method.epsilon(scenario.event(s), scenario.delta)) for s in grid]}


def _epsilon_by_sampler(scenario: Scenario, multiplier: float) -> list[dict[str, Any]]:
    """Returns, beside a scenario's curves, its ε for other ways to draw the lots, for the same number of epochs in
    whole passes.
    """
    # Passes are whole, so a part of one is charged as one.
    if scenario.bands > 1:  # correlated noise has a known price with these two ways to draw only
        step = Correlated(multiplier, ("banded", scenario.bands))
        ordered = FixedOrder(scenario.lots, lots_in_a_pass(scenario.rate), step)
        return [
            {"how": how, "epsilon": _finite_or_none(PLD().epsilon(event, scenario.delta))}
            for how, event in {
                "Cyclic Poisson: each record in a group by its own coin, drawn by further coins": scenario.event(
                    multiplier
                ),
                "A fixed order, as a stream has (a record's contribution replaced by nothing)": ordered,
            }.items()
        ]
    passes = math.ceil(scenario.epochs * (1 - 1e-9))
    ways: dict[str, Event] = {"Poisson: each record by its own coin": scenario.event(multiplier)}
    for drawn, how in _PASSES.items():
        ways[how] = passes_event(scenario.rate, Gaussian(multiplier), passes, drawn)
    rows = []
    for how, event in ways.items():
        with suppress(Unsupported, OverflowError):
            rows.append({"how": how, "epsilon": _finite_or_none(PLD().epsilon(event, scenario.delta))})
    return rows


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None

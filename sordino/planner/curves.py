"""A setting's surroundings: ε against epochs, ε against noise, the trade-off curve, other ways to draw the lots.

**Privacy:** all points are upper bounds, the trade-off curve one on every attack; a point that has no finite ε is null.
"""

from __future__ import annotations

import math
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np

from sordino.accounting import PLD, Meter, Unsupported, tradeoff
from sordino.accounting import meaning as words
from sordino.events import BallsInBins, Event, Gaussian, Repeat, Shuffle
from sordino.planner.answer import noise
from sordino.planner.setting import LEAST_NOISE, Setting

_MANY_LOTS = 200_000
"""Beyond this, curves are drawn through fewer points."""
_BEND = (0.002, 0.005, 0.01, 0.02, 0.035)
"""Shares of the epochs at which ε still rises steeply."""
_REACH = 3.0
"""The noise is shown from σ divided by this to σ times this."""


@lru_cache(maxsize=64)
def curves(setting: Setting) -> dict[str, Any]:
    """What the page draws.

    >>> drawn = curves(Setting(1000, 100, 2, 1e-5, multiplier=2.0))
    >>> sorted(drawn)
    ['attack', 'epochs', 'noise', 'otherwise', 'tradeoff']
    """
    multiplier = noise(setting)
    event = setting.event(multiplier)
    few = setting.lots > _MANY_LOTS
    curve = tradeoff(event, points=14 if few else 40)
    alpha = np.unique(np.concatenate([np.geomspace(1e-5, 1, 51), np.linspace(0, 1, 51)]))
    attack = words.attack(event, curve)
    return {
        "epochs": _epochs(setting, multiplier, 12 if few else 40),
        "noise": _noise(setting, multiplier, 11 if few else 31),
        "tradeoff": {"x": alpha.tolist(), "y": curve.power(alpha).tolist()},
        "attack": {
            "mu": _finite(attack.mu),
            "hits": [[words.percent(a), words.percent(b)] for a, b in attack.hits],
        },
        "otherwise": _otherwise(setting, multiplier),
    }


def _epochs(setting: Setting, multiplier: float, points: int) -> dict[str, list[Any]]:
    """ε up to twice the epochs asked for."""
    meter = Meter(setting.event(multiplier, 1).event, setting.delta)  # type: ignore[attr-defined]
    shares = [*_BEND, *np.linspace(0, 2, points + 1)[1:]]
    lots = sorted({max(1, round(setting.lots * share)) for share in shares})
    return {
        "x": [0.0, *(count * setting.rate for count in lots)],
        "y": [0.0, *(_finite(meter.epsilon(count)) for count in lots)],
    }


def _noise(setting: Setting, multiplier: float, points: int) -> dict[str, list[Any]]:
    """ε around the noise asked for, which is the middle one of an odd number of points."""
    method = PLD(tolerance=3e-4)
    grid = [
        float(s)
        for s in np.geomspace(multiplier / _REACH, multiplier * _REACH, points)
        if s >= LEAST_NOISE * (1 - 1e-9)
    ]
    return {"x": grid, "y": [_finite(method.epsilon(setting.event(s), setting.delta)) for s in grid]}


def _otherwise(setting: Setting, multiplier: float) -> list[dict[str, Any]]:
    """ε when the lots are drawn in another way, as many epochs in whole passes."""
    lots, passes = max(1, int(1 / setting.rate)), math.ceil(setting.epochs * (1 - 1e-9))
    release = Gaussian(multiplier)
    ways: dict[str, Event] = {
        "Poisson: each record by its own coin": setting.event(multiplier),
        "Balls in bins: each record in one lot per epoch, by its own choice": Repeat(
            BallsInBins(lots, release), passes
        ),
        "Shuffled epochs, as most data loaders draw (an upper bound: no amplification is claimed)": Repeat(
            Shuffle(Repeat(release, lots)), passes
        ),
    }
    rows = []
    for how, event in ways.items():
        with suppress(Unsupported, OverflowError):
            rows.append({"how": how, "epsilon": _finite(PLD().epsilon(event, setting.delta))})
    return rows


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

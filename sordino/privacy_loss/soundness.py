"""Final checks of bounds: numbers must be finite, and two bounds on one thing must not contradict each other.

A comparison with NaN is false, so a NaN passes every test that asks whether something went wrong. It is therefore
stopped where it arises. Two certified bounds that contradict each other mean that one of them is wrong; nothing is
said then.

**Privacy:** these checks can only withhold a number, never change one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROUNDING = 1e-9  # relative difference between two bounds that rounding explains
_TINY = 1e-9  # and absolute


class NotFinite(ArithmeticError):
    """A number that has to be finite is not: a defect of this library, or an event beyond floating point."""


class Contradiction(ArithmeticError):
    """Two bounds that both hold contradict each other: a defect of this library. No number can be trusted."""


def require_finite(what: str, value: float) -> float:
    """Returns the value of a bound that passes its soundness check; raises `NotFinite` unless it is a finite number."""
    if not math.isfinite(value):
        raise NotFinite(f"{what} is {value}: must be finite; this is a defect, please report the event accounted")
    return value


def require_all_finite(what: str, values: NDArray[Any]) -> NDArray[Any]:
    """Returns the values of bounds that pass their soundness check; raises `NotFinite` unless all are finite numbers."""
    if not np.isfinite(values).all():
        wrong = int(np.count_nonzero(~np.isfinite(values)))
        raise NotFinite(
            f"{what}: {wrong} of {values.size} numbers are not finite; this is a defect, please report the event"
        )
    return values


def require_at_most(low: float, high: float, what: str) -> None:
    """Checks the soundness of two bounds on one thing: raises `Contradiction` when `low` is above `high`, and
    `NotFinite` when either is no number.
    """
    if math.isnan(low) or math.isnan(high):
        raise NotFinite(f"{what}: {low} and {high}: must be numbers; this is a defect, please report the event")
    if low > high + ROUNDING * abs(high) + _TINY:
        raise Contradiction(
            f"{what}: {low!r} > {high!r}: the two contradict each other, so neither is returned; this is a defect,"
            " please report the event accounted"
        )

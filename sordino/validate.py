"""Validates numbers that a user hands in.

Every message says what was given, what is needed and what to do.

Nothing here ever sees a private value: the messages quote public parameters only.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import SupportsFloat, SupportsIndex


def number(name: str, value: object) -> float:
    """Returns a real number that is not NaN; refuses booleans, strings and tensors with many elements."""
    # True would pass as 1 and "1" is probably a mistake, so both are refused.
    if isinstance(value, bool | str | bytes) or not isinstance(value, Real | SupportsFloat | SupportsIndex):
        raise TypeError(f"{name}={value!r}: must be a number, not {type(value).__name__}")
    try:
        result = float(value)
    except OverflowError:
        raise ValueError(f"{name}: a number of {len(str(value))} digits: must be below 1.8e308") from None
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name}={value!r}: must be a single number") from error
    if math.isnan(result):
        raise ValueError(f"{name}=nan: must be a number; check where it was computed")
    return result


def positive(name: str, value: object, *, infinite: bool = False) -> float:
    """Returns a number > 0; infinity is accepted only where it has a meaning."""
    result = number(name, value)
    if result <= 0:
        raise ValueError(f"{name}={value!r}: must be > 0")
    if math.isinf(result) and not infinite:
        raise ValueError(f"{name}=inf: must be finite")
    return result


def non_negative(name: str, value: object) -> float:
    """Returns a finite number >= 0."""
    result = number(name, value)
    if result < 0 or math.isinf(result):
        raise ValueError(f"{name}={value!r}: must be finite and >= 0")
    return result


def rate(name: str, value: object) -> float:
    """Returns a sampling rate in (0, 1]."""
    result = number(name, value)
    if not 0 < result <= 1:
        hint = "; a rate is expected batch / dataset size" if result > 1 else ""
        raise ValueError(f"{name}={value!r}: must lie in (0, 1]{hint}")
    return result


def fraction(name: str, value: object) -> float:
    """Returns a number strictly between 0 and 1."""
    result = number(name, value)
    if not 0 < result < 1:
        raise ValueError(f"{name}={value!r}: must lie strictly between 0 and 1")
    return result


def probability(name: str, value: object) -> float:
    """Returns a number from 0 to 1, both included."""
    result = number(name, value)
    if not 0 <= result <= 1:
        raise ValueError(f"{name}={value!r}: must lie in [0, 1]")
    return result


def count(name: str, value: object, *, least: int = 1) -> int:
    """Returns a whole number >= least. Floats are refused even when whole: 2.5 epochs of 100 is a question, not a
    count.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name}={value!r}: must be a whole number (int), not {type(value).__name__}")
    result = int(value)
    if result < least:
        raise ValueError(f"{name}={result}: must be >= {least}")
    return result

"""Numbers for print that are never told smaller than they are: what is claimed must not be below what was computed."""

from __future__ import annotations

import math


def rounded_up_to(digits: int, value: float) -> str:
    """A number with so many significant digits.

    >>> rounded_up_to(4, 1.23401), rounded_up_to(4, float("inf"))
    ('1.235', 'inf')
    """
    if not math.isfinite(value) or value == 0:
        return str(value)
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(abs(value))))
    return f"{math.ceil(value * scale - 1e-9) / scale:.{digits}g}"

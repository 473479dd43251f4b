"""Formats numbers for print so that they are never shown smaller than they are.

A claimed ε must not be below the ε that was computed.
"""

from __future__ import annotations

import math


def round_up_to(digits: int, value: float) -> str:
    """Formats a number as text with `digits` significant digits, rounded up, so that it is never shown smaller than it
    is.

    >>> round_up_to(4, 1.23401), round_up_to(4, float("inf"))
    ('1.235', 'inf')
    """
    if not math.isfinite(value) or value == 0:
        return str(value)
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(abs(value))))
    return f"{math.ceil(value * scale - 1e-9) / scale:.{digits}g}"

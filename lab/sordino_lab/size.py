"""How much of an experiment is run: for the tests, for a look, for an evening, or as the source did."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

_Value = TypeVar("_Value")


class ExperimentSize(Enum):
    """Sizes, the smallest first."""

    TINY = "tiny"
    """Ends within two seconds and shows nothing but that the code runs."""
    QUICK = "quick"
    """Ends within a minute or so; keeps the finding where the smaller size allows it."""
    MIDDLE = "middle"
    """The default: minutes."""
    FULL = "full"
    """The source's own setting."""

    def pick(self, tiny: _Value, quick: _Value, middle: _Value, full: _Value) -> _Value:
        """The value for this size.

        >>> ExperimentSize.QUICK.pick(1, 2, 3, 4)
        2
        """
        return {
            ExperimentSize.TINY: tiny,
            ExperimentSize.QUICK: quick,
            ExperimentSize.MIDDLE: middle,
            ExperimentSize.FULL: full,
        }[self]

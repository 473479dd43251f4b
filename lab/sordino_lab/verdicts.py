"""Verdicts on trained curves: what differs by more than chance explains, and how several verdicts make one.

A verdict is True, False or None. None says that chance may explain what is seen, so that the trainings confirm nothing and
refute nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sordino_lab.training_curves import TrainedCurve

_TEST_IMAGES = 10_000
"""Of MNIST, Fashion-MNIST and CIFAR-10."""
_LOSS_OF_ONE_RUN = 0.03
"""Deviation of the loss of one run, as a part of the loss: several seeds of the lab's trainings spread by 1.3 to 3.1 %."""
_FEW_RUNS = 2.0
"""By how many deviations two numbers must differ where one of them comes from a single run."""


def estimate_deviation(one: TrainedCurve, field: str = "test_accuracy") -> float:
    """Returns the deviation of a trained curve's last evaluation: that of its seeds, or of one test where it has one seed.

    An accuracy p, in percent, of n images has the deviation √(p(100 − p)/n) by chance alone.
    """
    mean, spread = one.final(field)
    if len(one.runs) > 1 or not math.isfinite(mean):
        return spread
    if field.endswith("loss"):
        return _LOSS_OF_ONE_RUN * mean
    return math.sqrt(max(0.0, mean * (100.0 - mean)) / _TEST_IMAGES)


def estimate_noise(one: TrainedCurve, other: TrainedCurve, field: str = "test_accuracy") -> float:
    """Returns by how much two trained curves may differ by chance: the deviation of the difference, twice that where one
    of them has a single seed.
    """
    factor = 1.0 if min(len(one.runs), len(other.runs)) > 1 else _FEW_RUNS
    return factor * math.hypot(estimate_deviation(one, field), estimate_deviation(other, field))


def is_more(gap: float, noise: float) -> bool | None:
    """Returns whether a difference is above 0; None where it is within the noise or not a number.

    >>> is_more(1.0, 0.5), is_more(-1.0, 0.5), is_more(0.2, 0.5)
    (True, False, None)
    """
    return None if not math.isfinite(gap) or abs(gap) <= noise else gap > 0


def is_better(one: TrainedCurve, other: TrainedCurve, field: str = "test_accuracy", *, by: float = 0.0) -> bool | None:
    """Returns whether one trained curve ends better than another by more than `by`: higher in accuracy, or lower in loss.

    None where chance may explain the difference, or where a seed diverged.
    """
    sign = -1.0 if field.endswith("loss") else 1.0
    gap = sign * (one.final(field)[0] - other.final(field)[0])
    return is_more(gap - by, estimate_noise(one, other, field))


def reaches(one: TrainedCurve, published: float) -> bool | None:
    """Returns whether the accuracy of a trained curve is above a published one, in percent; None where chance may explain
    the difference.
    """
    factor = 1.0 if len(one.runs) > 1 else _FEW_RUNS
    return is_more(one.final()[0] - published, factor * estimate_deviation(one))


def gets_worse(curves: Sequence[TrainedCurve]) -> bool | None:
    """Returns whether the accuracy of trained curves falls in their order: the last is below the first, and none is above
    the one before it.
    """
    if any(is_better(later, earlier) for earlier, later in pairwise(curves)):
        return False
    return is_better(curves[0], curves[-1])


def negate(verdict: bool | None) -> bool | None:
    """Returns the opposite verdict; that of None is None."""
    return None if verdict is None else not verdict


def require_all(verdicts: Iterable[bool | None], *, exceptions: int = 0) -> bool | None:
    """Returns whether all of some verdicts are True, but for so many exceptions; None where the open ones decide that.

    >>> require_all([True, True]), require_all([True, None]), require_all([None, False])
    (True, None, False)
    >>> require_all([True, True, False], exceptions=1)
    True
    """
    found = list(verdicts)
    if found.count(False) > exceptions:
        return False
    return True if found.count(True) >= len(found) - exceptions else None

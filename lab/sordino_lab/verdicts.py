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
"""Deviation of the loss of one run, as a part of the loss: seeds of trainings that settle spread by 0.7 to 3.1 %."""
_STANDARD_ERRORS = 2.0
"""By how many standard errors two numbers must differ: in 4.6 % of all cases chance does that where the deviation is known,
and in up to 18 % where two seeds of each estimate it."""


def estimate_deviation(one: TrainedCurve, field: str = "test_accuracy") -> float:
    """Returns the deviation of the last evaluation of one seed of a trained curve: that of its seeds, and at least that of
    one test, because a few seeds may agree by luck.

    An accuracy p, in percent, of n images has the deviation √(p(100 − p)/n) by chance alone.
    """
    mean, spread = one.final(field)
    if not math.isfinite(mean):
        return spread
    if field.endswith("loss"):
        return max(spread, _LOSS_OF_ONE_RUN * mean)
    return max(spread, math.sqrt(max(0.0, mean * (100.0 - mean)) / _TEST_IMAGES))


def estimate_noise(one: TrainedCurve, other: TrainedCurve, field: str = "test_accuracy") -> float:
    """Returns by how much two trained curves may differ by chance: two standard errors of the difference of their means.

    A curve with a single seed is taken to spread at least as the other one does where that has several.
    """
    own, others = (estimate_deviation(each, field) for each in (one, other))
    if len(one.runs) == 1 < len(other.runs):
        own = max(own, others)
    elif len(other.runs) == 1 < len(one.runs):
        others = max(own, others)
    return _STANDARD_ERRORS * math.hypot(own / math.sqrt(len(one.runs)), others / math.sqrt(len(other.runs)))


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
    error = estimate_deviation(one) / math.sqrt(len(one.runs))
    return is_more(one.final()[0] - published, _STANDARD_ERRORS * error)


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

"""Records what papers plot of a run's lots and updates, step by step, for metrics.jsonl.

    cosines      between consecutive released gradients, a number a step: made of releases, covered by the claim
    lengths      five quantiles of the lot's gradient lengths, a box a step: private, disclosed
    classes      the lot's most frequent class and its share: private, disclosed
    substeps     the cosine of ProjectedDPSGD's update before noise with its first part: private, disclosed

Privacy: what is disclosed is listed in the claim by name, from the first step on (`Job.not_covered`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from sordino.app.suggestions import did_you_mean
from sordino.diagnostics import (
    CLASSES,
    LENGTHS,
    SUBSTEPS,
    UpdateCosines,
    dominant_class,
    length_quantiles,
    substep_cosine,
)
from sordino.lots.lot import Lot
from sordino.private import Private

NAMES = ("cosines", "lengths", "classes", "substeps")
DISCLOSED: Mapping[str, str] = {"lengths": LENGTHS, "classes": CLASSES, "substeps": SUBSTEPS}
"""What the claim does not cover when it was asked for."""


def parse_names(text: str | None) -> tuple[str, ...]:
    """Returns the names of diagnostics in a comma-separated list, in the order of `NAMES`, and refuses unknown ones.

    >>> parse_names("lengths,cosines"), parse_names(None)
    (('cosines', 'lengths'), ())
    """
    if text is None:
        return ()
    if not isinstance(text, str):
        raise TypeError(f"diagnose={text!r}: must be text, such as cosines,lengths")
    given = [name.strip() for name in text.split(",")]
    for name in given:
        if name not in NAMES:
            raise ValueError(
                f"diagnose={text!r}: {name!r} is not there; there is {', '.join(NAMES)}{did_you_mean(name, NAMES)}"
            )
    return tuple(name for name in NAMES if name in given)


class Diagnosis:
    """Observes every step and collects the diagnostics that were asked for."""

    def __init__(self, names: tuple[str, ...], model: nn.Module) -> None:
        self.names = names
        self._cosines = UpdateCosines(model)
        self._values: dict[str, list[Any]] = {name: [] for name in names}

    def record_lot(self, private: Private, lot: Lot) -> None:
        """Records the diagnostics of a run's lot at the parameters it is computed with, before the step."""
        if "lengths" in self.names:
            self._values["lengths"].append([_finite_or_none(value) for value in length_quantiles(private, lot)])
        if "classes" in self.names:
            dominant = dominant_class(private, lot)
            self._values["classes"].append(None if dominant is None else [dominant.label, dominant.share])

    def record_release(self, private: Private) -> None:
        """Records the diagnostics of what a run released on the lot."""
        if "cosines" in self.names:
            cosine = self._cosines()
            self._values["cosines"].append(None if cosine is None else _finite_or_none(cosine))
        if "substeps" in self.names:
            self._values["substeps"].append(_finite_or_none(substep_cosine(private)))

    def take_recorded(self) -> dict[str, list[Any]]:
        """Returns what was recorded since the last call, and forgets it."""
        values, self._values = self._values, {name: [] for name in self.names}
        return values

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint; it is as secret as the data."""
        last: Mapping[str, Tensor] | None = self._cosines.last
        return {"values": self._values, "last": None if last is None else dict(last)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state that `state_dict` returned."""
        self._values, self._cosines.last = dict(state["values"]), state["last"]


def _finite_or_none(value: float) -> float | None:
    """Returns a finite value as it is and None otherwise, because JSON has no nan."""
    return value if math.isfinite(value) else None

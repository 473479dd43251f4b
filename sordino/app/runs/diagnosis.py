"""Diagnosis of a run's steps: the diagnostics of lots and updates that were asked for, for metrics.jsonl.

Diagnostics, step by step, are what papers plot of lots and updates:

    cosines      between consecutive released gradients, a number a step: made of releases, covered by the claim
    lengths      five quantiles of the lot's gradient lengths, a box a step: private, disclosed
    classes      the lot's most frequent class and its share: private, disclosed
    substeps     the cosine of ProjectedDPSGD's update before noise with its first part: private, disclosed

Privacy: diagnostics that are disclosed are computed only if they were asked for. The claim lists them by name from the
first step on (`Job.list_not_covered`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from sordino.diagnostics import UpdateCosines, dominant_class, length_quantiles, substep_cosine
from sordino.lots.lot import Lot
from sordino.private import Private


class Diagnosis:
    """Observes every step and collects the diagnostics that were asked for."""

    def __init__(self, names: tuple[str, ...], model: nn.Module) -> None:
        self.names = names
        self._cosines = UpdateCosines(model)
        self._values: dict[str, list[Any]] = {name: [] for name in names}

    def record_lot(self, private: Private, lot: Lot) -> None:
        """Records the diagnosis of a run's lot at the parameters it is computed with, before the step."""
        if "lengths" in self.names:
            self._values["lengths"].append([_finite_or_none(value) for value in length_quantiles(private, lot)])
        if "classes" in self.names:
            # An empty lot has no dominant class.
            dominant = dominant_class(private, lot)
            self._values["classes"].append(None if dominant is None else [dominant.label, dominant.share])

    def record_release(self, private: Private) -> None:
        """Records the diagnosis of what a run released on the lot: cosines of updates and of their first parts."""
        if "cosines" in self.names:
            # The first update has none before it.
            cosine = self._cosines()
            self._values["cosines"].append(None if cosine is None else _finite_or_none(cosine))
        if "substeps" in self.names:
            self._values["substeps"].append(_finite_or_none(substep_cosine(private)))

    def take_recorded(self) -> dict[str, list[Any]]:
        """Returns what was recorded since the last call, and forgets it."""
        values, self._values = self._values, {name: [] for name in self.names}
        return values

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the diagnosis for a checkpoint; it is as secret as the data."""
        # The last update is kept as well, because the next cosine is taken with it.
        last: Mapping[str, Tensor] | None = self._cosines.last
        return {"values": self._values, "last": None if last is None else dict(last)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the diagnosis of a run's steps from what `state_dict` returned."""
        self._values, last = dict(state["values"]), state["last"]
        # Files know no devices: the last update goes where the gradients are that it is compared with.
        devices = {name: p.device for name, p in self._cosines.model.named_parameters()}
        self._cosines.last = None if last is None else {name: value.to(devices[name]) for name, value in last.items()}


def _finite_or_none(value: float) -> float | None:
    """Returns a finite value as it is and None otherwise, because JSON has no nan."""
    return value if math.isfinite(value) else None

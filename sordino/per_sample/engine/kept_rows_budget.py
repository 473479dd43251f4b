"""Limits how much memory the kept per-sample rows of a batch may take, all layers together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from sordino.per_sample.formulas.gradient_part import Part, measure_part
from sordino.per_sample.performance_options import PerformanceOptions
from sordino.per_sample.recording.recorded_use import Use

_ROWS = 1.25
"""Rows that may be kept, as a share of what all layers' inputs and output gradients would take."""
_MOST = 1 << 26
"""Bytes of them: more are fresh memory every time, whose page faults cost what a second product does."""


class KeepBudget:
    """Measures parts, and counts the rows they keep against one allowance for the whole model."""

    __slots__ = ("_held", "options")

    def __init__(self, options: PerformanceOptions, held: int | None = None) -> None:
        """Takes the options, and the bytes of what is held, if the allowance is to follow from them."""
        self.options, self._held = options, held

    @classmethod
    def for_uses(cls, options: PerformanceOptions, recorded_uses: Sequence[Use]) -> KeepBudget:
        """Returns the budget for kept rows that the options give, or one in proportion to what the batch takes anyway,
        up to a limit.
        """
        if options.keep_bytes is None:
            return cls(options, sum([use.bytes + sum([t.nbytes for t in use.saved]) for use in recorded_uses]))
        return cls(options)

    def measure(self, part: Part) -> Tensor:
        """Returns ‖g_i‖², (B,), and takes the rows that the part keeps off the budget for kept rows."""
        if self._held is not None:
            self.options, self._held = replace(self.options, keep_bytes=min(_MOST, int(_ROWS * self._held))), None
        squared = measure_part(part, self.options)
        kept = getattr(part, "kept", None)
        if kept is not None:
            left = max(0, (self.options.keep_bytes or 0) - kept.nbytes)
            self.options = replace(self.options, keep_bytes=left)
        return squared

"""How much a batch's kept rows may take, all layers together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from sordino.gradients.options import PerformanceOptions
from sordino.gradients.rules.part import Part
from sordino.gradients.tape import Use

_ROWS = 1.25
"""Rows that may be kept, as a share of what all layers' inputs and output gradients would take."""


@dataclass
class Purse:
    """Measures parts, and counts the rows they keep against one allowance for the whole model."""

    options: PerformanceOptions

    @classmethod
    def holding(cls, options: PerformanceOptions, uses: Sequence[Use]) -> Purse:
        """The allowance given, or one in proportion to what the batch takes anyway, so that B does not decide."""
        if options.keep_bytes is None:
            taken = sum([use.bytes + sum([t.nbytes for t in use.saved]) for use in uses])
            options = replace(options, keep_bytes=int(_ROWS * taken))
        return cls(options)

    def measure(self, part: Part) -> Tensor:
        """‖g_i‖², (B,)."""
        squared = part.squared(self.options)
        kept = getattr(part, "kept", None)
        if kept is not None:
            left = max(0, (self.options.keep_bytes or 0) - kept.nbytes)
            self.options = replace(self.options, keep_bytes=left)
        return squared

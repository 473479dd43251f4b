"""Gradients of parameters θ behind a weight w = f(θ), such as a standardised filter.

Sample i's gradient with respect to θ is Jfᵀ times its gradient with respect to w, which the layer's own formula gives.
The rows that are measured are those that are summed, so nothing is hidden by Jf.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from sordino.per_sample.formulas.gradient_part import (
    Part,
    add_rows,
    lift_precision,
    may_keep_rows,
    samples_per_pass,
    square_sum,
    two_dimensional,
    zero_masked_rows,
)
from sordino.per_sample.performance_options import PerformanceOptions


def pull_back_rows(value: Tensor, parameters: Sequence[Tensor], rows: Tensor) -> dict[Tensor, Tensor]:
    """Returns rows pulled back to parameters: Jfᵀ of each row (b, *shape of the value) for each parameter that the
    value depends on, (b, *shape).
    """
    # An empty batch has rows of the right shape and no content.
    if not len(rows):
        return {p: lift_precision(p.new_zeros((0, *p.shape))) for p in parameters}
    if not rows.is_cpu and len(parameters) == 1:
        table_rows = _pull_back_lookup(value, parameters[0], rows)
        if table_rows is not None:
            return {parameters[0]: table_rows}
    # Differentiate for all rows at once, or one by one where an operation cannot be batched.
    upstream = rows.to(value.dtype)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            found = torch.autograd.grad(
                value, parameters, upstream, is_grads_batched=True, retain_graph=True, allow_unused=True
            )
    except RuntimeError:  # an operation that cannot be differentiated for many at once
        each = [torch.autograd.grad(value, parameters, g, retain_graph=True, allow_unused=True) for g in upstream]
        columns: list[tuple[Tensor | None, ...]] = list(zip(*each, strict=True))
        found = tuple(
            torch.stack([t if t is not None else torch.zeros_like(p) for t in ts])
            for p, ts in zip(parameters, columns, strict=True)
        )
    return {p: lift_precision(t.detach()) for p, t in zip(parameters, found, strict=True) if t is not None}


def _pull_back_lookup(value: Tensor, table: Tensor, rows: Tensor) -> Tensor | None:
    """Returns rows pulled back through a lookup of the same places for all samples, such as of positions; None where the
    value is none.

    PyTorch differentiates lookups one row at a time, which on a device is one launch a record.
    """
    node = value.grad_fn
    if node is None or node.name() != "EmbeddingBackward0" or value.dim() < 2:
        return None
    source = node.next_functions[0][0]
    if getattr(source, "variable", None) is not table or node._saved_scale_grad_by_freq:  # type: ignore[attr-defined]
        return None
    # The row of a place is the sum of what arrives at its uses; padding is looked up and never trained.
    places: Tensor = node._saved_indices  # type: ignore[attr-defined]
    arriving = lift_precision(rows.detach()).reshape(len(rows), places.numel(), -1)
    found = arriving.new_zeros((len(rows), *table.shape)).index_add_(1, places.flatten(), arriving)
    padding: int = node._saved_padding_idx  # type: ignore[attr-defined]
    if 0 <= padding < len(table):
        found[:, padding] = 0
    return found


class PulledBack:
    """Holds the gradients of one parameter, from a part that is about a function of it."""

    __slots__ = ("kept", "of", "part", "value")

    def __init__(self, part: Part, value: Tensor, of: Tensor) -> None:
        """Takes the part of `value`, which was computed from `of`."""
        self.part = part
        self.value = value
        self.of = of
        self.kept: Tensor | None = None

    def measure_squared_norms(self, options: PerformanceOptions) -> Tensor:
        """Returns the squared norms of pulled-back gradients from rows, a few samples at a time; they are kept for the
        sum if they fit.
        """
        # Rows that are there already need no second pass.
        if self.kept is not None:
            return square_sum(self.kept)
        # The rows of a few samples at a time fit in the memory that the options allow.
        n, size = self.value.numel() + self.of.numel(), self.value.element_size()
        step, start = samples_per_pass(2 * n, options, size), 0
        found, kept = [], list[Tensor]()
        while True:
            rows = self.rows(slice(start, start + step))
            if start and not len(rows):
                break
            found.append(square_sum(rows))
            start += step
            if may_keep_rows(n, 0, start, options, size):
                kept.append(rows)
        # Rows stay for the sum only if those of all samples were kept.
        squared = torch.cat(found)
        if sum(map(len, kept)) == len(squared):
            self.kept = torch.cat(kept)
        return squared

    def bound_squared_terms(self, options: PerformanceOptions) -> None:
        """Returns None, because the rows that were measured are those that are added."""
        return

    def dot(self, u: Tensor) -> Tensor:
        """Returns the rows times a vector."""
        flat = two_dimensional(self._all_rows())
        return (flat * u.flatten().to(flat.dtype)).sum(1)

    def add_to(self, out: Tensor, weights: Tensor, beta: int = 1) -> None:
        """Adds the weights times the pulled-back rows, in passes of a few samples where they were not kept."""
        step = len(weights) if self.kept is not None else samples_per_pass(2 * self.value.numel(), PerformanceOptions())
        for start in range(0, max(1, len(weights)), max(1, step)):
            rows = two_dimensional(self.rows(slice(start, start + step)))
            add_rows(out.view(-1), rows, weights[start : start + step].to(rows.dtype), beta)
            beta = 1

    def rows(self, where: slice | Tensor) -> Tensor:
        """Returns the pulled-back rows: Jfᵀ of the value's rows."""
        if self.kept is not None:
            return self.kept[where]
        inner = self.part.rows(where)
        with torch.enable_grad():
            found = pull_back_rows(self.value, (self.of,), inner)
        return found[self.of] if found else lift_precision(self.of.new_zeros((len(inner), *self.of.shape)))

    def _all_rows(self) -> Tensor:
        """Returns the rows of all samples."""
        return self.rows(slice(None))

    def mask_samples(self, mask: Tensor) -> PulledBack:
        """Returns the pulled-back part with the samples of the mask set to zero."""
        masked = PulledBack(self.part.mask_samples(mask), self.value, self.of)
        masked.kept = None if self.kept is None else zero_masked_rows(self.kept, mask)
        return masked

"""Holds the gradients of a batch as parts, which are measured and summed but never written out.

Where per-sample rows are made to measure a part, they may be kept for the sum. `KeepBudget` limits the memory that kept
rows take, all layers together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from sordino import accelerations
from sordino.per_sample.engine.gradient_buffer import Pool
from sordino.per_sample.engine.stacked_rows import StackedRows, stack_rows
from sordino.per_sample.formulas.gradient_part import Part, PlainArithmetic, full_precision, measure_part
from sordino.per_sample.performance_options import PerformanceOptions
from sordino.per_sample.protocol import Norms, NormsOnDemand
from sordino.per_sample.recording.layer_accelerations import JointParts
from sordino.per_sample.recording.tape import Use
from sordino.release.vectors import Grads, accumulation_dtype

_ROWS = 1.25
"""Rows that may be kept, as a share of what all layers' inputs and output gradients would take."""
_MOST = 1 << 26
"""The most bytes of rows that are kept: more would be fresh memory each time, whose page faults cost a second product."""

_SMALL = 1 << 20
"""Elements of a sum up to which its memory does not cost page faults."""
_FINDERS: list[Callable[[Sequence[Part | None], int], JointParts | None]] = [
    accelerations.load(name) for name in accelerations.JOINT_PARTS
]


class KeepBudget:
    """Measures parts, and counts the rows they keep against one allowance for the whole model."""

    __slots__ = ("_held", "options")

    def __init__(self, options: PerformanceOptions, held: int | None = None) -> None:
        """Takes the options, and the bytes of what is held, if the allowance is to follow from them."""
        self.options, self._held = options, held

    @classmethod
    def for_uses(cls, options: PerformanceOptions, recorded_uses: Sequence[Use]) -> KeepBudget:
        """Returns the budget for the rows that a batch's result keeps: as the options say, or in proportion to what the
        batch takes anyway, up to a limit.
        """
        if options.keep_bytes is None:
            return cls(options, sum([use.bytes + sum([t.nbytes for t in use.saved]) for use in recorded_uses]))
        return cls(options)

    def measure(self, part: Part) -> Tensor:
        """Returns ‖g_i‖², (B,), of one part of a batch's result, and takes the rows that the part keeps off the budget."""
        if self._held is not None:
            self.options, self._held = replace(self.options, keep_bytes=min(_MOST, int(_ROWS * self._held))), None
        squared = measure_part(part, self.options)
        kept = getattr(part, "kept", None)
        if kept is not None:
            left = max(0, (self.options.keep_bytes or 0) - kept.nbytes)
            self.options = replace(self.options, keep_bytes=left)
        return squared


@dataclass
class Inner:
    """The inner products ⟨g_i, θ⟩ by column, where every use of the parameter gave one; None for the others."""

    columns: list[Tensor | None]
    _unknown: set[int] = field(default_factory=set)

    def add_products(
        self, columns: Mapping[int, int], parts: Mapping[Tensor, Part], products: Mapping[Tensor, Tensor]
    ) -> None:
        """Adds the products ⟨g_i, θ⟩ of one more use to the batch's result, and marks a column as unknown if the use
        gave no product for it.
        """
        for p in parts:
            column = columns[id(p)]
            before = self.columns[column]
            # One use without a product makes the whole column unknown: a partial sum would be wrong.
            if p not in products or column in self._unknown:
                self._unknown.add(column)
                self.columns[column] = None
            else:
                self.columns[column] = products[p] if before is None else before + products[p]


class Result:
    """Implements `PerSample` over parts."""

    def __init__(
        self,
        losses: Tensor,
        parts: Sequence[Part | None],
        names: tuple[str, ...],
        parameters: Sequence[Tensor],
        budget: KeepBudget,
        pool: Pool,
        inner: Inner | None = None,
        squares: Sequence[Tensor | None] | None = None,
    ) -> None:
        """Takes one part per parameter, None for a parameter the losses do not use.

        `inner` is given if ⟨g_i, θ⟩ is asked for; `squares` are the squared norms that are known already.
        """
        self.losses = losses
        self._parts = list(parts)
        self._names = names
        self._parameters = parameters
        self._budget = budget
        self._pool = pool
        self._norms: Norms | None = None
        self._squares = squares
        self._inner = inner

    def norms(self) -> Norms:
        """Returns the squared norms of a batch's gradients, (B, P), computing each layer's by its fastest formula."""
        # Norms are computed once and kept, because clipping, tallies and checks all ask for them.
        if self._norms is None:
            with PlainArithmetic(self.losses.device):
                joint = self._joint_parts
                if joint is not None and joint.everything and self._squares is None:
                    self._norms = joint.norms(self._names)
                elif isinstance(joint, StackedRows):
                    self._norms = self._measure_beside(joint)
                else:
                    self._norms = Norms(self._measure_columns(joint), self._names)
        return self._norms

    @cached_property
    def _joint_parts(self) -> JointParts | None:
        """Returns those parts of a batch's result, not measured during the backward pass, that one call measures and
        sums; or None.
        """
        # What was measured during the backward pass needs no second measurement.
        parts = self._parts
        if self._squares is not None:
            parts = [part if known is None else None for part, known in zip(parts, self._squares, strict=True)]
        # On a device the rows of all small layers are stacked; on the CPU compiled calls do the same without rows.
        if not self.losses.is_cpu:
            return stack_rows(parts, self._parameters, self.losses.shape[0])
        for find_joint_parts in _FINDERS:
            found = find_joint_parts(parts, self.losses.shape[0])
            if found is not None:
                return found
        return None

    def _measure_columns(self, joint: JointParts | None) -> Tensor:
        """Returns the squared norms (B, P) of a batch, each column from what is known, from the joint parts or from its
        part.
        """
        columns, b = [], self.losses.shape[0]
        # Columns that were measured during the backward pass, or in one call for all small layers, are taken as they
        # are.
        squares = list(self._squares or [None] * len(self._parts))
        for column, squared in () if joint is None else joint.squared_norms_by_column():
            squares[column] = squared
        for part, p, known in zip(self._parts, self._parameters, squares, strict=True):
            if known is not None:
                columns.append(known)
            # A parameter that the losses do not use has a gradient of zero.
            elif part is None:
                columns.append(p.new_zeros(b, dtype=accumulation_dtype(p.dtype)))
            else:
                columns.append(self._budget.measure(part))
        return torch.stack(columns, dim=1)

    def _measure_beside(self, joint: StackedRows) -> Norms:
        """Returns the norms of a batch on a device: what the stacked rows come to and, measured one by one, the layers
        that are too large for them.
        """
        squares = list(self._squares or [None] * len(self._parts))
        stacked = set(joint.columns)
        for k, part in enumerate(self._parts):
            if part is not None and squares[k] is None and k not in stacked:
                squares[k] = self._budget.measure(part)
        self._squares = squares
        beside = [squared for squared in squares if squared is not None]
        sums = joint.sums + torch.stack(beside).sum(0) if beside else joint.sums

        def measure_columns() -> Tensor:
            with PlainArithmetic(self.losses.device):
                return self._measure_columns(joint)

        return NormsOnDemand(sums, measure_columns, self._names)

    @property
    def inner(self) -> Tensor | None:
        """Returns ⟨g_i, θ⟩ of a batch, (B, P) in float64, if it was asked for: from outputs, else from parts.

        The norms come first: parts that keep rows for them have cheaper products.
        """
        if self._inner is None:
            return None
        # Norms come first, because measuring them may keep rows that the products can use too.
        self.norms()
        columns = []
        with PlainArithmetic(self.losses.device):
            for known, part, p in zip(self._inner.columns, self._parts, self._parameters, strict=True):
                if part is None:
                    columns.append(self.losses.new_zeros(len(self.losses), dtype=torch.float64))
                else:
                    columns.append(part.dot(p.detach()).double() if known is None else known)
        return torch.stack(columns, dim=1)

    def dot(self, u: Mapping[str, Tensor]) -> Tensor:
        """Returns ⟨g_i, u⟩, (B, P), from the parts of a batch's result."""
        columns = []
        # A parameter that is missing from u, or that the losses do not use, contributes zero.
        for name, part, p in zip(self._names, self._parts, self._parameters, strict=True):
            if part is None or name not in u:
                columns.append(p.new_zeros(self.losses.shape[0], dtype=accumulation_dtype(p.dtype)))
            else:
                with full_precision(p.device):
                    columns.append(part.dot(u[name].detach()))
        return torch.stack(columns, dim=1)

    def weighted_sum(self, weights: Tensor, into: Grads | None = None) -> Grads:
        """Returns Σ_i w_i g_i, in large models as views of one flat buffer; `into` is an earlier result to add to."""
        with PlainArithmetic(weights.device):
            return self._add_weighted(weights, into)

    def _add_weighted(self, weights: Tensor, into: Grads | None) -> Grads:
        """Adds the weighted gradients of all parts of a batch to `into`, or to fresh memory."""
        norms, beta = self.norms(), 0 if into is None else 1
        if isinstance(self._joint_parts, StackedRows):
            found = self._sum_on_device(self._joint_parts, weights, into)
            if found is not None:
                return found
        # Memory that is not cleared is written with beta = 0, so nothing of an earlier sum is left in it.
        total = allocate_sum(self._names, self._parameters, self._pool) if into is None else into
        # Samples whose norm is not finite must be left out of the arithmetic, not only weighted by 0.
        finite = None if norms.finite else norms.squared.isfinite().all(dim=1)  # (B,)
        joint, summed_columns = self._joint_parts if finite is None else None, set[int]()
        # One call adds the joint parts, unless samples have to be masked, which it cannot do.
        if joint is not None:
            added = joint.add_to([total[name] for name in self._names].__getitem__, weights, beta)
            if added is not None:
                summed_columns.update([k for k, _ in added])
                if joint.everything:
                    return total
        # The other parameters follow one by one; a parameter that no loss uses contributes zero.
        columns = weights.unbind(1)
        for k, (name, part) in enumerate(zip(self._names, self._parts, strict=True)):
            if k in summed_columns:
                continue
            if part is None:
                if into is None:
                    total[name].zero_()
                continue
            w = columns[k if len(columns) > 1 else 0]
            kept = part if finite is None else part.mask_samples((w == 0) & ~finite)  # 0 · nan is nan
            kept.add_to(total[name], w, beta)
        return total

    def _sum_on_device(self, joint: StackedRows, weights: Tensor, into: Grads | None) -> Grads | None:
        """Returns the weighted sum of a batch on a device, the stacked rows by one product; None where the weights differ
        by parameter.
        """
        stacked = joint.sum_rows(weights)
        if stacked is None:
            return None
        names, w = [self._names[k] for k in joint.columns], weights[:, 0]
        if into is not None:
            torch._foreach_add_([into[name] for name in names], stacked)
        sums = dict(zip(names, stacked, strict=True)) if into is None else into
        # The other layers one by one. Rows of weight 0 are masked, because 0 · nan is nan and nobody looks for nan here.
        without_weight = None if joint.everything else w == 0
        for k, (name, part) in enumerate(zip(self._names, self._parts, strict=True)):
            if name in sums and into is None:
                continue
            if into is None:
                sums[name] = self._allocate_sum(k)
                if part is None:
                    sums[name].zero_()
            if part is not None and without_weight is not None and k not in joint.columns:
                part.mask_samples(without_weight).add_to(sums[name], w, 0 if into is None else 1)
        return {name: sums[name] for name in self._names}

    def sums(self, weights: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yields Σ_i w_i g_i of a batch's result one parameter at a time, so that a sum can be released before the next
        is made.
        """
        norms = self.norms()
        # Samples whose norm is not finite are masked below, which the call for joint parts cannot do.
        finite = None if norms.finite else norms.squared.isfinite().all(dim=1)  # (B,)
        joint = self._joint_parts if finite is None or isinstance(self._joint_parts, StackedRows) else None
        with PlainArithmetic(weights.device):
            added = None if joint is None else joint.add_to(self._allocate_sum, weights, 0)
        small = frozenset[int]() if joint is None or added is None else frozenset(joint.columns)
        # The sums are made lazily; each is let go of before the next one is made.
        column_sums = self._iterate_sums(weights, finite, small, added or iter(()))
        while True:
            with PlainArithmetic(weights.device):  # not around a `yield`: it is the thread's, not the generator's
                k, out = next(column_sums, (-1, None))
            if out is None:
                return
            yield self._names[k], out
            del out

    def _iterate_sums(
        self, weights: Tensor, finite: Tensor | None, small: frozenset[int], added: Iterator[tuple[int, Tensor]]
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields the column and sum of each parameter of a batch's result, in the order of the parameters, whatever was
        added together.
        """
        # Small layers were added together in another order; their sums are taken where their column comes.
        for k, part in enumerate(self._parts):
            if k in small:
                yield next(added)
            elif part is not None:
                w, out = weights[:, k if weights.shape[1] > 1 else 0], self._allocate_sum(k)
                kept = part if finite is None else part.mask_samples((w == 0) & ~finite)  # 0 · nan is nan
                kept.add_to(out, w, 0)
                yield k, out
                del out, kept

    def _allocate_sum(self, k: int) -> Tensor:
        return _allocate_like(self._parameters[k])


def allocate_sum(names: tuple[str, ...], parameters: Sequence[Tensor], pool: Pool) -> Grads:
    """Returns memory for the sum in a batch's result, not cleared: one flat buffer where all parameters share a dtype
    and a device.

    Small models get one tensor for each parameter: the allocator hands the same memory out again, at half the price of
    a view.
    """
    # One flat buffer makes adding up and noise one operation over all parameters.
    if sum(map(Tensor.numel, parameters)) > _SMALL:
        kinds = {(p.dtype, p.device) for p in parameters}
        if len(kinds) == 1:
            dtype, device = kinds.pop()
            return dict(
                zip(
                    names,
                    pool.allocate_views([p.shape for p in parameters], accumulation_dtype(dtype), device),
                    strict=True,
                )
            )
    return {name: _allocate_like(p) for name, p in zip(names, parameters, strict=True)}


def _allocate_like(p: Tensor) -> Tensor:
    """Returns memory for the sum of one parameter's gradients in a batch's result, not cleared."""
    if type(p) is nn.Parameter and p.dtype is torch.float32 and p.is_contiguous():
        return torch.empty_like(p)  # a third of the price
    return torch.empty(p.shape, dtype=accumulation_dtype(p.dtype), device=p.device)

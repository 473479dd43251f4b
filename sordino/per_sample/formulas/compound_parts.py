"""Parts made of parts: several uses of one parameter, blocks of a larger one, several rows.

A layer called twice, or two layers sharing a weight, are joined here by the parameter's identity before the norm is
taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from sordino.per_sample.formulas.gradient_part import GradientRows, Part, samples_per_pass, square_sum, squared_terms
from sordino.per_sample.performance_options import PerformanceOptions

Joiner = Callable[[Sequence[Part]], Part | None]
_JOINERS: list[Joiner] = []


def register_joiner(function: Joiner) -> Joiner:
    """Registers a way to join several uses of one parameter; it returns None for parts it does not know."""
    _JOINERS.append(function)
    return function


def join_parts(parts: Sequence[Part]) -> Part:
    """Returns one compound part for all uses of a parameter."""
    if len(parts) == 1:
        return parts[0]
    # Special combinations first, such as disjoint blocks, whose norms need no cross terms.
    for function in _JOINERS:
        result = function(parts)
        if result is not None:
            return result
    return SeveralParts(tuple(parts))


@dataclass(frozen=True)
class SeveralParts:
    """Adds uses of different kinds; the norm of their sum comes from rows, a few samples at a time."""

    parts: tuple[Part, ...]

    def measure_squared_norms(self, options: PerformanceOptions) -> Tensor:
        """Returns ‖Σ rows‖² of a compound part, in passes that fit the scratch memory."""
        # The norm of a sum needs the sum itself, so rows are written out, a few samples at a time.
        first = self.parts[0].rows(slice(0, 1))
        step = samples_per_pass(first.numel() * len(self.parts), options, first.element_size())
        pieces, start = [], 0
        while True:
            rows = self.rows(slice(start, start + step))
            # How many samples there are is not known here; an empty slice says that all were read.
            if start and not rows.shape[0]:
                break
            pieces.append(square_sum(rows))
            start += step
        return torch.cat(pieces)

    def bound_squared_terms(self, options: PerformanceOptions) -> Tensor:
        """Returns the square of the lengths of all uses, added."""
        # Lengths are added before they are squared, because all uses may point in one direction.
        return torch.stack([squared_terms(part, options).sqrt() for part in self.parts]).sum(0).square_()

    def dot(self, u: Tensor) -> Tensor:
        """Returns ⟨g_i, u⟩ as a sum over the uses."""
        return torch.stack([part.dot(u) for part in self.parts]).sum(0)

    def add_to(self, out: Tensor, weights: Tensor, beta: int = 1) -> None:
        """Adds the weighted gradients of every part that a compound part is made of."""
        for part in self.parts:
            part.add_to(out, weights, beta)
            beta = 1

    def rows(self, where: slice | Tensor) -> Tensor:
        """Returns the rows of all parts that a compound part is made of, added."""
        total = self.parts[0].rows(where)
        for part in self.parts[1:]:
            total = total + part.rows(where)
        return total

    def mask_samples(self, mask: Tensor) -> SeveralParts:
        """Returns the part with each use masked."""
        return SeveralParts(tuple(part.mask_samples(mask) for part in self.parts))


@dataclass(frozen=True)
class Block:
    """Holds the rows [start, stop) of a larger parameter, such as one projection of an attention's three."""

    part: Part
    start: int
    stop: int
    shape: torch.Size

    def measure_squared_norms(self, options: PerformanceOptions) -> Tensor:
        """Returns the block's squared norms; the other rows are zero."""
        return self.part.measure_squared_norms(options)

    def bound_squared_terms(self, options: PerformanceOptions) -> Tensor | None:
        """Returns the block's terms; the other rows are zero."""
        return self.part.bound_squared_terms(options)

    def dot(self, u: Tensor) -> Tensor:
        """Returns ⟨g_i, u⟩ over the block alone."""
        return self.part.dot(u[self.start : self.stop])

    def add_to(self, out: Tensor, weights: Tensor, beta: int = 1) -> None:
        """Adds the weighted gradients of a compound part that is a block of a larger parameter and leaves the other
        rows, or clears them where β = 0.
        """
        # The block covers some rows only, and clearing must reach the others too.
        if not beta:
            out.zero_()
        self.part.add_to(out[self.start : self.stop], weights)

    def rows(self, where: slice | Tensor) -> Tensor:
        """Returns the rows of a compound part that is a block of a larger parameter, within zeros."""
        inner = self.part.rows(where)
        full_rows = inner.new_zeros((inner.shape[0], *self.shape))
        full_rows[:, self.start : self.stop] = inner
        return full_rows

    def mask_samples(self, mask: Tensor) -> Block:
        """Returns the block with the samples of the mask set to zero."""
        return Block(self.part.mask_samples(mask), self.start, self.stop, self.shape)


@dataclass(frozen=True)
class Window:
    """Holds some taps of a convolution's weight, the others of which read nothing but padding."""

    part: Part
    taps: tuple[slice, ...]
    shape: torch.Size

    @property
    def kept(self) -> Tensor | None:
        """The rows that the part keeps for the sum, or None."""
        return getattr(self.part, "kept", None)

    def measure_squared_norms(self, options: PerformanceOptions) -> Tensor:
        """Returns the squared norms of these taps; the other taps are zero."""
        return self.part.measure_squared_norms(options)

    def bound_squared_terms(self, options: PerformanceOptions) -> Tensor | None:
        """Returns the terms of these taps; the other taps are zero."""
        return self.part.bound_squared_terms(options)

    def dot(self, u: Tensor) -> Tensor:
        """Returns ⟨g_i, u⟩ over these taps alone."""
        return self.part.dot(u[self.taps].contiguous())

    def add_to(self, out: Tensor, weights: Tensor, beta: int = 1) -> None:
        """Adds the weighted gradients of a compound part that is a window of a convolution's taps and leaves the
        others, or clears them where β = 0.
        """
        # The part knows its window only; what lies outside has no gradient.
        window = out[self.taps]
        total = torch.empty(window.shape, dtype=out.dtype, device=out.device)
        self.part.add_to(total, weights, 0)
        if beta:
            window.add_(total)
        else:
            out.zero_()
            window.copy_(total)

    def rows(self, where: slice | Tensor) -> Tensor:
        """Returns the rows of a compound part that is a window of a convolution's taps, within zeros."""
        inner = self.part.rows(where)
        full_rows = inner.new_zeros((inner.shape[0], *self.shape))
        full_rows[(slice(None), *self.taps)] = inner
        return full_rows

    def mask_samples(self, mask: Tensor) -> Window:
        """Returns the part with the samples of the mask set to zero."""
        return Window(self.part.mask_samples(mask), self.taps, self.shape)


@dataclass(frozen=True)
class Disjoint:
    """Joins blocks that do not overlap, whose squared norms add."""

    blocks: tuple[Block, ...]

    def measure_squared_norms(self, options: PerformanceOptions) -> Tensor:
        """Returns the sum of the blocks' squared norms (Pythagoras)."""
        return torch.stack([block.measure_squared_norms(options) for block in self.blocks]).sum(0)

    def bound_squared_terms(self, options: PerformanceOptions) -> Tensor:
        """Returns the sum of the blocks' terms, which do not meet."""
        return torch.stack([squared_terms(block, options) for block in self.blocks]).sum(0)

    def dot(self, u: Tensor) -> Tensor:
        """Returns ⟨g_i, u⟩ as a sum over the blocks."""
        return torch.stack([block.dot(u) for block in self.blocks]).sum(0)

    def add_to(self, out: Tensor, weights: Tensor, beta: int = 1) -> None:
        """Adds the weighted gradients of a compound part of disjoint blocks, block by block."""
        # Cleared once for all: each block would otherwise wipe out those before it.
        if not beta:
            out.zero_()
        for block in self.blocks:
            block.add_to(out, weights)

    def rows(self, where: slice | Tensor) -> Tensor:
        """Returns the rows of the blocks, added, which is to put them side by side."""
        return torch.stack([block.rows(where) for block in self.blocks]).sum(0)

    def mask_samples(self, mask: Tensor) -> Disjoint:
        """Returns the part with every block masked."""
        return Disjoint(tuple(block.mask_samples(mask) for block in self.blocks))


@dataclass(frozen=True)
class SeveralRows:
    """Adds up k consecutive rows of a layer's input that belong to one sample: frames of a clip, or folded tokens."""

    part: Part  # over B·k rows
    k: int

    def measure_squared_norms(self, options: PerformanceOptions) -> Tensor:
        """Returns squared norms from gradients, since the rows of a sample add up before the norm."""
        return SeveralParts((self,)).measure_squared_norms(options)

    def bound_squared_terms(self, options: PerformanceOptions) -> Tensor:
        """Returns the square of the lengths of all frames of a sample, added."""
        return squared_terms(self.part, options).sqrt().view(-1, self.k).sum(1).square_()

    def dot(self, u: Tensor) -> Tensor:
        """Returns ⟨g_i, u⟩ as a sum over the rows of a sample."""
        return self.part.dot(u).view(-1, self.k).sum(1)

    def add_to(self, out: Tensor, weights: Tensor, beta: int = 1) -> None:
        """Adds the weighted gradients, in which every row has its sample's weight."""
        self.part.add_to(out, weights.repeat_interleave(self.k), beta)

    def rows(self, where: slice | Tensor) -> Tensor:
        """Returns the gradients of some samples of a compound part with several rows a sample, each the sum of its
        rows.
        """
        # Row k of sample i stands at place i·K + k.
        if isinstance(where, slice):
            inner = slice((where.start or 0) * self.k, None if where.stop is None else where.stop * self.k)
            rows = self.part.rows(inner)
        else:
            rows = self.part.rows((where[:, None] * self.k + torch.arange(self.k, device=where.device)).flatten())
        return rows.reshape(rows.shape[0] // self.k, self.k, *rows.shape[1:]).sum(1)

    def mask_samples(self, mask: Tensor) -> SeveralRows:
        """Returns the part with all rows of the masked samples set to zero."""
        return SeveralRows(self.part.mask_samples(mask.repeat_interleave(self.k)), self.k)


@register_joiner
def _join_rows(parts: Sequence[Part]) -> Part | None:
    """Joins parts that are all held as rows into a compound part by adding the rows; returns None for others."""
    # Rows are added before the norm is taken, which brings in the cross terms between the uses.
    if all(isinstance(part, GradientRows) for part in parts):
        return GradientRows(torch.stack([part.rows(slice(None)) for part in parts]).sum(0))
    return None


@register_joiner
def _join_disjoint(parts: Sequence[Part]) -> Part | None:
    """Joins blocks that coincide or do not overlap into a compound part; returns None where they overlap in part or are
    no blocks.
    """
    # Only blocks of rows can be disjoint.
    blocks = [part for part in parts if isinstance(part, Block)]
    if len(blocks) < len(parts):
        return None
    # Blocks of the same rows are joined with each other first.
    spans: dict[tuple[int, int], list[Block]] = {}
    for block in blocks:
        spans.setdefault((block.start, block.stop), []).append(block)
    # Sorted by their first row, overlapping blocks are neighbours.
    ordered = sorted(spans)
    if any(before[1] > after[0] for before, after in pairwise(ordered)):
        return None
    return Disjoint(
        tuple(Block(join_parts([b.part for b in group]), *span, group[0].shape) for span, group in spans.items())
    )

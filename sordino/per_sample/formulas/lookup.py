"""Formulas for lookups y_t = E[id_t]: embeddings, bags, and tables tied to the output head.

Sample i's gradient has the row Σ_{t: id_t = v} g_t at v, and zero at padding_idx:

    ‖g_i‖² = Σ_v ‖Σ_{t: id_t = v} g_t‖²      by sorting the (sample, id) pairs; no T², no one-hot

Tied with a head y_s = E a_s whose gradient is Q (S, V), the weight's gradient is the sum of both, and

    ‖e + h‖² = ‖e‖² + ‖h‖² + 2 Σ_ts (e_t · a_s) Q[s, id_t]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sordino.per_sample.formulas.compound_parts import SeveralParts, register_joiner
from sordino.per_sample.formulas.gradient_part import (
    NEVER,
    Part,
    lift_precision,
    square_sum,
    zero_masked_rows,
)
from sordino.per_sample.formulas.matrix_product import Matmul, guard_gram_sums
from sordino.per_sample.performance_options import PerformanceOptions


def find_distinct(values: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the different values, ascending, and the place of each value among them."""
    found, place = torch.unique(values, return_inverse=True)
    return found, place


def find_distinct_padded(values: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the different values among the ids of a lookup and the place of each, in tensors as long as the values.

    The last places are 0 and nobody's. How many different ones there are is a number on the device, for which the host
    would have to wait.
    """
    ordered, order = values.sort()
    place = torch.zeros_like(values)
    # In sorted order every change begins a new value; no length depends on how many there are.
    place[1:] = (ordered[1:] != ordered[:-1]).cumsum(0)
    found = torch.zeros_like(values).scatter_(0, place, ordered)
    return found, torch.empty_like(place).scatter_(0, order, place)


@dataclass(frozen=True)
class Lookup:
    """Holds the per-sample gradients of an embedding's table."""

    ids: Tensor  # (B, T)
    g: Tensor  # (B, T, d), zero where the id is padding
    count: int  # V

    def measure_squared_norms(self, options: PerformanceOptions) -> Tensor:
        """Returns the squared norms of a lookup's table from segment sums over equal (sample, id) pairs."""
        b = self.ids.shape[0]
        # i·V + id is another number for every pair of a sample and an id, so equal numbers are equal pairs.
        pairs = self.ids + torch.arange(b, device=self.ids.device)[:, None] * self.count
        found, segment = (find_distinct if pairs.is_cpu else find_distinct_padded)(pairs.flatten())
        # Add up the gradients of equal ids of a sample, then the squares of its different ids.
        sums = self.g.new_zeros((found.numel(), self.g.shape[2])).index_add_(0, segment, self.g.flatten(0, 1))
        owner = found.div(self.count, rounding_mode="floor")
        return self.g.new_zeros(b).index_add_(0, owner, square_sum(sums))

    def bound_squared_terms(self, options: PerformanceOptions) -> Tensor:
        """Returns the square of the lengths of all positions' gradients, added."""
        return square_sum(self.g.flatten(0, 1)).sqrt_().view(self.ids.shape).sum(1).square_()

    def dot(self, u: Tensor) -> Tensor:
        """Returns Σ_t g_t · U[id_t]."""
        return (self.g * u.to(self.g.dtype)[self.ids]).flatten(1).sum(1)

    def add_to(self, out: Tensor, weights: Tensor, beta: int = 1) -> None:
        """Adds the weighted gradients of a lookup to the table's rows that were looked up."""
        if not beta:
            out.zero_()
        scaled = self.g * weights.to(self.g.dtype)[:, None, None]
        out.index_add_(0, self.ids.flatten(), scaled.flatten(0, 1).to(out.dtype))

    def rows(self, where: slice | Tensor) -> Tensor:
        """Returns the gradient of a lookup's table per sample, mostly zeros."""
        ids, g = self.ids[where], self.g[where]
        b, _, d = g.shape
        offset = torch.arange(b, device=ids.device)[:, None] * self.count
        table = g.new_zeros((b * self.count, d)).index_add_(0, (ids + offset).flatten(), g.flatten(0, 1))
        return table.view(b, self.count, d)

    def mask_samples(self, mask: Tensor) -> Lookup:
        """Returns the part with the samples of the mask set to zero."""
        return Lookup(self.ids, zero_masked_rows(self.g, mask), self.count)


@dataclass
class Tied:
    """Joins an embedding and a head on one table."""

    embedding: Lookup
    head: Matmul
    _terms: Tensor | None = field(default=None, init=False)

    def measure_squared_norms(self, options: PerformanceOptions) -> Tensor:
        """Returns the norms of a lookup table tied to the output head: both norms and the cross term, a sample at a
        time in memory; from rows where they cancel.
        """
        # The cross term needs the head's gradient only at the ids that were looked up.
        a = self.head.a if self.head.a.dim() == 3 else self.head.a.unsqueeze(1)  # (B, S, d)
        q = self.head.g if self.head.g.dim() == 3 else self.head.g.unsqueeze(1)  # (B, S, V)
        inner = torch.bmm(self.embedding.g, lift_precision(a).transpose(1, 2))  # (B, T, S)
        at = q.gather(2, self.embedding.ids[:, None, :].expand(-1, q.shape[1], -1))  # (B, S, T)
        alone = replace(options, keep_bytes=NEVER)  # the sum wants input and gradient: rows would be made for nothing
        head = Matmul(a, q, workspace=self.head.workspace)
        separate = self.embedding.measure_squared_norms(options) + head.measure_squared_norms(alone)
        self.head.terms = self.head.terms if head.terms is None else head.terms  # of the same tensors
        squared = separate + 2 * (inner * at.transpose(1, 2)).flatten(1).sum(1)
        # Samples in which the terms cancelled are measured again from rows, the others raised by what rounding may have
        # hidden.
        terms, additions = self.bound_squared_terms(options), a.shape[2] + q.shape[2]
        return guard_gram_sums(squared, separate, terms, lambda index: square_sum(self.rows(index)), 1, additions)

    def bound_squared_terms(self, options: PerformanceOptions) -> Tensor:
        """Returns the square of the lengths of both, the lookup of a table and the head tied to it, added."""
        if self._terms is None:
            head = self.head.bound_squared_terms(options)
            head = Matmul(self.head.a, self.head.g).measure_squared_norms(options) if head is None else head
            self._terms = (self.embedding.bound_squared_terms(options).sqrt() + head.sqrt()).square_()
        return self._terms

    def dot(self, u: Tensor) -> Tensor:
        """Returns ⟨g_i, u⟩ as the sum of both."""
        return self.embedding.dot(u) + self.head.dot(u)

    def add_to(self, out: Tensor, weights: Tensor, beta: int = 1) -> None:
        """Adds the weighted gradients of both."""
        self.embedding.add_to(out, weights, beta)
        self.head.add_to(out, weights)

    def rows(self, where: slice | Tensor) -> Tensor:
        """Returns the rows of both, added."""
        return self.embedding.rows(where) + self.head.rows(where)

    def mask_samples(self, mask: Tensor) -> Tied:
        """Returns the part with both masked."""
        return Tied(self.embedding.mask_samples(mask), self.head.mask_samples(mask))


def _join_lookups(parts: Sequence[Lookup]) -> Lookup:
    """Joins several lookups of one table into one with more positions."""
    return Lookup(torch.cat([p.ids for p in parts], 1), torch.cat([p.g for p in parts], 1), parts[0].count)


@register_joiner
def _join_tables(parts: Sequence[Part]) -> Part | None:
    """Joins lookups of a table with each other and with one tied head; returns None where neither applies."""
    tables = [part for part in parts if isinstance(part, Lookup)]
    heads = [part for part in parts if isinstance(part, Matmul)]
    if not tables or len(tables) + len(heads) < len(parts):
        return None
    if not heads:
        return _join_lookups(tables)
    if len(heads) == 1 and heads[0].kept is None:
        return Tied(_join_lookups(tables), heads[0])
    return SeveralParts(tuple(parts))

"""Formulas for the experts of a mixture, y_r = W_e a_r: every row goes through one of E matrices.

Rows come sorted by matrix, and within a matrix by sample. With S(e, i) the rows of sample i that went through W_e, its
gradient has Σ_{r ∈ S(e, i)} g_r a_rᵀ at e:

    ‖g_i‖² = Σ_e ‖Σ_{r ∈ S(e, i)} g_r a_rᵀ‖²      each by a Gram product, or from rows where there are many
    sum:     for every e one product (c·g)ᵀ a

Privacy: as for one matrix (`matrix_product`): samples whose Gram sums cancel are measured again from rows, the others
are raised by a few roundings of (Σ_r ‖a_r‖‖g_r‖)².
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from sordino.kernels.gram import Grams, load_grams
from sordino.kernels.kernel_tensors import are_cpu_floats
from sordino.per_sample.formulas.gradient_part import estimate_lengths, square_sum, zero_masked_rows
from sordino.per_sample.formulas.matrix_product import guard_gram_sums, vanishing_floor
from sordino.per_sample.formulas.output_gradient import add_weighted_product
from sordino.per_sample.performance_options import PerformanceOptions


@dataclass(frozen=True)
class Routes:
    """Says how many rows of each sample went through each matrix, (E, B), and whose each row is, (R,)."""

    counts: list[list[int]]
    owners: Tensor

    @property
    def size(self) -> int:
        """B, the number of samples."""
        return len(self.counts[0])

    @cached_property
    def by_matrix(self) -> list[slice]:
        """The rows of each matrix."""
        ends = torch.tensor([0, *[sum(row) for row in self.counts]]).cumsum(0).tolist()
        return [slice(begin, end) for begin, end in pairwise(ends)]

    def iterate_stretches(self) -> Iterator[tuple[int, int, slice]]:
        """Yields expert matrix, sample and rows of every pair that has some, as a grouped product takes them."""
        begin = 0
        for matrix, row in enumerate(self.counts):
            for sample, count in enumerate(row):
                if count:
                    yield matrix, sample, slice(begin, begin + count)
                begin += count


def _find_gram_kernel(a: Tensor, g: Tensor) -> Grams | None:
    """Returns the compiled kernel for stretches of few rows; without vector instructions torch's products are faster."""
    kernel = load_grams() if are_cpu_floats(a, g) else None
    return kernel if kernel is not None and kernel.level else None


@dataclass
class Grouped:
    """Holds the per-sample gradients of the weights of E linear maps."""

    a: Tensor  # (R, d)
    g: Tensor  # (R, p)
    routes: Routes
    _terms: Tensor | None = field(default=None, init=False)

    def measure_squared_norms(self, options: PerformanceOptions) -> Tensor:
        """Returns the squared norms of a grouped product's experts, stretch by stretch; those with few rows in one call
        if there is a kernel.
        """
        found, parts, whose = self.a.new_zeros(2, self.routes.size), list[Tensor](), list[int]()
        kernel = _find_gram_kernel(self.a, self.g)
        short_stretches: list[tuple[int, int, int]] = []  # whose, first, count
        d, p = self.a.shape[1], self.g.shape[1]
        # Each stretch is one sample's rows through one matrix: from its gradient where it has many rows, else by Gram.
        for _, sample, rows in self.routes.iterate_stretches():
            count = rows.stop - rows.start
            if count * (d + p) >= d * p:
                parts.append(square_sum(torch.mm(self.g[rows].t(), self.a[rows]).unsqueeze(0)).expand(2))
            elif kernel is not None:
                short_stretches.append((sample, rows.start, count))
                continue
            else:
                a, g = self.a[rows], self.g[rows]
                product = torch.mm(a, a.t()).mul_(torch.mm(g, g.t()))
                parts.append(torch.stack((product.sum(1).sum(), product.diagonal().sum())))
            whose.append(sample)
        # All short stretches in one call of the kernel.
        if kernel is not None and short_stretches:
            sums = kernel.sum_stretches(
                self.g, self.a, [(first, n) for _, first, n in short_stretches], torch.get_num_threads()
            )
            parts += sums[:, :2].to(found.dtype).unbind()
            whose += [sample for sample, _, _ in short_stretches]
        if not parts:
            return found[0]
        # Add up the stretches of each sample. Samples whose Gram sums cancelled are measured again from rows, the
        # others are raised by what rounding may have hidden.
        found.index_add_(1, torch.tensor(whose, device=found.device), torch.stack(parts, 1))
        terms, additions = self.bound_squared_terms(options), self.a.shape[1] + self.g.shape[1]
        return guard_gram_sums(found[0], found[1], terms, lambda index: square_sum(self.rows(index)), 1, additions)

    def bound_squared_terms(self, options: PerformanceOptions) -> Tensor:
        """Returns (Σ_r ‖a_r‖‖g_r‖)² over the rows of a grouped product."""
        if self._terms is None:
            floor = vanishing_floor(self.a.dtype)
            lengths = estimate_lengths(self.a[None], floor)[0] * estimate_lengths(self.g[None], floor)[0]
            self._terms = self._sum_by_sample(lengths).square_()
        return self._terms

    def _sum_by_sample(self, rows: Tensor) -> Tensor:
        """Adds up one number for each row over the rows of each sample."""
        return rows.new_zeros(self.routes.size).index_add_(0, self.routes.owners, rows)

    def dot(self, u: Tensor) -> Tensor:
        """Returns Σ_r g_r · (U_e a_r)."""
        each = [(self.a[rows] @ m.t().to(self.a.dtype) * self.g[rows]).sum(1) for m, rows in self._pair_with_rows(u)]
        return self._sum_by_sample(torch.cat(each))

    def add_to(self, out: Tensor, weights: Tensor, beta: int = 1) -> None:
        """Adds the weighted gradients of the experts of a grouped product, with one product for each matrix."""
        # Every row has its sample's weight.
        w = weights.to(out.dtype)[self.routes.owners]
        for total, rows in self._pair_with_rows(out):
            if rows.start < rows.stop:
                add_weighted_product(self.a[rows], self.g[rows], w[rows], total, beta)
            elif not beta:
                total.zero_()

    def _pair_with_rows(self, stacked: Tensor) -> Iterator[tuple[Tensor, slice]]:
        """Yields each of the stacked matrices with its rows."""
        return zip(stacked, self.routes.by_matrix, strict=True)

    def rows(self, where: slice | Tensor) -> Tensor:
        """Returns gᵀa of a grouped product per sample and expert matrix."""
        wanted = torch.arange(self.routes.size)[where.cpu() if isinstance(where, Tensor) else where].tolist()
        places = {sample: place for place, sample in enumerate(wanted)}
        found = self.a.new_zeros((len(wanted), len(self.routes.counts), self.g.shape[1], self.a.shape[1]))
        for matrix, sample, rows in self.routes.iterate_stretches():
            if sample in places:
                found[places[sample], matrix] = self.g[rows].t() @ self.a[rows]
        return found

    def mask_samples(self, mask: Tensor) -> Grouped:
        """Returns the part with both factors masked."""
        rows = mask[self.routes.owners]
        return Grouped(zero_masked_rows(self.a, rows), zero_masked_rows(self.g, rows), self.routes)

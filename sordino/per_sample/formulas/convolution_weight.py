"""Measures and sums the weight gradients of convolutions and their transposes, with every option.

The norm of a sample's gradient comes from the formula that was fastest for this shape: rows, which may be kept for the
sum (`convolution_rows`, or the compiled kernel at the price of the framework's summed gradient), or a Gram product
where there are few positions and many channels. The weighted sum, where no rows are kept, is a weight gradient of c·g.

A transposed convolution is the same with input and output gradient exchanged. Padding that is not zeros happens before,
as an operation of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import torch
from torch import Tensor

from sordino.kernels import convolution, depthwise, winograd_rows
from sordino.kernels.sample_gradients import SampleGradients
from sordino.per_sample.formulas import choice_by_shape
from sordino.per_sample.formulas.convolution_geometry import Geometry
from sordino.per_sample.formulas.convolution_rows import ORDER, compute_gram_sums, compute_rows, sum_by_torch
from sordino.per_sample.formulas.formula_timing import samples_to_time
from sordino.per_sample.formulas.gradient_part import (
    GradientRows,
    add_outer,
    add_rows,
    estimate_square_sum,
    may_keep_rows,
    samples_per_pass,
    square_sum,
    zero_masked_rows,
)
from sordino.per_sample.formulas.matrix_product import guard_gram_sums, vanishing_floor
from sordino.per_sample.formulas.workspace import Workspace
from sordino.per_sample.performance_options import PerformanceOptions
from sordino.per_sample.row_arithmetic import VANISHED

_FEW_POSITIONS = 64
"""Up to here the patches of a whole batch are small enough to be made at once."""
_GRAMS = ("gram", "shifted")
_KERNELS = ("winograd", "compiled", "depthwise")


class Convolution:
    """Holds the per-sample gradients of a convolution's weight as its input and output gradient."""

    __slots__ = ("a", "g", "geometry", "kept", "order", "shape", "terms", "workspace")

    def __init__(self, a: Tensor, g: Tensor, geometry: Geometry, workspace: Workspace | None = None) -> None:
        """Takes a (B, C, *S), not padded, and g (B, p, *S')."""
        self.a = a
        self.g = g
        self.geometry = geometry
        self.workspace = Workspace() if workspace is None else workspace
        self.shape = (g.shape[1], a.shape[1] // geometry.groups, *geometry.kernel)  # the weight's
        self.kept: Tensor | None = None  # (B, …) rows in the order of `order`
        self.terms: Tensor | None = None  # (B,), once it is known
        self.order = ""  # "" for rows as (p, C/groups, *kernel), else their layout: "kpc" or "pkc" with k the taps

    def measure_squared_norms(self, options: PerformanceOptions) -> Tensor:
        """Returns the squared norms of a convolution's weight gradients, by whichever formula was fastest for this
        shape.
        """
        if self.kept is not None:
            return square_sum(self.kept)
        b, out = self.a.shape[0], self.g.shape[2:]
        if not b:
            return self.a.new_zeros(0)
        # Decide whether rows may be kept until the sum, and by which formula.
        size = prod(self.shape)
        sample = self.a[:1].numel() + self.g[:1].numel()
        keep = may_keep_rows(size, sample, b, options, self.a.element_size())
        choice = self._choose_formula(options, keep)
        if choice in _KERNELS:
            return self._measure_compiled(keep, choice)
        # Gram formulas, in passes that fit the scratch memory. Samples whose sums cancelled are measured again from
        # rows, and the others are raised by what rounding may have hidden, so no norm reads low.
        if choice in _GRAMS:
            n = prod(out) if choice == "gram" else self._grid_pixels()
            patches = 0 if choice == "shifted" else self.a.shape[1] * self.geometry.taps * prod(out)
            step = samples_per_pass(3 * n * n * self.geometry.groups + patches, options, self.a.element_size())
            products = [
                compute_gram_sums(self.a[i : i + step], self.g[i : i + step], self.geometry, choice)
                for i in range(0, b, step)
            ]
            squared = torch.cat([s for s, _ in products])
            diagonal, self.terms = torch.cat([d for _, d in products]), self._sum_terms_by_position()
            additions = self.a.shape[1] * self.geometry.taps + self.g.shape[1]
            return guard_gram_sums(
                squared,
                diagonal,
                self.terms,
                lambda index: square_sum(self.rows(index)),
                samples_per_pass(size, options),
                additions,
            )
        # Rows, measured and dropped, or kept for the sum in place of input and output gradient.
        step = b if choice != "shift" else samples_per_pass(2 * sample + size, options, self.a.element_size())
        if not keep:
            step = min(step, samples_per_pass(size, options, self.a.element_size()))
            return torch.cat([square_sum(self._rows(slice(i, i + step), choice)) for i in range(0, b, step)])
        found = [self._rows(slice(i, i + step), choice) for i in range(0, b, step)]
        self.order = ORDER.get(choice, "")
        self.kept = found[0] if len(found) == 1 else torch.cat(found)
        self.a = self.g = self.kept[:, :0]  # freed: the rows say it all
        return square_sum(self.kept)

    def _measure_compiled(self, keep: bool, choice: str) -> Tensor:
        """Returns the norms of a convolution's weight gradients by a compiled kernel, which writes the rows only if
        they are kept.
        """
        kernel = self._usable_kernels()[choice]
        taps, channels = self.geometry.taps, self.shape[1]
        kept = self.workspace.allocate_rows((len(self.a), self.shape[0], taps, channels), self.a) if keep else None
        squared = kernel.measure_rows(self.a, self.g, self.geometry, kept).add_(prod(self.shape) * VANISHED)
        if kept is not None:
            self.kept, self.order = kept, "pkc"
            self.a = self.g = kept[:, :0]
        return squared

    def _usable_kernels(self) -> dict[str, SampleGradients]:
        """Returns the compiled kernels that take the weight gradients of this convolution, by name."""
        if depthwise.can_run(self.a, self.g, self.geometry) and (own := depthwise.load_gradients()) is not None:
            return {"depthwise": own}
        found = {
            "winograd": winograd_rows.load_gradients()
            if winograd_rows.can_run(self.a, self.g, self.geometry)
            else None,
            "compiled": convolution.load_gradients() if convolution.can_run(self.a, self.g, self.geometry) else None,
        }
        return {name: kernel for name, kernel in found.items() if kernel is not None}

    def _grid_pixels(self) -> int:
        """Returns the number of pixels of the flattened padded grid."""
        out, geometry = self.g.shape[2:], self.geometry
        return prod(n + d * (k - 1) for n, d, k in zip(out, geometry.dilation, geometry.kernel, strict=True))

    def _choose_formula(self, options: PerformanceOptions, keep: bool) -> str:
        """Returns the formula for the norms of a convolution's weight: as chosen before, by shape, or by timing all
        candidates on some samples.
        """
        geometry, t = self.geometry, prod(self.g.shape[2:])
        p, d = self.shape[0], prod(self.shape[1:])
        kernels = self._usable_kernels()
        # Depthwise layers have a formula of their own; without a stopwatch, shapes decide.
        if geometry.groups == self.a.shape[1] == p:
            return "depthwise" if "depthwise" in kernels else "taps"
        if not options.measure:
            return choice_by_shape.choose_norms_formula(geometry, self.a, self.g, keep=keep, kernels=kernels)
        # The key holds all that speed depends on, so that a choice is made once per layer and machine.
        shapes = (self.a.shape[1:], self.g.shape[1:], self.a.stride()[1:], self.g.stride()[1:])
        key = ("conv", geometry, *shapes, self.a.dtype, self.a.device, torch.get_num_threads(), keep)
        choice = self.workspace.stopwatch.known_choice(key)
        if choice is None and self.workspace.stopwatch.stopped:
            return choice_by_shape.choose_norms_formula(geometry, self.a, self.g, keep=keep, kernels=kernels)
        if choice is None:
            # Time norms and sum together on a few samples, each candidate as it would run on a batch.
            timed_samples = slice(0, samples_to_time(max(prod(self.shape), d * t)))
            sub = Convolution(self.a[timed_samples], self.g[timed_samples], geometry, self.workspace)
            w = torch.ones(sub.a.shape[0], device=self.a.device, dtype=self.a.dtype)
            total = self.a.new_empty(self.shape)
            self._choose_sum_code(torch.ones(self.a.shape[0], device=self.a.device, dtype=self.a.dtype))
            grams = t * t <= 4 * p * d  # larger ones have never won
            names = ["unfold", "native", *(["last"] if geometry.groups == 1 else [])]
            names += ["shift"] if geometry.shiftable else []
            names = list(kernels) or names  # where there are kernels, the others have never been faster
            if grams and sub.a.shape[0] * p * d * self.a.element_size() > (options.keep_bytes or 0):
                names = []  # rows this large are not even tried
            names += ["gram"] if grams else []
            names += ["shifted"] if geometry.shiftable and t * t <= 4 * p * d else []

            def make_candidate(name: str) -> Callable[[], None]:
                """Returns a function that measures and sums the weight gradients of a convolution by one formula."""

                def run() -> None:
                    """Computes norms and sum of a convolution's weight gradients once."""
                    if name in _GRAMS:
                        compute_gram_sums(sub.a, sub.g, geometry, name)
                        sub.add_to(total, w, 0)
                    elif name in _KERNELS:
                        one = Convolution(sub.a, sub.g, geometry, self.workspace)
                        one._measure_compiled(keep, name)
                        one.add_to(total, w, 0)
                    else:
                        found = sub._rows(slice(None), name)
                        square_sum(found)
                        if keep:
                            found.flatten(1).t() @ w
                        else:
                            sub.add_to(total, w, 0)

                return run

            choice = self.workspace.stopwatch.choose_fastest(
                key, self.a.device, {name: make_candidate(name) for name in names}
            )
        if choice in _KERNELS and choice not in kernels:  # a checkpoint from a machine that had it
            return next(iter(kernels), "unfold")
        return choice

    def _rows(self, where: slice | Tensor, choice: str) -> Tensor:
        """Returns the per-sample gradients of some samples by one formula."""
        return compute_rows(self.a[where], self.g[where], self.shape, self.geometry, choice, self.workspace)

    def _sum_by_torch(self, weights: Tensor) -> Tensor:
        """Returns the weighted sum by the framework's weight gradient."""
        scaled = self.g * weights.view(-1, *[1] * (self.g.dim() - 1))
        return sum_by_torch(self.a, scaled, self.shape, self.geometry)

    def _to_weight_order(self, tap_first: Tensor) -> Tensor:
        """Returns rows of a convolution in its weight's own order of dimensions."""
        if not self.order:
            return tap_first
        turned = tap_first.movedim(-3 if self.order == "kpc" else -2, -1)
        return turned.reshape(*tap_first.shape[:-3], *self.shape)

    def bound_squared_terms(self, options: PerformanceOptions) -> Tensor | None:
        """Returns (Σ_pos ‖patch‖‖g‖)² of a convolution's weight after a Gram sum, whose rounding it bounds; else
        K‖a‖²‖g‖².

        The latter is no less, as a pixel is in K patches.
        """
        return None if self.kept is not None else self._terms()

    def _sum_terms_by_position(self) -> Tensor:
        """Returns (Σ_pos ‖patch‖‖g‖)² of a convolution's weight by group; a patch holds what its pixels hold, added up
        over the taps.
        """
        geometry, out = self.geometry, self.g.shape[2:]
        pixels = geometry.fit_input(self._squares_by_group(self.a), out)  # (B, groups, …)
        patches = torch.stack(list(geometry.iterate_tap_slices(pixels, out))).sum(0)
        return patches.mul_(self._squares_by_group(self.g)).sum(1).sqrt_().flatten(1).sum(1).square_()

    def _squares_by_group(self, x: Tensor) -> Tensor:
        """Returns ‖x‖² by group and position of the input or output gradient of a convolution's weight, (B, C, *S) to
        (B, groups, *S), no less than a little for each element.
        """
        groups = self.geometry.groups
        grouped = x.unsqueeze(1) if groups == 1 else x.unflatten(1, (groups, -1))
        found: Tensor = torch.linalg.vector_norm(grouped, dim=2)
        return found.square_().add_(grouped.shape[2] * vanishing_floor(x.dtype))

    def _terms(self) -> Tensor:
        """Returns the terms of a convolution's weight gradients that were found with a Gram sum, or else the simpler
        bound.
        """
        if self.terms is None:
            floor = vanishing_floor(self.a.dtype)
            self.terms = estimate_square_sum(self.a, floor).mul_(self.geometry.taps) * estimate_square_sum(
                self.g, floor
            )
        return self.terms

    def dot(self, u: Tensor) -> Tensor:
        """Returns the product of a convolution's weight gradients with U: Σ_pos g · (the convolution with U in place of
        the weight).
        """
        if self.kept is not None:
            return GradientRows(self._to_weight_order(self.kept).contiguous()).dot(u)
        geometry = self.geometry
        a = geometry.fit_input(self.a, self.g.shape[2:])
        rank = len(geometry.kernel)
        convolve = (torch.conv1d, torch.conv2d, torch.conv3d)[rank - 1]
        zero = (0,) * rank
        y = convolve(a, u.to(a.dtype), None, geometry.stride, zero, geometry.dilation, geometry.groups)
        return (y * self.g).flatten(1).sum(1)

    def add_to(self, out: Tensor, weights: Tensor, beta: int = 1) -> None:
        """Adds the weighted gradients of a convolution's weight: the framework's weight gradient of c·g, a compiled
        kernel's, or the kept rows.
        """
        w = weights.to(out.dtype)
        # Rows that were kept for the norms are simply added up with weights.
        if self.kept is not None:
            rows = self.kept.flatten(1)
            add_rows(total := rows.new_empty(rows.shape[1]), rows, w, 0)
            total = self._to_weight_order(total.view(self.kept.shape[1:]))
        else:
            choice = self._choose_sum_code(w)
            # Few positions: one large product over samples and positions at once.
            if choice == "product":
                scaled = (self.g * w.view(-1, *[1] * (self.g.dim() - 1))).flatten(2)  # (B, p, T)
                add_outer(out.view(out.shape[0], -1), scaled.transpose(1, 2).flatten(0, 1), self._unfold_all(), beta)
                return
            total = self._compute_sum(w, choice)
        if beta:
            out.add_(total)
        else:
            out.copy_(total)

    def _compute_sum(self, w: Tensor, choice: str) -> Tensor:
        """Returns the weighted sum of a convolution's weight gradients by a compiled kernel, or by the framework where
        there is none of that name.
        """
        kernel = self._usable_kernels().get(choice)
        if kernel is None:
            return self._sum_by_torch(w)
        total = kernel.weighted_sum(self.a, self.g, self.geometry, w)  # (p, K, C)
        return total.mT.reshape(self.shape)

    def _unfold_all(self) -> Tensor:
        """Returns all patches as rows of one matrix, (B·T, d)."""
        patches = self.geometry.unfold_patches(self.geometry.fit_input(self.a, self.g.shape[2:]))[:, 0]  # (B, d, T)
        return patches.transpose(1, 2).flatten(0, 1)

    def _choose_sum_code(self, w: Tensor) -> str:
        """Returns the code for the weighted sum of a convolution's weight gradients, by timing.

        With few positions one product with the patches may beat both kernels, up to tenfold at one position.
        """
        # Times depend on the shapes and strides of both tensors.
        b, t = self.g.shape[0], prod(self.g.shape[2:])
        shapes = (self.a.shape[1:], self.g.shape[1:], self.a.stride()[1:], self.g.stride()[1:])
        # Time the framework, one large product where there are few positions, and the compiled kernels.
        key = ("sum", self.geometry, *shapes, self.a.dtype, self.a.device)
        choice = self.workspace.stopwatch.known_choice(key) if b else "native"
        if choice is None:

            def product() -> None:
                """Multiplies all output gradients with all patches."""
                self.g.flatten(2).transpose(1, 2).flatten(0, 1).t() @ self._unfold_all()

            ways: dict[str, Callable[[], object]] = {"native": lambda: self._sum_by_torch(w)}
            if self.geometry.groups == 1 and t <= _FEW_POSITIONS:
                ways["product"] = product
            for name in self._usable_kernels():
                ways[name] = partial(self._compute_sum, w, name)
            first = choice_by_shape.choose_sum_code(
                self.a.shape, self.g.shape, ways
            )  # the one taken where nothing is measured
            choice = self.workspace.stopwatch.choose_fastest(key, self.a.device, {first: ways[first], **ways})
        return choice

    def rows(self, where: slice | Tensor) -> Tensor:
        """Returns the weight gradients of a convolution for some samples."""
        if self.kept is not None:
            return self._to_weight_order(self.kept[where])
        return self._rows(where, "unfold" if self.a.is_cpu else "grouped")

    def mask_samples(self, mask: Tensor) -> Convolution:
        """Returns the part of a convolution's weight with both factors masked."""
        masked = Convolution(
            zero_masked_rows(self.a, mask), zero_masked_rows(self.g, mask), self.geometry, self.workspace
        )
        masked.shape = self.shape
        masked.kept, masked.order = (None if self.kept is None else zero_masked_rows(self.kept, mask)), self.order
        return masked

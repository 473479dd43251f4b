"""Formulas for linear maps y_t = W a_t + b at any number T of positions.

They serve Linear, and what attention and recurrent layers are made of. With a: input (B, T, d) and g: gradient at the
output (B, T, p), sample i's gradient is Σ_t g_it a_itᵀ.

    T = 1:  ‖g_i‖²·‖a_i‖²
    Gram:   Σ_ts (a_t·a_s)(g_t·g_s)          no (p, d) matrix per sample; torch's products, or a compiled kernel
    rows:   ‖gᵀa‖²                           kept, they serve the sum as well
    sum:    one product (c·g)ᵀ a             (Lee & Kifer 2021, arXiv:2009.03106; Bu et al. 2023, arXiv:2210.00038)

`run_linear_map` runs the map itself, y = x Wᵀ + b, and at the input g W, by the faster of two products. The compiled one
takes float32 on the CPU with dense rows, outside autocast. Which is faster is found by timing, forward and backward each
for itself; where nothing is measured the compiled one is taken on processors whose vectors are as wide as its own, and on
all of AMD's, where torch multiplies eight floats at a time. `multiply_rows` is the same product outside autograd's graph.

Privacy: a Gram sum cancels where token gradients do, and then reads low. Samples whose squared norm is a small part of
its own diagonal Σ_t ‖a_t‖²‖g_t‖² are measured again from rows, whose error is the square root of the Gram's; the others
are raised by a few roundings of (Σ_t ‖a_t‖‖g_t‖)², which is more than a Gram sum loses. The lengths are taken position
by position: where a weight is used on inputs of unlike sizes, ‖a‖²‖g‖² is thousands of times more, and which formula
was fastest would decide how far a sample is clipped.

Where a and g are bfloat16, kernels multiply them as they are, and take values below tiny = 2⁻¹²⁶ for zero, which
torch's products do not. What that hides, of a value or of a product, is less than tiny for each; every length of terms
is at least √(n·tiny/4eps) for n elements (`vanishing_floor`), and what a norm is raised by of those lengths is more than
was hidden, whoever sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sordino.kernels.affine import Affines, load_affines
from sordino.kernels.gram import load_grams
from sordino.kernels.processor import torch_computes_sixteen_at_once
from sordino.per_sample.formulas import choice_by_shape
from sordino.per_sample.formulas.compound_parts import register_joiner
from sordino.per_sample.formulas.gradient_part import (
    Part,
    Squares,
    add_rows,
    estimate_lengths,
    estimate_lengths_above,
    estimate_square_sum,
    is_autocasting,
    lift_precision,
    may_keep_rows,
    samples_per_pass,
    split_rows,
    square_sum,
    zero_masked_rows,
)
from sordino.per_sample.formulas.output_gradient import (
    OutputGradient,
    add_weighted_product,
    compute_gram_sums,
    compute_rows,
    gram_sums_from,
)
from sordino.per_sample.formulas.workspace import Workspace
from sordino.per_sample.performance_options import PerformanceOptions
from sordino.release.vectors import accumulation_dtype

_SMALL = 1 << 26
"""Multiplications; in fewer there is less to gain than a function of one's own in autograd's graph costs."""

_SMALLER = 1 << 21
"""The same for products outside autograd's graph, where only the call costs something."""

_CANCELLED = 0.05
"""Below this share of its diagonal a Gram sum has lost more than a digit, and rows are computed instead."""


_ROUNDINGS = 4
_AGAIN = 4
"""Samples that are measured again at every step on a device, at least; a sixteenth of larger batches."""


def run_linear_map(x: Tensor, weight: Tensor, bias: Tensor | None, size: int, workspace: Workspace) -> Tensor:
    """Runs a linear map, a matrix product as `F.linear` computes for x (rows, d) of `size` samples, by whichever code
    is faster for their shapes.
    """
    kernel = load_affines() if x.numel() * len(weight) >= _SMALL else None
    if kernel is None or not kernel.can_multiply(x, weight.t()) or is_autocasting(x.device) or x.is_inference():
        return torch.nn.functional.linear(x, weight, bias)
    y: Tensor = _LinearMap.apply(x, weight, bias, len(x) // max(1, size), kernel, workspace)  # type: ignore[no-untyped-call]
    return y


def multiply_rows(which: str, x: Tensor, m: Tensor, bias: Tensor | None, workspace: Workspace) -> Tensor:
    """Returns x m + b for x (rows, k), one row for each sample, by whichever code is faster for their shapes; nothing is
    recorded for autograd.

    Args:
        which: "mapped" for the forward pass of a linear map, "mapped back" for the gradient at its input. The two are
            timed apart.
        x: the input, or the gradient at the output.
        m: the weight's transpose, or the weight.
        bias: of the outputs.
        workspace: has the stopwatch.

    """
    kernel = load_affines() if x.numel() * m.shape[1] >= _SMALLER else None
    if kernel is None:
        return _multiply_by_torch(x, m, bias)
    return _run_fastest(which, x, m, bias, 1, kernel, workspace)


class _LinearMap(torch.autograd.Function):
    """Runs a linear map whose forward and backward pass each choose their own code."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, each: int, kernel: Affines, workspace: Workspace
    ) -> Tensor:
        """Computes the output of a linear map for the formulas of the matrix product, by the faster code."""
        ctx.save_for_backward(weight)
        ctx.each, ctx.kernel, ctx.workspace = each, kernel, workspace
        return _run_fastest("mapped", x, weight.t(), bias, each, kernel, workspace)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, None, None, None, None]:
        """Computes the gradient at the input of a linear map, a matrix product too, by the faster code, if it is
        needed.
        """
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None, None
        (weight,) = ctx.saved_tensors
        found = _run_fastest("mapped back", g, weight, None, ctx.each, ctx.kernel, ctx.workspace)
        return found, None, None, None, None, None


def _run_fastest(
    which: str, x: Tensor, m: Tensor, bias: Tensor | None, each: int, kernel: Affines, workspace: Workspace
) -> Tensor:
    """Returns the matrix product x m + b by the code that is faster for this shape, which is found at its first use."""
    # The kernel needs float32 on the CPU with dense rows.
    if not kernel.can_multiply(x, m):
        return _multiply_by_torch(x, m, bias)
    threads = torch.get_num_threads()
    # A choice holds for a number of rows per sample, a matrix shape and a number of threads.
    key = (which, each, *m.shape, threads)
    choice = workspace.stopwatch.known_choice(key)
    if choice is None:
        ways = {"torch": lambda: _multiply_by_torch(x, m, bias), "compiled": lambda: kernel(x, m, bias, threads)}
        instructions = torch.backends.cpu.get_cpu_capability()
        first = choice_by_shape.choose_product_code(instructions, wide=torch_computes_sixteen_at_once(instructions))
        choice = workspace.stopwatch.choose_fastest(key, x.device, {first: ways[first], **ways})
    return kernel(x, m, bias, threads) if choice == "compiled" else _multiply_by_torch(x, m, bias)


def _multiply_by_torch(x: Tensor, m: Tensor, bias: Tensor | None) -> Tensor:
    """Returns x m + b by torch."""
    return torch.mm(x, m) if bias is None else torch.addmm(bias, x, m)


def gram_rounding_factor(dtype: torch.dtype) -> float:
    """Returns the factor of (Σ_t ‖a_t‖‖g_t‖)² by which a Gram sum may read low."""
    return _ROUNDINGS * torch.finfo(dtype).eps


def vanishing_floor(dtype: torch.dtype) -> float:
    """Returns what each element of a matrix product's factors adds to the square of a length.

    It is so much that what a Gram sum loses of products too small is within its rounding too.
    """
    return torch.finfo(dtype).tiny / gram_rounding_factor(dtype)


def guard_gram_sums(
    squared: Tensor,
    diagonal: Tensor,
    terms: Tensor,
    measure_rows: Callable[[Tensor], Tensor],
    samples_at_once: int,
    additions: int,
) -> Tensor:
    """Returns Gram sums of matrix products that do not read low: measured again where they cancelled, and raised by
    what rounding may hide.

    On the CPU the samples that cancelled are looked up and all of them are measured again. On a device the host would have
    to wait for their number. So the same number of samples is measured again at every step, those that cancelled most;
    if more have cancelled, the others stay raised by the bound, which is higher than their norm and never lower.

    Args:
        squared: the Gram sums, (B,).
        diagonal: the part of each that cannot cancel, (B,).
        terms: the square of what each sample's terms come to without cancelling, (B,).
        measure_rows: returns the squared norms of some samples, given their index, from their rows.
        samples_at_once: how many samples' rows fit into memory.
        additions: how many products are added up for one element of a Gram matrix; it counts where libraries add them.

    """
    # A Gram sum that is small beside its diagonal has lost its digits to cancellation, and could read low.
    # On the host exactly the cancelled samples are measured again from their rows.
    if squared.is_cpu:
        has_cancelled = squared < _CANCELLED * diagonal
        factor = gram_rounding_factor(squared.dtype)
        # Without the compiled kernels PyTorch's libraries add up the products, as they do on a device.
        if load_grams() is None:
            factor = device_rounding_factor(squared.dtype, additions)
        raised = squared + terms.mul(factor)
        again = has_cancelled.nonzero().flatten()
        for index in split_rows(again, samples_at_once):
            raised[index] = measure_rows(index)
        return raised
    # On a device nobody waits to see which samples cancelled: those with the largest deficit are measured in any case.
    # What `topk` finds below 0 has cancelled. Every operation here is a launch, so there are few.
    raised = torch.add(squared, terms, alpha=device_rounding_factor(squared.dtype, additions))
    if not len(squared):
        return raised
    count = max(1, min(len(squared), max(_AGAIN, len(squared) // 16)))
    surplus, most = torch.topk(torch.add(squared, diagonal, alpha=-_CANCELLED), count, largest=False)
    has_cancelled = surplus < 0
    for index, cancelled in zip(
        split_rows(most, samples_at_once), split_rows(has_cancelled, samples_at_once), strict=True
    ):
        measured = torch.where(cancelled, measure_rows(index), raised[index])
        raised = raised.index_copy_(0, index, measured)
    return raised


def device_rounding_factor(dtype: torch.dtype, additions: int) -> float:
    """Returns by how much the formula of a matrix product's Gram sum may read low where a device's libraries computed it:
    a factor of (Σ_t ‖a_t‖‖g_t‖)².

    They add up `additions` products in an order of their own. By the probabilistic analysis of rounding (Higham and Mary
    2019, doi:10.1137/18M1226312) a sum of n products is off by more than λ √n u of its terms with a probability below
    2 exp(−λ²/2); with λ = 8, 3e-14.
    """
    return gram_rounding_factor(dtype) * (1 + math.sqrt(additions))


class Matmul:
    """Holds the per-sample gradients of a linear map's weight as its input and output gradient."""

    __slots__ = ("a", "g", "kept", "number", "output", "squares", "start", "terms", "workspace")

    def __init__(
        self,
        a: Tensor,
        g: Tensor,
        output: OutputGradient | None = None,
        squares: Squares | None = None,
        start: int = 0,
        workspace: Workspace | None = None,
    ) -> None:
        """Takes a (B, T, d) and g (B, T, p); T = 1 may be left out of both, and then `squares` may give ‖g‖².

        `output` is given where other weights share g, and `start` is the column of what they read where a begins.
        """
        # One position is a plain outer product, for which norms have a simpler formula.
        if a.dim() == 3 and a.shape[1] == 1:
            a, g = a[:, 0], g[:, 0]
        self.a = a
        self.g = g
        # Weights of one output share its gradient, and with it the Gram matrix ggᵀ.
        self.workspace = workspace if output is None else output.workspace
        self.output = None if a.dim() == 2 else output or OutputGradient(g, None, workspace)
        self.number = 0 if self.output is None else self.output.add_input(a)
        self.squares = squares
        self.start = start
        self.terms: Tensor | None = None  # (B,), once it is known
        self.kept: Tensor | None = None  # (B, p, d), in place of a and g once it exists

    def measure_squared_norms(self, options: PerformanceOptions) -> Tensor:
        """Returns the squared norms of a matrix product's weight, by whichever formula was fastest for this shape."""
        if self.kept is not None:
            return square_sum(self.kept)
        # One position: the norm of an outer product is the product of the norms.
        if self.a.dim() == 2:
            return square_sum(self.a) * (square_sum(self.g) if self.squares is None else self.squares())
        b, t, d = self.a.shape
        p = self.g.shape[2]
        dtype = accumulation_dtype(self.a.dtype)
        if not b or not t:
            return self.a.new_zeros(b, dtype=dtype)
        # Decide whether rows may be kept until the sum, and by which formula.
        own_elements = t * (p + d) * self.a.element_size() // dtype.itemsize  # as many elements of rows
        keep = may_keep_rows(p * d, own_elements, b, options, dtype.itemsize)
        assert self.output is not None, "there are positions"
        choice = self.output.choose_formula(options, keep)
        # Gram sums, compiled or by torch, guarded against cancellation.
        if choice == "compiled":
            squared, diagonal, self.terms = self.output.compiled_gram_sums(self.number, vanishing_floor(dtype))
            return self._guard_cancellation(squared, diagonal, options)
        if choice == "gram":
            return self._measure_by_gram(
                self.output, samples_per_pass(2 * t * t, options, self.a.element_size()), options
            )
        # Rows, kept in place of input and output gradient, or measured and dropped a few samples at a time.
        if keep:
            self.kept, squared = compute_rows(self.a, self.g, self.output.workspace)
            self.a = self.g = self.kept[:, 0]  # freed: the rows say it all
            self.output = None
            return squared
        step = samples_per_pass(p * d, options, dtype.itemsize)
        both = zip(split_rows(self.a, step), split_rows(self.g, step), strict=True)
        return torch.cat([compute_rows(a, g, self.output.workspace)[1] for a, g in both])

    def _measure_by_gram(self, output: OutputGradient, step: int, options: PerformanceOptions) -> Tensor:
        """Returns the squared norms of a matrix product by torch's Gram products, sharing ggᵀ between weights of one
        output if it fits.
        """
        b, t, _ = self.a.shape
        # Several weights of one output: ggᵀ is made once if it fits in memory.
        if len(output.inputs) > 1 and b * t * t * self.a.element_size() <= (options.keep_bytes or 0):
            shared = split_rows(output.gram_matrix(), step)
            gram_sums = [gram_sums_from(a, gram) for a, gram in zip(split_rows(self.a, step), shared, strict=True)]
        else:  # passes small enough for the cache
            gram_sums = [
                compute_gram_sums(a, g) for a, g in zip(split_rows(self.a, step), split_rows(self.g, step), strict=True)
            ]
        return self._guard_cancellation(
            torch.cat([s for s, _ in gram_sums]), torch.cat([d for _, d in gram_sums]), options
        )

    def _guard_cancellation(self, squared: Tensor, diagonal: Tensor, options: PerformanceOptions) -> Tensor:
        """Returns Gram sums of a matrix product that do not read low."""
        d, p = self.a.shape[2], self.g.shape[2]
        step = samples_per_pass(d * p, options, squared.element_size())
        return guard_gram_sums(
            squared, diagonal, self._squared_terms(), lambda index: square_sum(self.rows(index)), step, d + p
        )

    def bound_squared_terms(self, options: PerformanceOptions) -> Tensor | None:
        """Returns (Σ_t ‖a_t‖‖g_t‖)² of a matrix product, or ‖a‖²‖g‖² where positions are not next to each other.

        The latter is no less, by Cauchy and Schwarz.
        """
        return None if self.kept is not None or self.a.dim() == 2 else self._squared_terms()

    def _squared_terms(self) -> Tensor:
        """Returns the squared terms of a matrix product, computed once."""
        if self.terms is None:
            a, g = lift_precision(self.a), lift_precision(self.g)
            floor = vanishing_floor(a.dtype)
            if not a.is_cpu:
                # √(x² + f) is at most x + √f, and one launch less: the terms may come out larger, never smaller.
                lengths = [estimate_lengths_above(x, floor) for x in (a, g)]
                self.terms = lengths[0].mul_(lengths[1]).sum(1).square_()
            elif a.stride(2) == g.stride(2) == 1:
                self.terms = (estimate_lengths(a, floor) * estimate_lengths(g, floor)).sum(1).square_()
            else:  # six times the price
                self.terms = estimate_square_sum(a, floor) * estimate_square_sum(g, floor)
        return self.terms

    def dot(self, u: Tensor) -> Tensor:
        """Returns Σ_t g_t · (U a_t): the layer's own forward matrix product, with U in place of the weight."""
        if self.kept is not None:
            return (self.kept.flatten(1) * u.flatten().to(self.kept.dtype)).sum(1)
        a = lift_precision(self.a)
        return (torch.nn.functional.linear(a, u.to(a.dtype)) * self.g).flatten(1).sum(1)

    def add_to(self, out: Tensor, weights: Tensor, beta: int = 1) -> None:
        """Adds the weighted gradients of a linear map's weight by one matrix product over all samples and positions."""
        w = weights.to(out.dtype)
        if self.kept is not None:
            add_rows(out.view(-1), self.kept.flatten(1), w, beta)
            return
        total = None if self.output is None else self.output.compute_shared_sum(w)
        if total is None:
            add_weighted_product(self.a, self.g, w, out, beta)
        else:
            mine = total[:, self.start : self.start + self.a.shape[2]]
            out.copy_(mine) if not beta else out.add_(mine)

    def rows(self, where: slice | Tensor) -> Tensor:
        """Returns the matrix product gᵀa per sample."""
        if self.kept is not None:
            return self.kept[where]
        a, g = lift_precision(self.a[where]), lift_precision(self.g[where])
        return g.unsqueeze(2) * a.unsqueeze(1) if a.dim() == 2 else torch.bmm(g.transpose(1, 2), a)

    def mask_samples(self, mask: Tensor) -> Matmul:
        """Returns the part of a matrix product with both factors masked."""
        masked = Matmul(zero_masked_rows(self.a, mask), zero_masked_rows(self.g, mask), workspace=self.workspace)
        masked.kept = None if self.kept is None else zero_masked_rows(self.kept, mask)
        return masked


def _with_positions(tensor: Tensor) -> Tensor:
    """Returns a tensor with a dimension for positions."""
    return tensor.unsqueeze(1) if tensor.dim() == 2 else tensor


@register_joiner
def _join_along_positions(parts: Sequence[Part]) -> Part | None:
    """Joins the matrix products of several uses of one layer, which together are a layer with more positions."""
    same = [part for part in parts if isinstance(part, Matmul)]
    if len(same) < len(parts):
        return None
    a, g = (
        torch.cat([_with_positions(each) for each in uses], 1) for uses in zip(*[(p.a, p.g) for p in same], strict=True)
    )
    return Matmul(a, g, workspace=same[0].workspace)

"""Shares a linear map's output gradient between its weights, and chooses their norms' formula.

    Gram:      Σ_ts (a_t·a_s)(g_t·g_s) by torch, a T × T matrix per sample at a time
    compiled:  the same by tiles, half the products (kernels/gram.c)
    rows:      gᵀa per sample, by torch or compiled (kernels/product.c)

Where the processor multiplies bfloat16, a and g that are bfloat16 stay so (`as_multiplied`): kernels read them as they
are, and everything that comes of them is float32. torch's own products would round their results, so none is made of
them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sordino.kernels.bf16_gram import LowGrams, low_grams
from sordino.kernels.bf16_product import low_products, reads
from sordino.kernels.gram import Grams, grams
from sordino.kernels.kernel_tensors import on_cpu
from sordino.kernels.product import products
from sordino.per_sample.engine.engine_options import PerformanceOptions
from sordino.per_sample.first_batch.formula_timing import samples
from sordino.per_sample.formulas import choice_by_shape
from sordino.per_sample.formulas.gradient_part import add_outer, lift, square_sum
from sordino.per_sample.formulas.workspace import Workspace
from sordino.per_sample.row_arithmetic import vanished
from sordino.release.vectors import accumulation_dtype


def as_multiplied(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Returns input (B, T, d), rounded to what the layer multiplied, and output gradient (B, T, p), as both are read.

    They are in bfloat16 where kernels take both, else in the precision of accumulation: norm and sum read the same
    values.
    """
    a = a if a.dtype == g.dtype else a.to(g.dtype)
    kernel = low_products() if g.dtype is torch.bfloat16 else None
    if kernel is not None and low_grams() is not None and kernel.takes(g, a):
        return a, g
    return lift(a), lift(g)


def over_positions(g: Tensor) -> Tensor:
    """Returns Σ_t g_it, (B, p) in the precision of accumulation, for g (B, T, p): the gradients of a bias."""
    if g.shape[1] == 1:
        return lift(g[:, 0])
    kernel = low_products() if reads(g) else None
    return lift(g).sum(1) if kernel is None else kernel.over_positions(g, torch.get_num_threads())


def gram_of(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Returns Σ_ts (a_t·a_s)(g_t·g_s) and its diagonal part, each (b,)."""
    return gram_with(a, torch.bmm(g, g.transpose(1, 2)))


def gram_with(a: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the Gram sums and their diagonal part, each (b,), with ggᵀ (b, T, T) given."""
    product = torch.bmm(a, a.transpose(1, 2)).mul_(gram)  # (b, T, T)
    return product.sum(2).sum(1), product.diagonal(dim1=1, dim2=2).sum(1)


def add_product(a: Tensor, g: Tensor, w: Tensor, out: Tensor, beta: int) -> None:
    """Sets out = β out + Σ_it w_i g_it a_itᵀ, for a (B, T, d) and g (B, T, p), or both without T."""
    # bfloat16 goes to its own kernel, or is lifted: torch would round the result.
    if a.dtype is torch.bfloat16:
        low = low_products()
        if low is not None and a.dim() == 3 and reads(g, a) and on_cpu(out) and out.stride(1) == 1:
            low.add(g, a, w, out, beta, torch.get_num_threads())
            return
        a, g = lift(a), lift(g)
    # Tensors in which positions come first in memory are read in that order, so that nothing is copied.
    turned = a.dim() == 3 and a.stride(0) < a.stride(1) and g.stride(0) < g.stride(1)  # positions come first in memory
    if turned:
        a, g = a.transpose(0, 1), g.transpose(0, 1)
    # The compiled product takes the weights beside the rows.
    rows, kernel = (g.flatten(0, -2), a.flatten(0, -2)), products()
    if kernel is not None and kernel.takes(*rows, out):
        if a.dim() == 3:
            w = w.repeat(len(a)) if turned else w.repeat_interleave(a.shape[1])
        kernel.add(*rows, w, out, beta, torch.get_num_threads())
        return
    # torch's product: multiply the narrower factor by the weights.
    spread = w.unsqueeze(1) if turned or a.dim() == 2 else w.view(-1, 1, 1)
    a, g = (a * spread, g) if a.shape[-1] < g.shape[-1] else (a, g * spread)  # scale the narrower factor
    add_outer(out, g.flatten(0, -2), a.flatten(0, -2), beta)


def rows_of(a: Tensor, g: Tensor, workspace: Workspace) -> tuple[Tensor, Tensor]:
    """Returns gᵀa of every sample, (B, p, d), in memory that is used again, and their squared norms, (B,)."""
    held = workspace.room((len(a), g.shape[2], a.shape[2]), a, accumulation_dtype(a.dtype))
    if a.dtype is torch.bfloat16:
        low = low_products()
        if low is not None and reads(g, a):
            return held, low.rows(g, a, held, torch.get_num_threads()).add_(vanished(held))
        a, g = lift(a), lift(g)
    kernel = products()
    if kernel is not None and kernel.takes_rows(g, a):
        return held, kernel.rows(g, a, held, torch.get_num_threads()).add_(vanished(held))
    torch.bmm(g.transpose(1, 2), a, out=held)
    return held, square_sum(held)


class Output:
    """Holds the gradient at an output, and the inputs that met in it: one, or two in a recurrent layer."""

    __slots__ = ("choice", "g", "gram", "inputs", "read", "sums", "total", "weights", "workspace")

    def __init__(self, g: Tensor, read: Tensor | None = None, workspace: Workspace | None = None) -> None:
        """Takes g (B, T, p), and a tensor (B, T, d) of which the inputs are columns, if there is one."""
        self.g = g
        self.workspace = Workspace() if workspace is None else workspace
        self.read = read
        self.weights: Tensor | None = None
        self.total: Tensor | None = None
        self.inputs: list[Tensor] = []
        self.choice: str | None = None
        self.gram: Tensor | None = None
        self.sums: Tensor | None = None

    def joins(self, a: Tensor) -> int:
        """Adds one more input, (B, T, d), and returns its number."""
        self.inputs.append(a)
        return len(self.inputs) - 1

    def product(self) -> Tensor:
        """Returns ggᵀ of every sample, (B, T, T)."""
        if self.gram is None:
            self.gram = torch.bmm(self.g, self.g.transpose(1, 2))
        return self.gram

    def compiled(self, number: int, floor: float) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the compiled Gram sums of one input, their diagonal parts and (Σ_t ‖a_t‖‖g_t‖)², each (B,).

        `floor`: what each element adds to the square of a length.
        """
        if self.sums is None:
            kernel = self._kernel()
            assert kernel is not None, "it was chosen"
            found = kernel(self.g, self.inputs, torch.get_num_threads(), floor)
            found[:, :, 2].square_()
            self.sums = found.to(accumulation_dtype(self.g.dtype))
        squared, diagonal, terms = self.sums[:, number].unbind(1)
        return squared.clone(), diagonal, terms

    def summed(self, w: Tensor) -> Tensor | None:
        """Returns Σ_it w_i g_it readᵀ_it, (p, d), kept for the next weight with the same w; None without `read`."""
        if self.read is None or len(self.inputs) == 1:
            return None
        if self.total is None or self.weights is not w:
            shape = (self.g.shape[2], self.read.shape[2])
            self.total, self.weights = self.g.new_empty(shape) if self.total is None else self.total, w
            add_product(self.read, self.g, w, self.total, 0)
        return self.total

    def formula(self, options: PerformanceOptions, keep: bool) -> str:
        """Returns how the norms of all its weights are found: `keep` says whether rows may be kept for the sum."""
        if self.choice is None:
            kernel = self._kernel()
            self.choice = self._measured(keep, kernel) if options.measure else self._counted(keep, kernel)
        return self.choice

    def _kernel(self) -> Grams | LowGrams | None:
        """Returns the compiled kernel that reads these tensors, or None."""
        if self.g.dtype is torch.bfloat16:
            return low_grams()
        return grams() if on_cpu(self.g, *self.inputs) else None

    def _counted(self, keep: bool, kernel: Grams | LowGrams | None) -> str:
        """Returns the formula that the shapes speak for."""
        t, p, d = *self.g.shape[1:], sum(a.shape[2] for a in self.inputs)
        low, compiled = self.g.dtype is torch.bfloat16, kernel is not None and bool(kernel.level)
        return choice_by_shape.linear_norms(t, p, d, keep=keep, low=low, compiled=compiled)

    def _measured(self, keep: bool, kernel: Grams | LowGrams | None) -> str:
        """Returns the formula that was fastest for this shape, timing all candidates on some samples if it is new."""
        (_, t, p), widths, threads = self.g.shape, tuple(a.shape[2] for a in self.inputs), torch.get_num_threads()
        key = ("matmul", t, widths, p, self.g.dtype, self.g.device, threads, keep, kernel is None)
        # A choice that was made before is kept; after measuring has stopped, shapes decide.
        choice = self.workspace.stopwatch.known(key)
        if choice is not None:
            return choice
        if self.workspace.stopwatch.stopped:
            return self._counted(keep, kernel)
        # Each candidate computes norms and sum, as a step does.
        few = samples(p * sum(widths))
        g, inputs = self.g[:few], [a[:few] for a in self.inputs]
        read = None if self.read is None else self.read[:few]
        w = torch.ones(len(g), device=g.device, dtype=accumulation_dtype(g.dtype))

        def total() -> None:
            """Computes the sums from input and output gradient."""
            for a in inputs if read is None else (read,):
                add_product(a, g, w, w.new_empty(p, a.shape[2]), 0)

        def gram() -> None:
            """Computes norms by torch's Gram products, and the sums."""
            product = torch.bmm(g, g.transpose(1, 2))
            for a in inputs:
                gram_with(a, product)
            total()

        def compiled() -> None:
            """Computes norms by the compiled kernel, and the sums."""
            assert kernel is not None, "else it is no candidate"
            kernel(g, inputs, threads)
            total()

        def rows() -> None:
            """Computes rows with their norms, and the sums from them if they are kept."""
            for a in inputs:
                held, _ = rows_of(a, g, self.workspace)
                if keep:
                    held.flatten(1).t() @ w
            if not keep:
                total()

        candidates = {"gram": gram, "rows": rows} | ({} if kernel is None else {"compiled": compiled})
        if g.dtype is torch.bfloat16:
            del candidates["gram"]
        return self.workspace.stopwatch.fastest(key, g.device, candidates)

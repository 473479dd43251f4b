"""Shares a linear map's output gradient between its weights, and chooses their norms' formula.

    Gram:      Σ_ts (a_t·a_s)(g_t·g_s) by torch, a T × T matrix per sample at a time
    compiled:  the same by tiles, half the products (kernels/gram.c)
    rows:      gᵀa per sample, by torch or compiled (kernels/product.c)

Where the processor multiplies bfloat16, a and g that are bfloat16 stay so (`prepare_factors`): kernels read them as they
are, and everything that comes of them is float32. torch's own products would round their results, so none is made of
them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sordino.accelerations import accelerate
from sordino.kernels.bf16_gram import LowGrams, load_low_grams
from sordino.kernels.bf16_product import can_read, load_low_products
from sordino.kernels.gram import Grams, load_grams
from sordino.kernels.kernel_tensors import are_cpu_floats
from sordino.kernels.product import load_products
from sordino.per_sample.formulas import choice_by_shape
from sordino.per_sample.formulas.formula_timing import samples_to_time
from sordino.per_sample.formulas.gradient_part import add_outer, lift_precision, square_sum
from sordino.per_sample.formulas.workspace import Workspace
from sordino.per_sample.performance_options import PerformanceOptions
from sordino.per_sample.row_arithmetic import vanished_squares
from sordino.release.vectors import accumulation_dtype


def prepare_factors(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a linear map's input (B, T, d), rounded to what the layer multiplied, and output gradient (B, T, p), as
    both are read.

    They are in bfloat16 where kernels take both, else in the precision of accumulation: norm and sum read the same
    values.
    """
    a = a if a.dtype == g.dtype else a.to(g.dtype)
    kernel = load_low_products() if g.dtype is torch.bfloat16 else None
    if kernel is not None and load_low_grams() is not None and kernel.can_multiply(g, a):
        return a, g
    return lift_precision(a), lift_precision(g)


def sum_over_positions(g: Tensor) -> Tensor:
    """Returns the output gradient summed over positions, Σ_t g_it, (B, p) in the precision of accumulation, for g (B,
    T, p): the gradients of a bias.
    """
    if g.shape[1] == 1:
        return lift_precision(g[:, 0])
    kernel = load_low_products() if can_read(g) else None
    return lift_precision(g).sum(1) if kernel is None else kernel.sum_over_positions(g, torch.get_num_threads())


@accelerate
def compute_gram_sums(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Returns Σ_ts (a_t·a_s)(g_t·g_s) and its diagonal part, each (b,)."""
    return gram_sums_from(a, torch.bmm(g, g.transpose(1, 2)))


def gram_sums_from(a: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the Gram sums and their diagonal part, each (b,), with ggᵀ (b, T, T) given."""
    product = torch.bmm(a, a.transpose(1, 2)).mul_(gram)  # (b, T, T)
    return product.sum(2).sum(1), product.diagonal(dim1=1, dim2=2).sum(1)


def add_weighted_product(a: Tensor, g: Tensor, w: Tensor, out: Tensor, beta: int) -> None:
    """Adds the weighted product of output gradient and input, out = β out + Σ_it w_i g_it a_itᵀ, for a (B, T, d) and g
    (B, T, p), or both without T.
    """
    # bfloat16 goes to its own kernel, or is lifted: torch would round the result.
    if a.dtype is torch.bfloat16:
        low = load_low_products()
        if low is not None and a.dim() == 3 and can_read(g, a) and are_cpu_floats(out) and out.stride(1) == 1:
            low.add_weighted_product(g, a, w, out, beta, torch.get_num_threads())
            return
        a, g = lift_precision(a), lift_precision(g)
    # Tensors in which positions come first in memory are read in that order, so that nothing is copied.
    turned = a.dim() == 3 and a.stride(0) < a.stride(1) and g.stride(0) < g.stride(1)  # positions come first in memory
    if turned:
        a, g = a.transpose(0, 1), g.transpose(0, 1)
    # The compiled product takes the weights beside the rows.
    rows, kernel = (g.flatten(0, -2), a.flatten(0, -2)), load_products()
    if kernel is not None and kernel.can_multiply(*rows, out):
        if a.dim() == 3:
            w = w.repeat(len(a)) if turned else w.repeat_interleave(a.shape[1])
        kernel.add_weighted_product(*rows, w, out, beta, torch.get_num_threads())
        return
    # torch's product: multiply the narrower factor by the weights.
    spread = w.unsqueeze(1) if turned or a.dim() == 2 else w.view(-1, 1, 1)
    a, g = (a * spread, g) if a.shape[-1] < g.shape[-1] else (a, g * spread)  # scale the narrower factor
    add_outer(out, g.flatten(0, -2), a.flatten(0, -2), beta)


def compute_rows(a: Tensor, g: Tensor, workspace: Workspace) -> tuple[Tensor, Tensor]:
    """Returns gᵀa of output gradient and input for every sample, (B, p, d), in memory that is used again, and their
    squared norms, (B,).
    """
    # Rows are written in the dtype in which sums are formed, so bfloat16 inputs lose nothing more here.
    held = workspace.allocate_rows((len(a), g.shape[2], a.shape[2]), a, accumulation_dtype(a.dtype))
    if a.dtype is torch.bfloat16:
        low = load_low_products()
        if low is not None and can_read(g, a):
            return held, low.compute_rows(g, a, held, torch.get_num_threads()).add_(vanished_squares(held))
        a, g = lift_precision(a), lift_precision(g)
    kernel = load_products()
    if kernel is not None and kernel.can_make_rows(g, a):
        return held, kernel.compute_rows(g, a, held, torch.get_num_threads()).add_(vanished_squares(held))
    # Without a kernel, one batched product.
    torch.bmm(g.transpose(1, 2), a, out=held)
    return held, square_sum(held)


class OutputGradient:
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

    def add_input(self, a: Tensor) -> int:
        """Adds one more input, (B, T, d), and returns its number."""
        self.inputs.append(a)
        return len(self.inputs) - 1

    def gram_matrix(self) -> Tensor:
        """Returns the Gram matrix ggᵀ of the output gradient for every sample, (B, T, T)."""
        if self.gram is None:
            self.gram = torch.bmm(self.g, self.g.transpose(1, 2))
        return self.gram

    def compiled_gram_sums(self, number: int, floor: float) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the compiled Gram sums of the output gradient with one input, their diagonal parts and (Σ_t
        ‖a_t‖‖g_t‖)², each (B,).

        `floor`: what each element adds to the square of a length.
        """
        if self.sums is None:
            kernel = self._find_kernel()
            assert kernel is not None, "it was chosen"
            found = kernel(self.g, self.inputs, torch.get_num_threads(), floor)
            found[:, :, 2].square_()
            self.sums = found.to(accumulation_dtype(self.g.dtype))
        squared, diagonal, terms = self.sums[:, number].unbind(1)
        return squared.clone(), diagonal, terms

    def compute_shared_sum(self, w: Tensor) -> Tensor | None:
        """Returns Σ_it w_i g_it readᵀ_it of the output gradient, (p, d), kept for the next weight with the same w; None
        without `read`.
        """
        if self.read is None or len(self.inputs) == 1:
            return None
        if self.total is None or self.weights is not w:
            shape = (self.g.shape[2], self.read.shape[2])
            self.total, self.weights = self.g.new_empty(shape) if self.total is None else self.total, w
            add_weighted_product(self.read, self.g, w, self.total, 0)
        return self.total

    def choose_formula(self, options: PerformanceOptions, keep: bool) -> str:
        """Returns how the norms of all weights that share the output gradient are found: `keep` says whether rows may
        be kept for the sum.
        """
        if self.choice is None:
            kernel = self._find_kernel()
            self.choice = (
                self._choose_by_timing(keep, kernel) if options.measure else self._choose_by_shape(keep, kernel)
            )
        return self.choice

    def _find_kernel(self) -> Grams | LowGrams | None:
        """Returns the compiled Gram kernel that reads the output gradient and its inputs, or None."""
        if self.g.dtype is torch.bfloat16:
            return load_low_grams()
        return load_grams() if are_cpu_floats(self.g, *self.inputs) else None

    def _choose_by_shape(self, keep: bool, kernel: Grams | LowGrams | None) -> str:
        """Returns the formula that the shapes of output gradient and inputs speak for."""
        t, p, d = *self.g.shape[1:], sum(a.shape[2] for a in self.inputs)
        low, compiled = self.g.dtype is torch.bfloat16, kernel is not None and bool(kernel.level)
        return choice_by_shape.choose_linear_formula(t, p, d, keep=keep, low=low, compiled=compiled)

    def _choose_by_timing(self, keep: bool, kernel: Grams | LowGrams | None) -> str:
        """Returns the formula that was fastest for an output gradient of this shape, timing all candidates on some
        samples if it is new.
        """
        (_, t, p), widths, threads = self.g.shape, tuple(a.shape[2] for a in self.inputs), torch.get_num_threads()
        key = ("matmul", t, widths, p, self.g.dtype, self.g.device, threads, keep, kernel is None)
        # A choice that was made before is kept; after measuring has stopped, shapes decide.
        choice = self.workspace.stopwatch.known_choice(key)
        if choice is not None:
            return choice
        if self.workspace.stopwatch.stopped:
            return self._choose_by_shape(keep, kernel)
        # Each candidate computes norms and sum, as a step does.
        timed_samples = samples_to_time(p * sum(widths))
        g, inputs = self.g[:timed_samples], [a[:timed_samples] for a in self.inputs]
        read = None if self.read is None else self.read[:timed_samples]
        w = torch.ones(len(g), device=g.device, dtype=accumulation_dtype(g.dtype))

        def run_sums() -> None:
            """Computes the sums from input and output gradient."""
            for a in inputs if read is None else (read,):
                add_weighted_product(a, g, w, w.new_empty(p, a.shape[2]), 0)

        def run_gram() -> None:
            """Computes norms from the output gradient by torch's Gram products, and the sums."""
            product = torch.bmm(g, g.transpose(1, 2))
            for a in inputs:
                gram_sums_from(a, product)
            run_sums()

        def run_compiled() -> None:
            """Computes norms from the output gradient by the compiled kernel, and the sums."""
            assert kernel is not None, "else it is no candidate"
            kernel(g, inputs, threads)
            run_sums()

        def run_rows() -> None:
            """Computes rows from the output gradient with their norms, and the sums from them if they are kept."""
            for a in inputs:
                held, _ = compute_rows(a, g, self.workspace)
                if keep:
                    held.flatten(1).t() @ w
            if not keep:
                run_sums()

        candidates = {"gram": run_gram, "rows": run_rows} | ({} if kernel is None else {"compiled": run_compiled})
        if g.dtype is torch.bfloat16:
            del candidates["gram"]
        return self.workspace.stopwatch.choose_fastest(key, g.device, candidates)

"""Runs a linear map forward and back to its input, by the faster of two products.

    y = x Wᵀ + b    and at the input    g W

It takes float32 on the CPU with dense rows, outside autocast. Which is faster is found by timing, forward and backward
each for itself; where nothing is measured the compiled one is taken on processors whose vectors are as wide as its own
(also Zen 4, which runs wider ones in halves).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sordino.kernels.affine import Affines, load_affines
from sordino.kernels.processor import torch_computes_sixteen_at_once
from sordino.per_sample.formulas import choice_by_shape
from sordino.per_sample.formulas.gradient_part import is_autocasting
from sordino.per_sample.formulas.workspace import Workspace

_SMALL = 1 << 26
"""Multiplications; in fewer there is less to gain than a function of one's own in autograd's graph costs."""


def run_linear_map(x: Tensor, weight: Tensor, bias: Tensor | None, size: int, workspace: Workspace) -> Tensor:
    """Runs a linear map, `F.linear` for x (rows, d) of `size` samples, by whichever code is faster for their shapes."""
    kernel = load_affines() if x.numel() * len(weight) >= _SMALL else None
    if kernel is None or not kernel.can_multiply(x, weight.t()) or is_autocasting(x.device) or x.is_inference():
        return torch.nn.functional.linear(x, weight, bias)
    y: Tensor = _LinearMap.apply(x, weight, bias, len(x) // max(1, size), kernel, workspace)  # type: ignore[no-untyped-call]
    return y


class _LinearMap(torch.autograd.Function):
    """Runs a linear map whose forward and backward pass each choose their own code."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, each: int, kernel: Affines, workspace: Workspace
    ) -> Tensor:
        """Computes the output of a linear map by the faster code."""
        ctx.save_for_backward(weight)
        ctx.each, ctx.kernel, ctx.workspace = each, kernel, workspace
        return _run_fastest("mapped", x, weight.t(), bias, each, kernel, workspace)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, None, None, None, None]:
        """Computes the gradient at the input of a linear map by the faster code, if it is needed."""
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None, None
        (weight,) = ctx.saved_tensors
        found = _run_fastest("mapped back", g, weight, None, ctx.each, ctx.kernel, ctx.workspace)
        return found, None, None, None, None, None


def _run_fastest(
    which: str, x: Tensor, m: Tensor, bias: Tensor | None, each: int, kernel: Affines, workspace: Workspace
) -> Tensor:
    """Returns x m + b, the product of a linear map, by the code chosen before for this shape, or by the one that is
    faster now.
    """
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

"""Chooses formulas from shapes alone, where no stopwatch may decide: the same in every process.

A run that is to be repeated bit by bit cannot ask a stopwatch, because formulas differ in rounding. These rules were
read off one: every formula was timed on the layers of the MNIST CNN, the CIFAR net, ResNet-18 and WRN-16-4 (one thread,
AVX2, `Stopwatch.fastest`). Where a rule and the stopwatch disagreed on those, the rule's choice took at most 1.4 times
as long. The processor counts too: where torch may compute sixteen floats in one piece and nothing was timed
(`kernels/processor.py`), code that only does torch's own work again is not taken. `python -m bench.kernels` has the
figures of the processors that were timed.

Privacy: shapes are public; nothing here looks at a value.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from math import prod

from torch import Tensor

from sordino.per_sample.formulas.convolution_geometry import Geometry

_FEW_CHANNELS = 3
"""Up to here channels in the innermost dimension are too short a run of memory."""
_FEW_POSITIONS = 64
_VECTOR = 8
_PANEL = 16
"""Channels that `winograd` takes at once."""
_SOME_POSITIONS = 16
"""With fewer the way back from tiles to taps takes longer than the products of a sample."""
_ONE_PRODUCT = 4
"""Up to so many positions one product with all patches beats the framework's kernel."""


def choose_norms_formula(geometry: Geometry, a: Tensor, g: Tensor, *, keep: bool, kernels: Container[str]) -> str:
    """Chooses by shape alone how to measure the gradients of a convolution's weight, with input a (B, C, *S) and output
    gradient g (B, p, *S').

    `kernels` are those that were compiled and take the layer.
    """
    # With few positions, the Gram formulas multiply less than rows do.
    t, p, d = prod(g.shape[2:]), g.shape[1], a.shape[1] // geometry.groups * geometry.taps
    has_few_positions = t * (p + d * geometry.groups) < p * d
    if has_few_positions and geometry.shiftable and t > 1:
        return "shifted"
    if has_few_positions and not keep:
        return "gram"
    # Compiled kernels come next, then torch's products by memory layout.
    if "winograd" in kernels and _mostly_fills_panels(a.shape[1], p) and t >= _SOME_POSITIONS:
        return "winograd"
    if "compiled" in kernels:
        return "compiled"
    if geometry.groups > 1:
        return "unfold"
    strided = any(s > 1 for s in geometry.stride)
    if a.stride(1) == 1 and a.shape[1] > 1:  # channels last
        return "last" if strided or a.shape[1] > _FEW_CHANNELS else "unfold"
    return "last" if (strided and a.shape[1] != _FEW_CHANNELS) or t <= _FEW_POSITIONS else "unfold"


def choose_sum_code(a: Sequence[int], g: Sequence[int], ways: Container[str]) -> str:
    """Chooses by shape alone how to sum the gradients of a convolution's weight where no rows were kept."""
    # Thresholds from measurements on several machines; all ranks choose alike.
    t = prod(g[2:])
    if "winograd" in ways and _mostly_fills_panels(a[1], g[1]) and t > 1:
        return "winograd"
    if t <= _ONE_PRODUCT and "product" in ways:
        return "product"
    return next((way for way in ("compiled", "depthwise") if way in ways), "native")


def choose_pass_code(
    which: str,
    geometry: Geometry,
    weight: Sequence[int],
    x: Sequence[int],
    ways: Container[str] = (),
    *,
    wide: bool = False,
) -> str:
    """Chooses by shape alone the code for the "forward" pass of a convolution of x, or for the gradient at the "input",
    x being that at the output.

    The framework's kernels are slow with strides; the compiled one computes its channels by the vector. `wide`: torch
    computes sixteen floats in one piece.
    """
    # The rules are thresholds from measurements; they depend on shapes alone, so every rank and every resumed run
    # chooses alike.
    if "winograd" in ways and not wide and min(weight[:2]) >= _PANEL and prod(x[2:]) > 1:
        return "winograd"
    strided = any(s > 1 for s in geometry.stride)
    return "compiled" if strided and (which == "forward" or weight[1] >= _VECTOR) else "torch"


def _mostly_fills_panels(channels: int, outputs: int) -> bool:
    """Returns whether little of what `winograd` multiplies is padding."""
    held = prod(-(-n // _PANEL) * _PANEL for n in (channels, outputs))
    return min(channels, outputs) >= _PANEL and 2 * held <= 3 * channels * outputs


def choose_linear_formula(t: int, p: int, d: int, *, keep: bool, low: bool, compiled: bool) -> str:
    """Chooses by shape how to measure a linear map's gradients from T positions of p outputs and d inputs.

    It counts operations in float32. In bfloat16 (`low`), timed on Zen 4 with T from 32 to 512 and widths from 192 to
    1536: rows that may be kept were not slower by more than a tenth; if none may, Gram sums take half their formula's
    products.
    """
    # bfloat16 has a kernel for Gram sums of its own, and rows that are kept are used again for the sum.
    if low:
        return "rows" if keep or t * (d + p) >= 2 * p * d else "compiled"
    if t * (d + p) >= p * d:
        return "rows"
    return "compiled" if compiled else "gram"


def choose_product_code(instructions: str, *, wide: bool) -> str:
    """Returns the code for products of matrices by the processor's instructions; `wide`: sixteen floats in one piece."""
    return "compiled" if instructions in ("AVX2", "AVX512") and not wide else "torch"

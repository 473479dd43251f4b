"""The formula that is likely to be the fastest for a convolution, from its shapes alone: the same in every process.

A run that is to be repeated bit by bit cannot ask a stopwatch, because formulas differ in rounding. These rules were read
off one: every formula was timed on the layers of the MNIST CNN, the CIFAR net, ResNet-18 and WRN-16-4 (one thread, AVX2,
`tune.fastest`). Where a rule and the stopwatch disagreed on those, the rule's choice took at most 1.4 times as long.

Privacy: shapes are public; nothing here looks at a value.
"""

from __future__ import annotations

from collections.abc import Container
from math import prod

from torch import Tensor

from sordino.gradients.rules.patches import Geometry

_FEW_CHANNELS = 3
"""Up to here channels in the innermost dimension are too short a run of memory."""
_FEW_POSITIONS = 64
_VECTOR = 8
_ONE_PRODUCT = 4
"""Up to so many positions one product with all patches beats the framework's kernel."""


def norms(geometry: Geometry, a: Tensor, g: Tensor, *, keep: bool, compiled: bool) -> str:
    """How to measure the weight's gradients, with input a (B, C, *S) and output gradient g (B, p, *S')."""
    t, p, d = prod(g.shape[2:]), g.shape[1], a.shape[1] // geometry.groups * geometry.taps
    few = t * (p + d * geometry.groups) < p * d
    if few and geometry.shiftable and t > 1:
        return "shifted"
    if few and not keep:
        return "gram"
    if compiled:
        return "compiled"
    if geometry.groups > 1:
        return "unfold"
    strided = any(s > 1 for s in geometry.stride)
    if a.stride(1) == 1 and a.shape[1] > 1:  # channels last
        return "last" if strided or a.shape[1] > _FEW_CHANNELS else "unfold"
    return "last" if (strided and a.shape[1] != _FEW_CHANNELS) or t <= _FEW_POSITIONS else "unfold"


def total(t: int, ways: Container[str]) -> str:
    """How to sum the weight's gradients where no rows were kept, at t positions."""
    if t <= _ONE_PRODUCT and "product" in ways:
        return "product"
    return "compiled" if "compiled" in ways else "native"


def whole_pass(which: str, geometry: Geometry, channels: int) -> str:
    """The code for the "forward" pass, or for the gradient at the "input", with so many input channels.

    The framework's kernels are slow with strides; the compiled one computes its channels by the vector.
    """
    strided = any(s > 1 for s in geometry.stride)
    return "compiled" if strided and (which == "forward" or channels >= _VECTOR) else "torch"

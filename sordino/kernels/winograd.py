"""3×3 convolutions by Winograd's minimal filtering F(2×2, 3×3), if its kernels were compiled (Lavin & Gray 2016).

    y  = Aᵀ[(G w Gᵀ) ∘ (Bᵀ d B)]A      output, and with the weights turned around the gradient at the input
    dw = Gᵀ[(A g Aᵀ) ∘ (Bᵀ d B)]G      the weight's gradient: per sample, or once for a weighted sum of all

Four output pixels take 16 multiplications per pair of channels in place of 36. For stride 1 without dilation and groups,
up to two pixels of padding, float32 on the CPU with channels last. The transforms add and halve only, so rounding is
that of the direct sum up to a small factor (docs/engine.md); larger tiles would save more and round worse.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.grad import conv2d_input

from sordino.gradients.formulas.geometry import Geometry
from sordino.gradients.formulas.part import scratch
from sordino.kernels import abi as frame
from sordino.kernels import build
from sordino.kernels import convolution as compiled
from sordino.kernels.abi import BEST, NEAR, check, shape_of
from sordino.kernels.convolution import Convolutions, waves
from sordino.kernels.library import trusted
from sordino.kernels.threads import in_parts

_PANEL = 16  # output channels that are computed at once
_POINTS = 16  # products of a tile
_PLAIN = Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)


def fits(geometry: Geometry) -> bool:
    """Whether it is a convolution of this kind."""
    return (
        geometry.kernel == (3, 3)
        and geometry.stride == geometry.dilation == (1, 1)
        and geometry.groups == 1
        and max(geometry.padding) <= 2
    )


@dataclass(frozen=True)
class Passes:
    """Output and input gradient at one level of the processor's abilities."""

    library: ctypes.CDLL
    level: int = BEST

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """The output, channels last."""
        size = (len(x), len(weight), *(n + 2 * p - 2 for n, p in zip(x.shape[2:], geometry.padding, strict=True)))
        return self._pass(x, torch.Size(size), weight.data_ptr(), weight.stride(), bias, geometry)

    def backward(self, size: torch.Size, g: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        """The gradient at an input of this size, channels last: taps in reverse, the other two dimensions exchanged."""
        out, channel, row, column = weight.stride()
        last = weight.data_ptr() + (2 * row + 2 * column) * weight.element_size()
        (above, left), steps = geometry.padding, (channel, out, -row, -column)
        turned = Geometry(geometry.kernel, geometry.stride, (2 - above, 2 - left), geometry.dilation, 1)
        return self._pass(g, size, last, steps, None, turned)

    def _pass(
        self, x: Tensor, size: torch.Size, weight: int, steps: tuple[int, ...], bias: Tensor | None, geometry: Geometry
    ) -> Tensor:
        x = x if _last(x) else x.contiguous(memory_format=torch.channels_last)
        y = torch.empty(size, dtype=x.dtype, memory_format=torch.channels_last)
        shape, panels, threads = shape_of(x, y, geometry, steps), -(-size[1] // _PANEL), torch.get_num_threads()
        packed = scratch(panels * _PANEL * _POINTS * (x.shape[1] + 1), x)
        bias = None if bias is None else bias.contiguous()
        start = None if bias is None else bias.data_ptr()

        def pack(begin: int, end: int) -> None:
            check(self.library.sordino_winograd_weights(self.level, shape, begin, end, weight, packed.data_ptr()))

        def part(begin: int, end: int) -> None:
            where = (x.data_ptr(), packed.data_ptr(), start, y.data_ptr())
            check(self.library.sordino_winograd(self.level, shape, begin, end, *where))

        in_parts(pack, panels, threads)
        in_parts(part, len(x), threads)
        return y


class Gradients(Convolutions):
    """Per-sample weight gradients, their norms and weighted sums."""


def _last(x: Tensor) -> bool:
    return x.stride(1) == 1 or x.shape[1] == 1


def takes(a: Tensor, g: Tensor, geometry: Geometry) -> bool:
    """Whether the weight gradients of this layer can be had so."""
    return fits(geometry) and compiled.takes(a, g, geometry) and _last(a) and _last(g)


def typed_passes(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its functions."""
    return frame.typed(library, sordino_winograd=4, sordino_winograd_weights=2)


@cache
def passes() -> Passes | None:
    """The kernel that is used, or None: there is none, or it does not give what it should."""
    return trusted(build.WINOGRAD, lambda library: Passes(typed_passes(library)), passes_agree)


@cache
def gradients() -> Gradients | None:
    """The kernel that is used, or None."""
    return trusted(build.WINOGRAD_ROWS, lambda library: Gradients(compiled.typed(library)), gradients_agree)


def gradients_agree(made: Convolutions) -> bool:
    """Whether rows, norms and sum of a small layer are torch's."""
    return compiled.agrees(made, _PLAIN)


def passes_agree(made: Passes) -> bool:
    """Whether output and input gradient of a small layer are torch's."""
    x, weight, bias = waves(0.7, 2, 9, 7, 6), waves(1.3, 17, 9, 3, 3), torch.arange(17, dtype=torch.float32)
    y = torch.conv2d(x, weight, bias, padding=1)
    back = conv2d_input(x.shape, weight, y, padding=1)
    return torch.allclose(made.forward(x, weight, bias, _PLAIN), y, NEAR, 1e-4) and torch.allclose(
        made.backward(x.shape, y, weight, _PLAIN), back, NEAR, 1e-3
    )

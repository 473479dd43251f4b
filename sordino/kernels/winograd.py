"""Binding of 3×3 convolutions by Winograd's minimal filtering F(2×2, 3×3).

Lavin & Gray 2016, arXiv:1509.09308.

    y  = Aᵀ[(G w Gᵀ) ∘ (Bᵀ d B)]A      output, and with the weights turned around the gradient at the input

Four output pixels take 16 multiplications per pair of channels in place of 36. It takes stride 1 without dilation and
groups, up to two pixels of padding, float32 on the CPU with channels last. The transforms add and halve only, so
rounding is that of the direct sum up to a small factor (docs/engine_measurements.md). Larger tiles would save more and
round worse.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.grad import conv2d_input

from sordino.kernels import build
from sordino.kernels.abi import (
    BEST,
    INT,
    POINTER,
    STEP,
    KernelGeometry,
    KernelWindow,
    address_of,
    are_close,
    load_verified,
    make_shape,
    run_in_parts,
)
from sordino.kernels.kernel_tensors import Room, allocate, make_waves

FUNCTIONS = {
    "sordino_winograd": (INT, INT, POINTER, STEP, STEP, *[POINTER] * 4),
    "sordino_winograd_weights": (INT, INT, POINTER, STEP, STEP, POINTER, POINTER),
}
_PANEL = 16, 16, 32  # output channels that are computed at once, by level
_POINTS = 16  # products of a tile
_PLAIN = KernelWindow((3, 3), padding=(1, 1))


def is_winograd_convolution(geometry: KernelGeometry) -> bool:
    """Returns whether a geometry is that of a 3×3 convolution that Winograd's minimal filtering F(2×2, 3×3) can do."""
    return (
        geometry.kernel == (3, 3)
        and geometry.stride == geometry.dilation == (1, 1)
        and geometry.groups == 1
        and max(geometry.padding) <= 2
    )


def has_channels_last(x: Tensor) -> bool:
    """Returns whether the channels of a pixel lie side by side."""
    return x.stride(1) == 1 or x.shape[1] == 1


@dataclass(frozen=True)
class Passes:
    """Computes output and input gradient at one level of the processor's abilities; `room` makes memory for weights."""

    library: ctypes.CDLL
    level: int = BEST

    def forward(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: KernelGeometry, room: Room = allocate
    ) -> Tensor:
        """Returns the output of a 3×3 convolution by Winograd's filtering, channels last."""
        size = (len(x), len(weight), *(n + 2 * p - 2 for n, p in zip(x.shape[2:], geometry.padding, strict=True)))
        return self._run_pass(x, torch.Size(size), weight.data_ptr(), weight.stride(), bias, geometry, room)

    def backward(
        self, size: torch.Size, g: Tensor, weight: Tensor, geometry: KernelGeometry, room: Room = allocate
    ) -> Tensor:
        """Returns the gradient at the input of a 3×3 convolution by Winograd's filtering, an input of the given size,
        channels last.

        The taps are read in reverse, and the other two dimensions exchanged.
        """
        out, channel, row, column = weight.stride()
        last = weight.data_ptr() + (2 * row + 2 * column) * weight.element_size()
        (above, left), steps = geometry.padding, (channel, out, -row, -column)
        return self._run_pass(g, size, last, steps, None, KernelWindow((3, 3), padding=(2 - above, 2 - left)), room)

    def _run_pass(
        self,
        x: Tensor,
        size: torch.Size,
        weight: int,
        steps: tuple[int, ...],
        bias: Tensor | None,
        geometry: KernelGeometry,
        room: Room,
    ) -> Tensor:
        """Runs one pass of a Winograd convolution: transforms and packs the weights, then multiplies the tiles of all
        samples.
        """
        # The kernel reads and writes images with channels last.
        x = x if has_channels_last(x) else x.contiguous(memory_format=torch.channels_last)
        y = torch.empty(size, dtype=x.dtype, memory_format=torch.channels_last)
        panel = _PANEL[self.library.sordino_level(self.level)]
        shape, panels, threads = make_shape(x, y, geometry, steps), -(-size[1] // panel), torch.get_num_threads()
        # Transform and pack the weights once, then run all samples.
        packed = room((panels * panel * _POINTS * (x.shape[1] + 1),), x)
        bias = None if bias is None else bias.contiguous()

        # Both calls are divided among threads: the first by panels of output channels, the second by samples.
        leading_arguments, where = (
            (self.level, shape),
            (x.data_ptr(), packed.data_ptr(), address_of(bias), y.data_ptr()),
        )
        run_in_parts(
            self.library.sordino_winograd_weights, leading_arguments, (weight, packed.data_ptr()), panels, threads
        )
        run_in_parts(
            self.library.sordino_winograd,
            leading_arguments,
            where,
            len(x),
            threads,
            short="a block of Winograd's tiles",
        )
        return y


@cache
def load_passes() -> Passes | None:
    """Returns the kernel that is used, or None: there is none, or it does not give what it should."""
    return load_verified(build.WINOGRAD, FUNCTIONS, Passes, agrees_with_torch)


def agrees_with_torch(made: Passes) -> bool:
    """Returns whether output and input gradient of a small 3×3 convolution by Winograd's filtering are torch's."""
    x, weight, bias = make_waves(0.7, 2, 9, 7, 6), make_waves(1.3, 17, 9, 3, 3), torch.arange(17, dtype=torch.float32)
    y = torch.conv2d(x, weight, bias, padding=1)
    back = conv2d_input(x.shape, weight, y, padding=1)
    return are_close((made.forward(x, weight, bias, _PLAIN), y), (made.backward(x.shape, y, weight, _PLAIN), back))

"""Describes the geometry of a convolution: which input pixels meet which kernel tap.

Everything here works on an input that is already padded and cut to what the kernel reads, for any number of spatial
dimensions. Two views of it:

- unfolded: the patch at every output position, (B, groups, C/groups·K, T);
- shifted (stride 1): on the flattened padded grid the input that meets tap k is one contiguous slice, shifted by the
  tap's offset, and the output gradient sits on the same grid with zeros where a row wraps around. So a sum over
  patches is a sum over K slices, and nothing is copied K times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod

import torch
from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """Holds the options of a convolution that its weight gradient depends on."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def taps(self) -> int:
        """K, the kernel's positions."""
        return prod(self.kernel)

    @property
    def shiftable(self) -> bool:
        """Whether the shifted view exists and is not the plain one: stride 1 and more than one tap."""
        return all(s == 1 for s in self.stride) and self.groups == 1 and len(self.kernel) <= 2 and self.taps > 1

    def fit_input(self, a: Tensor, out: torch.Size) -> Tensor:
        """Returns a convolution's input padded with zeros and cut to what produces outputs of spatial size `out`."""
        # Zeros around the image, then cut to the pixels that some output reads.
        if any(self.padding):
            a = torch.nn.functional.pad(a, [n for p in reversed(self.padding) for n in (p, p)])
        for dim, (k, s, d, n) in enumerate(zip(self.kernel, self.stride, self.dilation, out, strict=True)):
            a = a.narrow(dim + 2, 0, (n - 1) * s + d * (k - 1) + 1)
        return a

    def unfold_patches(self, a: Tensor) -> Tensor:
        """Returns the patches (B, groups, C/groups·K, T) that a convolution's geometry cuts from a fitted input (B, C,
        *S).
        """
        # Dimension by dimension: windows of the dilated kernel, then every d-th pixel of each.
        for dim, (k, s, d) in enumerate(zip(self.kernel, self.stride, self.dilation, strict=True)):
            a = a.unfold(dim + 2, d * (k - 1) + 1, s)[..., ::d]  # (B, C, *S', *kernel)
        n, channels = len(self.kernel), a.shape[1]
        a = a.permute(0, 1, *range(2 + n, 2 + 2 * n), *range(2, 2 + n))  # (B, C, *kernel, *S')
        return a.reshape(a.shape[0], self.groups, channels // self.groups * self.taps, prod(a.shape[2 + n :]))

    def unfold_channels_last(self, a: Tensor, buffer: Tensor) -> Tensor:
        """Returns the patches (B, T, K·C) of a convolution's fitted input (B, C, *S) in a buffer, with channels
        innermost.
        """
        n = len(self.kernel)
        for dim, (k, s, d) in enumerate(zip(self.kernel, self.stride, self.dilation, strict=True)):
            a = a.unfold(dim + 2, d * (k - 1) + 1, s)[..., ::d]  # (B, C, *S', *kernel)
        a = a.permute(0, *range(2, 2 + 2 * n), 1)  # (B, *S', *kernel, C)
        patches = buffer[: a.numel()].view(a.shape)
        patches.copy_(a)
        return patches.view(a.shape[0], prod(a.shape[1 : 1 + n]), -1)

    def iterate_tap_slices(self, a: Tensor, out: torch.Size) -> Iterator[Tensor]:
        """Yields, for each tap of a convolution's kernel, the fitted input pixels it meets, (B, C, *out)."""
        # For each tap the pixels that it meets are a strided slice of the image.
        for tap in product(*map(range, self.kernel)):
            part = a
            for dim, (i, s, d, n) in enumerate(zip(tap, self.stride, self.dilation, out, strict=True)):
                part = part.narrow(dim + 2, i * d, (n - 1) * s + 1)[
                    (slice(None),) * (dim + 2) + (slice(None, None, s),)
                ]
            yield part

    def to_flat_grid(self, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor, list[int]]:
        """Returns the shifted view of a convolution: a (B, N, C) and g (B, L, p) on the flattened padded grid, and each
        tap's offset.

        Channels come last, so that a slice of pixels is one block of memory.
        """
        # A tap's offset is its distance from the first tap on the flattened grid.
        out = g.shape[2:]
        width = out[-1] + self.dilation[-1] * (self.kernel[-1] - 1)
        a = a.flatten(2, -2) if a.dim() > 4 else a
        offsets = [
            sum(i * d * step for i, d, step in zip(tap, self.dilation, self._steps(width), strict=True))
            for tap in product(*map(range, self.kernel))
        ]
        # Lay the pixels out with channels last, and spread g on the same grid, with zeros where a row wraps around.
        length = prod(out[:-1]) * width
        pixels = a.new_zeros((a.shape[0], max(offsets) + length, a.shape[1]))
        pixel_count = prod(a.shape[2:])
        pixels[:, :pixel_count].view(a.shape[0], *a.shape[2:], a.shape[1]).copy_(a.movedim(1, -1))
        spread = g.new_zeros((g.shape[0], prod(out[:-1]), width, g.shape[1]))
        spread[:, :, : out[-1]] = g.movedim(1, -1).reshape(g.shape[0], -1, out[-1], g.shape[1])
        return pixels, spread.view(g.shape[0], length, g.shape[1]), offsets

    def _steps(self, width: int) -> tuple[int, ...]:
        """Returns how far one step in each dimension goes on a flattened grid of this width."""
        return (1,) if len(self.kernel) == 1 else (width, 1)


@lru_cache(maxsize=1024)
def find_live_taps(geometry: Geometry, size: tuple[int, ...]) -> tuple[tuple[slice, ...], Geometry] | None:
    """Returns the taps of a convolution's geometry that read more than padding on inputs of a size, and the convolution
    with those alone.

    Returns None where all do. Late layers see a pixel or four, of which a 3×3 kernel reads little else than padding.
    """
    taps, padding = list[slice](), list[int]()
    dims = zip(size, geometry.kernel, geometry.stride, geometry.padding, geometry.dilation, strict=True)
    # In each dimension find the taps that touch the image, and the padding that is left without the others.
    for n, k, s, p, d in dims:
        # Output o reads pixel i·d + s·o − p through tap i.
        outputs = range((n + 2 * p - d * (k - 1) - 1) // s + 1)
        reading = [i for i in range(k) if any(0 <= i * d + s * o - p < n for o in outputs)]
        if not reading or reading[-1] - reading[0] + 1 != len(reading):
            return None
        taps.append(slice(reading[0], reading[-1] + 1))
        padding.append(p - reading[0] * d)
        if padding[-1] < 0 or (n + 2 * padding[-1] - d * (len(reading) - 1) - 1) // s + 1 != len(outputs):
            return None
    # Nothing to cut where every tap reads something.
    kernel = tuple(each.stop - each.start for each in taps)
    if kernel == geometry.kernel:
        return None
    return (slice(None), slice(None), *taps), replace(geometry, kernel=kernel, padding=tuple(padding))

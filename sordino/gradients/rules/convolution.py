"""Conv1d/2d/3d and their transposes, with every option.

With patches P (d·K, T) of a sample and g (p, T) its output gradient, the weight's gradient is g Pᵀ, as for a linear
map with T positions. Formulas for its norm, the fastest of which is found by timing:

    unfold:   ‖g Pᵀ‖² from patches                       rows, kept for the sum
    last:     the same, patches with channels last       rows, kept, patches a few samples at a time
    shift:    K products of contiguous slices            rows, kept, without patches
    native:   the framework's own kernel per sample      rows, kept
    taps:     Σ_pos g · a_k per tap                      rows of depthwise convolutions
    gram:     Σ (PᵀP) ∘ (gᵀg)                            few positions, many channels
    shifted:  PᵀP = Σ_k shifted (aᵀa)                    the same without patches

The weighted sum, where no rows are kept, is the framework's own weight gradient of c·g. A transposed convolution is
the same with input and output gradient exchanged. Padding that is not zeros happens before, as an operation of its
own.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from sordino.gradients import tune
from sordino.gradients.flat import room
from sordino.gradients.options import PerformanceOptions
from sordino.gradients.rules import likely
from sordino.gradients.rules.matmul import diagonal_guard
from sordino.gradients.rules.part import Rows, blank, per_pass, pieces, scratch, square_sum
from sordino.gradients.rules.patches import Geometry

_WARM = 1 << 19
"""Elements of patches made at once: they should still be in the cache when they are multiplied."""
_FEW_POSITIONS = 64
"""Up to here the patches of a whole batch are small enough to be made at once."""
_GRAMS = ("gram", "shifted")
_ORDER = {"shift": "kpc", "last": "pkc"}


class Convolution:
    """The weight of a convolution."""

    __slots__ = ("a", "g", "geometry", "kept", "order", "shape")

    def __init__(self, a: Tensor, g: Tensor, geometry: Geometry) -> None:
        """Take a (B, C, *S), not padded, and g (B, p, *S')."""
        self.a = a
        self.g = g
        self.geometry = geometry
        self.shape = (g.shape[1], a.shape[1] // geometry.groups, *geometry.kernel)  # the weight's
        self.kept: Tensor | None = None  # (B, …) rows in the order of `order`
        self.order = ""  # "" for rows as (p, C/groups, *kernel), else their layout: "kpc" or "pkc" with k the taps

    def squared(self, options: PerformanceOptions) -> Tensor:
        """By whichever formula was fastest for this shape."""
        if self.kept is not None:
            return square_sum(self.kept)
        b, out = self.a.shape[0], self.g.shape[2:]
        if not b:
            return self.a.new_zeros(0)
        size = prod(self.shape)
        sample = self.a[:1].numel() + self.g[:1].numel()
        keep = size <= sample or b * size * self.a.element_size() <= (options.keep_bytes or 0)
        choice = self._choice(options, keep)
        if choice in _GRAMS:
            n = prod(out) if choice == "gram" else self._grid_pixels()
            patches = 0 if choice == "shifted" else self.a.shape[1] * self.geometry.taps * prod(out)
            step = per_pass(3 * n * n * self.geometry.groups + patches, options, self.a.element_size())
            found = [self._gram(slice(i, i + step), choice) for i in range(0, b, step)]
            squared = torch.cat([s for s, _ in found])
            again = diagonal_guard(squared, torch.cat([d for _, d in found]))
            for index in pieces(again, per_pass(size, options)):
                squared[index] = square_sum(self.rows(index))
            return squared
        step = b if choice != "shift" else per_pass(2 * sample + size, options, self.a.element_size())
        if not keep:
            step = min(step, per_pass(size, options, self.a.element_size()))
            return torch.cat([square_sum(self._rows(slice(i, i + step), choice)) for i in range(0, b, step)])
        rows = [self._rows(slice(i, i + step), choice) for i in range(0, b, step)]
        self.order = _ORDER.get(choice, "")
        self.kept = rows[0] if len(rows) == 1 else torch.cat(rows)
        self.a = self.g = self.kept[:, :0]  # freed: the rows say it all
        return square_sum(self.kept)

    def _grid_pixels(self) -> int:
        out, geometry = self.g.shape[2:], self.geometry
        return prod(n + d * (k - 1) for n, d, k in zip(out, geometry.dilation, geometry.kernel, strict=True))

    def _choice(self, options: PerformanceOptions, keep: bool) -> str:
        geometry, t = self.geometry, prod(self.g.shape[2:])
        p, d = self.shape[0], prod(self.shape[1:])
        depthwise = geometry.groups == self.a.shape[1] == p
        if depthwise:
            return "taps"
        if not options.measure:
            return likely.norms(geometry, self.a, self.g, keep=keep)
        shapes = (self.a.shape[1:], self.g.shape[1:], self.a.stride()[1:], self.g.stride()[1:])
        key = ("conv", geometry, *shapes, self.a.dtype, self.a.device, torch.get_num_threads(), keep)
        choice = tune.known(key)
        if choice is None:
            few = slice(0, tune.samples(max(prod(self.shape), d * t)))
            sub = Convolution(self.a[few], self.g[few], geometry)
            w = torch.ones(sub.a.shape[0], device=self.a.device, dtype=self.a.dtype)
            total = self.a.new_empty(self.shape)
            self._by_product(torch.ones(self.a.shape[0], device=self.a.device, dtype=self.a.dtype))
            grams = t * t <= 4 * p * d  # larger ones have never won
            names = ["unfold", "native", *(["last"] if geometry.groups == 1 else [])]
            names += ["shift"] if geometry.shiftable else []
            if grams and sub.a.shape[0] * p * d * self.a.element_size() > (options.keep_bytes or 0):
                names = []  # rows this large are not even tried
            names += ["gram"] if grams else []
            names += ["shifted"] if geometry.shiftable and t * t <= 4 * p * d else []

            def candidate(name: str) -> Callable[[], None]:
                def run() -> None:
                    if name in _GRAMS:
                        sub._gram(slice(None), name)
                        sub.add_to(total, w, 0)
                    else:
                        rows = sub._rows(slice(None), name)
                        square_sum(rows)
                        if keep:
                            rows.flatten(1).t() @ w
                        else:
                            sub.add_to(total, w, 0)

                return run

            choice = tune.fastest(key, self.a.device, {name: candidate(name) for name in names})
        return choice

    def _gram(self, where: slice, choice: str) -> tuple[Tensor, Tensor]:
        g, geometry = self.g[where], self.geometry
        a = geometry.fitted(self.a[where], g.shape[2:])
        if choice == "gram":
            patches = geometry.unfolded(a)  # (b, groups, d, T)
            grads = g.reshape(g.shape[0], geometry.groups, g.shape[1] // geometry.groups, patches.shape[3])
            product = (patches.transpose(2, 3) @ patches).mul_(grads.transpose(2, 3) @ grads)  # (b, groups, T, T)
        else:
            pixels, grads, offsets = geometry.grid(a, g)  # (b, N, C), (b, L, p)
            gram, length = torch.bmm(pixels, pixels.transpose(1, 2)), grads.shape[1]
            met = gram[:, :length, :length].clone()
            for offset in offsets[1:]:
                met += gram[:, offset : offset + length, offset : offset + length]
            product = torch.bmm(grads, grads.transpose(1, 2)).mul_(met).unsqueeze(1)
        return product.sum(3).flatten(1).sum(1), product.diagonal(dim1=2, dim2=3).flatten(1).sum(1)

    def _rows(self, where: slice | Tensor, choice: str) -> Tensor:
        """Per-sample gradients; "shift" leaves them tap first."""
        g, geometry = self.g[where], self.geometry
        if choice == "native":
            a = self.a[where]
            each = [_weight_gradient(a[i : i + 1], g[i : i + 1], self.shape, geometry) for i in range(len(g))]
            return torch.stack(each) if each else a.new_zeros((0, *self.shape))
        if choice == "last":
            return self._last(self.a[where], g)
        if choice == "unfold":
            return self._unfold(self.a[where], g)
        a = geometry.fitted(self.a[where], g.shape[2:])
        if choice == "taps":
            rows = [(g * part).flatten(2).sum(2) for part in geometry.slices(a, g.shape[2:])]
            return torch.stack(rows, 2).view(g.shape[0], *self.shape)
        pixels, grads, offsets = geometry.grid(a, g)  # "shift"
        rows_by_tap = pixels.new_empty((g.shape[0], len(offsets), g.shape[1], a.shape[1]))  # (b, K, p, C)
        transposed, length = grads.transpose(1, 2), grads.shape[1]
        for k, offset in enumerate(offsets):
            torch.bmm(transposed, pixels[:, offset : offset + length], out=rows_by_tap[:, k])
        return rows_by_tap

    def _unfold(self, a: Tensor, g: Tensor) -> Tensor:
        """Patches of a few samples at a time, positions innermost; rows (b, p, C/groups, *kernel)."""
        geometry, t, (b, p) = self.geometry, prod(g.shape[2:]), g.shape[:2]
        groups, wide = geometry.groups, prod(self.shape[1:])
        rows = room((b, groups, p // groups, wide), a)
        step = max(1, _WARM // max(1, t * wide * groups))
        for i in range(0, b, step):
            patches = geometry.unfolded(geometry.fitted(a[i : i + step], g.shape[2:]).contiguous())  # (s, groups, d, T)
            few = g[i : i + step]
            few = few.flatten(2).unsqueeze(1) if groups == 1 else few.reshape(few.shape[0], groups, p // groups, t)
            torch.matmul(few, patches.transpose(2, 3), out=rows[i : i + step])
        return rows.view(b, *self.shape)

    def _last(self, a: Tensor, g: Tensor) -> Tensor:
        """Patches of a few samples at a time in one warm buffer; rows (b, p, K, C)."""
        geometry, t, (b, p) = self.geometry, prod(g.shape[2:]), g.shape[:2]
        wide = a.shape[1] * geometry.taps
        rows = room((b, p, wide), a)
        step = max(1, _WARM // (t * wide))
        buffer = scratch(min(step, b) * t * wide, a)
        for i in range(0, b, step):
            few = geometry.fitted(a[i : i + step], g.shape[2:])
            patches = geometry.unfolded_last(few, buffer)  # (s, T, K·C)
            torch.bmm(g[i : i + step].flatten(2), patches, out=rows[i : i + step])
        return rows.view(b, p, geometry.taps, a.shape[1])

    def _native(self, weights: Tensor) -> Tensor:
        scaled = self.g * weights.view(-1, *[1] * (self.g.dim() - 1))
        return _weight_gradient(self.a, scaled, self.shape, self.geometry)

    def _straight(self, tap_first: Tensor) -> Tensor:
        """Rows in the weight's own order."""
        if not self.order:
            return tap_first
        turned = tap_first.movedim(-3 if self.order == "kpc" else -2, -1)
        return turned.reshape(*tap_first.shape[:-3], *self.shape)

    def dot(self, u: Tensor) -> Tensor:
        """Σ_pos g · (the convolution with U in place of the weight)."""
        if self.kept is not None:
            return Rows(self._straight(self.kept).contiguous()).dot(u)
        geometry = self.geometry
        a = geometry.fitted(self.a, self.g.shape[2:])
        rank = len(geometry.kernel)
        convolve = (torch.conv1d, torch.conv2d, torch.conv3d)[rank - 1]
        zero = (0,) * rank
        y = convolve(a, u.to(a.dtype), None, geometry.stride, zero, geometry.dilation, geometry.groups)
        return (y * self.g).flatten(1).sum(1)

    def add_to(self, out: Tensor, weights: Tensor, beta: int = 1) -> None:
        """The framework's weight gradient of c·g, or the kept rows."""
        w = weights.to(out.dtype)
        if self.kept is None and self._by_product(w):
            scaled = (self.g * w.view(-1, *[1] * (self.g.dim() - 1))).flatten(2)  # (B, p, T)
            out.view(out.shape[0], -1).addmm_(scaled.transpose(1, 2).flatten(0, 1).t(), self._patches(), beta=beta)
            return
        if self.kept is not None:
            total = self._straight((self.kept.flatten(1).t() @ w).view(self.kept.shape[1:]))
        else:
            total = self._native(w)
        if beta:
            out.add_(total)
        else:
            out.copy_(total)

    def _patches(self) -> Tensor:
        """All patches as rows of one matrix, (B·T, d)."""
        patches = self.geometry.unfolded(self.geometry.fitted(self.a, self.g.shape[2:]))[:, 0]  # (B, d, T)
        return patches.transpose(1, 2).flatten(0, 1)

    def _by_product(self, w: Tensor) -> bool:
        """Few positions: one product with the patches may beat the framework's kernel, up to tenfold at one position."""
        b, t = self.g.shape[0], prod(self.g.shape[2:])
        if self.geometry.groups > 1 or not b or t > _FEW_POSITIONS:
            return False
        key = ("sum", self.geometry, self.a.shape[1:], self.g.shape[1:], self.a.dtype, self.a.device)
        choice = tune.known(key)
        if choice is None:

            def product() -> None:
                self.g.flatten(2).transpose(1, 2).flatten(0, 1).t() @ self._patches()

            ways = {"product": product, "native": lambda: self._native(w)}
            first = likely.total(t)  # the one taken where nothing is measured
            choice = tune.fastest(key, self.a.device, {first: ways[first], **ways})
        return choice == "product"

    def rows(self, where: slice | Tensor) -> Tensor:
        """Per-sample gradients."""
        if self.kept is not None:
            return self._straight(self.kept[where])
        return self._rows(where, "unfold")

    def without(self, gone: Tensor) -> Convolution:
        """Masked in both factors."""
        masked = Convolution(blank(self.a, gone), blank(self.g, gone), self.geometry)
        masked.shape = self.shape
        masked.kept, masked.order = (None if self.kept is None else blank(self.kept, gone)), self.order
        return masked


def _weight_gradient(a: Tensor, g: Tensor, shape: tuple[int, ...], geometry: Geometry) -> Tensor:
    rank = len(geometry.kernel)
    if _outputs(a, geometry) != g.shape[2:]:  # a transposed convolution's output padding leaves unread pixels
        a = geometry.fitted(a, g.shape[2:])
        padding = (0,) * rank
    else:
        padding = geometry.padding
    weight = a.new_empty(1).expand(shape)  # only its shape is read
    _, grad, _ = torch.ops.aten.convolution_backward(
        g,
        a,
        weight,
        None,
        geometry.stride,
        padding,
        geometry.dilation,
        False,
        (0,) * rank,
        geometry.groups,
        (False, True, False),
    )
    found: Tensor = grad
    return found


def _outputs(a: Tensor, geometry: Geometry) -> torch.Size:
    sizes = zip(a.shape[2:], geometry.kernel, geometry.stride, geometry.padding, geometry.dilation, strict=True)
    return torch.Size((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)

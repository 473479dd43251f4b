"""Computes the weight gradients of a convolution sample by sample in torch, by several formulas.

`convolution_weight` chooses one. With patches P (d·K, T) of a sample and g (p, T) its output gradient, the weight's
gradient is g Pᵀ, as for a linear map with T positions.

    unfold:   g Pᵀ from patches                          positions innermost
    last:     the same                                   channels innermost, a few samples at a time
    shift:    K products of contiguous slices            without patches
    native:   the framework's own kernel per sample
    grouped:  the framework's own kernel, once           on a device, for small layers
    taps:     Σ_pos g · a_k per tap                      depthwise
    gram:     Σ (PᵀP) ∘ (gᵀg)                            the norm only
    shifted:  PᵀP = Σ_k shifted (aᵀa)                    the same without patches
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from sordino.per_sample.formulas.convolution_geometry import Geometry
from sordino.per_sample.formulas.workspace import Workspace

ORDER = {"shift": "kpc", "last": "pkc", "compiled": "pkc"}
"""How rows are laid out by formula, with k the taps; as (p, C/groups, *kernel) for formulas that are not listed."""
_WARM = 1 << 19
"""Elements of patches made at once: they should still be in the cache when they are multiplied."""


def compute_gram_sums(a: Tensor, g: Tensor, geometry: Geometry, choice: str) -> tuple[Tensor, Tensor]:
    """Returns squared norms of a convolution's rows, and the diagonal terms they are sums of, by "gram" or "shifted"."""
    a = geometry.fit_input(a, g.shape[2:])
    # ‖G_i‖² = Σ_{s,t} ⟨a_s, a_t⟩⟨g_s, g_t⟩ over pairs of positions, without ever writing G_i.
    if choice == "gram":
        patches = geometry.unfold_patches(a)  # (b, groups, d, T)
        grads = g.reshape(g.shape[0], geometry.groups, g.shape[1] // geometry.groups, patches.shape[3])
        product = (patches.transpose(2, 3) @ patches).mul_(grads.transpose(2, 3) @ grads)  # (b, groups, T, T)
    else:
        # The same sum, with the products of patches gathered from products of pixels, one offset per tap.
        pixels, grads, offsets = geometry.to_flat_grid(a, g)  # (b, N, C), (b, L, p)
        products, length = torch.bmm(pixels, pixels.transpose(1, 2)), grads.shape[1]
        overlap = products[:, :length, :length].clone()
        for offset in offsets[1:]:
            overlap += products[:, offset : offset + length, offset : offset + length]
        product = torch.bmm(grads, grads.transpose(1, 2)).mul_(overlap).unsqueeze(1)
    return product.sum(3).flatten(1).sum(1), product.diagonal(dim1=2, dim2=3).flatten(1).sum(1)


def compute_rows(
    a: Tensor, g: Tensor, shape: tuple[int, ...], geometry: Geometry, choice: str, workspace: Workspace
) -> Tensor:
    """Returns the rows of a convolution, its weight's per-sample gradients, in the order that `ORDER` has for the
    choice.
    """
    # One call of torch per sample: slow, but every option works.
    if choice == "native":
        each = [sum_by_torch(a[i : i + 1], g[i : i + 1], shape, geometry) for i in range(len(g))]
        return torch.stack(each) if each else a.new_zeros((0, *shape))
    if choice == "grouped":
        return _rows_by_groups(a, g, shape, geometry)
    if choice == "last":
        return _rows_channels_last(a, g, geometry, workspace)
    if choice == "unfold":
        return _rows_by_unfolding(a, g, shape, geometry, workspace)
    a = geometry.fit_input(a, g.shape[2:])
    if choice == "taps":
        # Depthwise layers: each tap is one product of shifted images, summed over positions.
        by_tap = [(g * part).flatten(2).sum(2) for part in geometry.iterate_tap_slices(a, g.shape[2:])]
        return torch.stack(by_tap, 2).view(g.shape[0], *shape)
    # "shift": one product of contiguous slices for each tap.
    pixels, grads, offsets = geometry.to_flat_grid(a, g)  # "shift"
    rows_by_tap = pixels.new_empty((g.shape[0], len(offsets), g.shape[1], a.shape[1]))  # (b, K, p, C)
    transposed, length = grads.transpose(1, 2), grads.shape[1]
    for k, offset in enumerate(offsets):
        torch.bmm(transposed, pixels[:, offset : offset + length], out=rows_by_tap[:, k])
    return rows_by_tap


def _rows_by_unfolding(
    a: Tensor, g: Tensor, shape: tuple[int, ...], geometry: Geometry, workspace: Workspace
) -> Tensor:
    """Returns rows (b, p, C/groups, *kernel) of a convolution from patches of a few samples at a time, positions
    innermost.
    """
    t, (b, p) = prod(g.shape[2:]), g.shape[:2]
    groups, wide = geometry.groups, prod(shape[1:])
    found = workspace.allocate_rows((b, groups, p // groups, wide), a)
    # As many samples at a time as stay in the cache together with their patches.
    step = max(1, _WARM // max(1, t * wide * groups))
    for i in range(0, b, step):
        patches = geometry.unfold_patches(
            geometry.fit_input(a[i : i + step], g.shape[2:]).contiguous()
        )  # (s, groups, d, T)
        output_gradients = g[i : i + step]
        output_gradients = (
            output_gradients.flatten(2).unsqueeze(1)
            if groups == 1
            else output_gradients.reshape(output_gradients.shape[0], groups, p // groups, t)
        )
        torch.matmul(output_gradients, patches.transpose(2, 3), out=found[i : i + step])
    return found.view(b, *shape)


def _rows_by_groups(a: Tensor, g: Tensor, shape: tuple[int, ...], geometry: Geometry) -> Tensor:
    """Returns rows (b, p, C/groups, *kernel) of a convolution by one call of the framework's kernel: the samples stand
    side by side as groups of channels, which never meet.
    """
    b, each = len(g), replace(geometry, groups=len(g) * geometry.groups)
    inputs, gradients = (x.reshape(1, b * x.shape[1], *x.shape[2:]) for x in (a, g))
    return sum_by_torch(inputs, gradients, (b * shape[0], *shape[1:]), each).view(b, *shape)


def _rows_channels_last(a: Tensor, g: Tensor, geometry: Geometry, workspace: Workspace) -> Tensor:
    """Returns rows (b, p, K, C) of a convolution from patches of a few samples at a time in one warm buffer."""
    t, (b, p) = prod(g.shape[2:]), g.shape[:2]
    wide = a.shape[1] * geometry.taps
    found = workspace.allocate_rows((b, p, wide), a)
    step = max(1, _WARM // (t * wide))
    buffer = workspace.allocate_temporary((min(step, b) * t * wide,), a)
    for i in range(0, b, step):
        inputs = geometry.fit_input(a[i : i + step], g.shape[2:])
        patches = geometry.unfold_channels_last(inputs, buffer)  # (s, T, K·C)
        torch.bmm(g[i : i + step].flatten(2), patches, out=found[i : i + step])
    return found.view(b, p, geometry.taps, a.shape[1])


def sum_by_torch(a: Tensor, g: Tensor, shape: tuple[int, ...], geometry: Geometry) -> Tensor:
    """Returns Σ_i G_i of a convolution's rows G_i by the framework's own kernel."""
    rank = len(geometry.kernel)
    # Cut an input of which not every pixel is read, which the framework would refuse.
    if _output_size(a, geometry) != g.shape[2:]:  # a transposed convolution's output padding leaves unread pixels
        a = geometry.fit_input(a, g.shape[2:])
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


def _output_size(a: Tensor, geometry: Geometry) -> torch.Size:
    """Returns the spatial size of a convolution's output."""
    sizes = zip(a.shape[2:], geometry.kernel, geometry.stride, geometry.padding, geometry.dilation, strict=True)
    return torch.Size((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)

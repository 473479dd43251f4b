"""Layers with one position per sample, taken together: their norms in one call, their weighted sums in one call.

Such a layer's squared norms are ‖a_i‖²‖g_i‖² for the weight and ‖g_i‖² for the bias, and both sums are made of w_i g_i.
In a network of small layers the calls cost more than the work, so all layers share them. Parts of other kinds, devices
and types go the ordinary way, and so does everything where the library was not compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sordino.gradients.rules.matmul import Matmul
from sordino.gradients.rules.part import Part, Rows
from sordino.kernels.rows import rows, suits


_SMALL = 1 << 20
"""Elements of a matrix up to which the calls matter; larger ones are worth torch's threads."""


def _simple(part: Part | None) -> bool:
    """Has this part one position per sample, in small matrices that can be read?"""
    if type(part) is Matmul:
        return part.kept is None and _readable(part.a) and _readable(part.g)
    return type(part) is Rows and _readable(part.grads)


def _readable(matrix: Tensor) -> bool:
    return suits(matrix) and matrix.numel() <= _SMALL


def norms(parts: Sequence[Part | None]) -> tuple[Tensor, Tensor, bool] | None:
    """The squared norms of all parts, (B, P), their sums, (B,), and whether they are finite; None unless all are simple."""
    compiled = rows()
    if compiled is None or not all([_simple(part) for part in parts]):
        return None
    places: dict[int, int] = {}  # by the identity of a matrix
    matrices: list[Tensor] = []

    def place(matrix: Tensor) -> int:
        found = places.setdefault(id(matrix), len(matrices))
        if found == len(matrices):
            matrices.append(matrix)
        return found

    products = [
        (place(part.g), place(part.a)) if isinstance(part, Matmul) else (place(part.grads), -1)  # type: ignore[union-attr]
        for part in parts
    ]
    return compiled.squared(matrices, products) if len(matrices) <= compiled.most else None


def add(parts: Mapping[str, Part | None], total: Mapping[str, Tensor], weights: Tensor, beta: int) -> bool:
    """Add Σ w_i g_i of all parts to the totals, for weights (B,); False, and nothing was done, unless all are simple."""
    compiled = rows()
    if compiled is None or weights.dtype is not torch.float32 or not all([_simple(part) for part in parts.values()]):
        return False
    matrices: dict[int, tuple[Tensor, Tensor | None, Tensor | None]] = {}  # by identity: what, weighted, sum
    products: list[tuple[Tensor, Tensor, Tensor]] = []
    for name, part in parts.items():
        out = total[name]
        if not out.is_contiguous() or out.dtype is not torch.float32:
            return False
        if isinstance(part, Rows):
            _, scaled, summed = matrices.get(id(part.grads), (part.grads, None, None))
            if summed is not None:  # the same gradient for two parameters
                return False
            matrices[id(part.grads)] = (part.grads, scaled, out)
        elif isinstance(part, Matmul):
            narrow = part.a if part.a.shape[1] < part.g.shape[1] else part.g
            _, scaled, summed = matrices.get(id(narrow), (narrow, None, None))
            if scaled is None:
                scaled = torch.empty_like(narrow, memory_format=torch.contiguous_format)
                matrices[id(narrow)] = (narrow, scaled, summed)
            products.append((out, scaled, part.a) if narrow is part.g else (out, part.g, scaled))
    compiled.weighted(weights, list(matrices.values()), anew=not beta)
    for out, g, a in products:
        out.addmm_(g.t(), a, beta=beta)
    return True

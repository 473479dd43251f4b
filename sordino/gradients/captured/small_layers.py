"""The norms of all small layers in one compiled call, and their weighted sums in another.

With one position per sample a layer's squared norms are ‖a_i‖²‖g_i‖² for the weight and ‖g_i‖² for the bias, and both
sums are made of w_i g_i. In a network of small layers the calls cost more than the work, so all layers share them. Parts
of other kinds, devices and types go the ordinary way, and so does everything where the library was not compiled.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sordino.gradients.formulas.matrix_product import Matmul
from sordino.gradients.formulas.part import Part, Rows, add_outer
from sordino.gradients.protocol import Norms
from sordino.kernels.matrices import Matrices, functions, suits
from sordino.kernels.product import products

_SMALL = 1 << 20
"""Elements of a matrix up to which a call costs more than its work; larger ones are worth torch's threads."""


_AT_ONCE = 512
"""Samples: sums run through all of them in float32, and for more the roundings come to too much."""


class SmallLayers:
    """The parts of all parameters, each a product of two matrices or the rows of one."""

    def __init__(self, parts: Sequence[Matmul | Rows], matrices: Matrices, pairs: list[int]) -> None:
        """Take the places of each part's matrices, two numbers for each: that of g, and that of a or −1."""
        self._parts, self._matrices, self._pairs = parts, matrices, pairs

    def norms(self, names: tuple[str, ...]) -> Norms:
        """The squared norms of all parts."""
        return Norms.summed(*self._matrices.squared(self._pairs), names)

    def add_to(self, total: Sequence[Tensor], weights: Tensor, beta: int) -> bool:
        """Add Σ w_i g_i; False, and nothing was done, where the weights differ by parameter or two share a matrix."""
        if weights.shape[1] != 1 or weights.dtype is not torch.float32 or len(weights) > _AT_ONCE:
            return False
        weighted: dict[int, Tensor] = {}
        sums: dict[int, Tensor] = {}
        scaled: list[tuple[Tensor, Tensor, Tensor]] = []
        whole: list[tuple[Tensor, Matmul]] = []
        kernel, pairs, k = products(), self._pairs, 0
        for part, out in zip(self._parts, total, strict=True):
            if out.dtype is not torch.float32 or not out.is_contiguous():
                return False
            g, a = pairs[k], pairs[k + 1]
            k += 2
            if isinstance(part, Rows):
                if g in sums:  # the same gradient for two parameters
                    return False
                sums[g] = out
            elif kernel is not None and kernel.takes(part.g, part.a, out):
                whole.append((out, part))
            elif part.a.shape[1] < part.g.shape[1]:
                if a not in weighted:
                    weighted[a] = torch.empty_like(part.a, memory_format=torch.contiguous_format)
                scaled.append((out, part.g, weighted[a]))
            else:
                if g not in weighted:
                    weighted[g] = torch.empty_like(part.g, memory_format=torch.contiguous_format)
                scaled.append((out, weighted[g], part.a))
        self._matrices.weighted(weights, weighted, sums, anew=not beta)
        for out, x, y in scaled:
            add_outer(out, x, y, beta)
        for out, part in whole:
            assert kernel is not None, "it was asked above"
            kernel.add(part.g, part.a, weights[:, 0], out, beta, torch.get_num_threads())
        return True


def small_layers(parts: Sequence[Part | None]) -> SmallLayers | None:
    """The parts of all parameters, if one call can do for all of them; else None."""
    compiled = functions()
    if compiled is None:
        return None
    places: dict[int, int] = {}  # by identity
    matrices: list[Tensor] = []
    pairs: list[int] = []
    simple: list[Matmul | Rows] = []
    for part in parts:
        if type(part) is Matmul and part.kept is None:
            both: tuple[Tensor, ...] = (part.g, part.a)
        elif type(part) is Rows:
            both = (part.grads,)
        else:
            return None
        for matrix in both:
            place = places.get(id(matrix))
            if place is None:
                if not suits(matrix, _SMALL):
                    return None
                place = places[id(matrix)] = len(matrices)
                matrices.append(matrix)
            pairs.append(place)
        if len(both) == 1:
            pairs.append(-1)
        simple.append(part)
    if len(matrices) > compiled.most:
        return None
    return SmallLayers(simple, Matrices(compiled, matrices), pairs)

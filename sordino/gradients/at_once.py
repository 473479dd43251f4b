"""Layers with one position per sample, taken together: their norms in one call, their weighted sums in another.

Such a layer's squared norms are ‖a_i‖²‖g_i‖² for the weight and ‖g_i‖² for the bias, and both sums are made of w_i g_i.
In a network of small layers the calls cost more than the work, so all layers share them. Parts of other kinds, devices
and types go the ordinary way, and so does everything where the library was not compiled.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sordino.gradients.persample import Norms
from sordino.gradients.rules.matmul import Matmul
from sordino.gradients.rules.part import Part, Rows
from sordino.kernels.rows import Matrices, functions, suit

_SMALL = 1 << 20
"""Elements of a matrix up to which the calls matter; larger ones are worth torch's threads."""


class AtOnce:
    """The parts of all parameters, each a product of two matrices or the rows of one."""

    def __init__(self, parts: Sequence[Matmul | Rows], matrices: Matrices) -> None:
        self._parts, self._matrices = parts, matrices

    def norms(self, names: tuple[str, ...]) -> Norms:
        """The squared norms of all parts."""
        at = self._matrices.places
        products = [
            (at[id(part.g)], at[id(part.a)]) if isinstance(part, Matmul) else (at[id(part.grads)], -1)
            for part in self._parts
        ]
        return Norms.summed(*self._matrices.squared(products), names)

    def add_to(self, total: Sequence[Tensor], weights: Tensor, beta: int) -> bool:
        """Add Σ w_i g_i; False, and nothing was done, where the weights differ by parameter or two share a matrix."""
        if weights.shape[1] != 1 or weights.dtype is not torch.float32:
            return False
        weighted: dict[int, Tensor] = {}
        sums: dict[int, Tensor] = {}
        products: list[tuple[Tensor, Tensor, Tensor]] = []
        at = self._matrices.places
        for part, out in zip(self._parts, total, strict=True):
            if out.dtype is not torch.float32 or not out.is_contiguous():
                return False
            if isinstance(part, Rows):
                k = at[id(part.grads)]
                if k in sums:  # the same gradient for two parameters
                    return False
                sums[k] = out
                continue
            narrow = part.a if part.a.shape[1] < part.g.shape[1] else part.g
            k = at[id(narrow)]
            if k not in weighted:
                weighted[k] = torch.empty(narrow.shape)
            products.append((out, weighted[k], part.a) if narrow is part.g else (out, part.g, weighted[k]))
        self._matrices.weighted(weights, weighted, sums, anew=not beta)
        for out, g, a in products:
            out.addmm_(g.t(), a, beta=beta)
        return True


def at_once(parts: Sequence[Part | None]) -> AtOnce | None:
    """The parts, to be taken together; None if one of them cannot."""
    compiled = functions()
    if compiled is None:
        return None
    found: dict[int, Tensor] = {}  # by identity
    simple: list[Matmul | Rows] = []
    for part in parts:
        if type(part) is Matmul and part.kept is None:
            found[id(part.g)], found[id(part.a)] = part.g, part.a
        elif type(part) is Rows:
            found[id(part.grads)] = part.grads
        else:
            return None
        simple.append(part)
    if len(found) > compiled.most or not suit(found.values(), _SMALL):
        return None
    return AtOnce(simple, Matrices(compiled, found))

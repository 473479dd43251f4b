"""⟨g_i, θ⟩ from a layer's output: a layer linear in its parameters has Σ_p ⟨∂ℓ_i/∂p, p⟩ = ⟨δ_i, y_i⟩ (Euler).

δ is the gradient at the output y. Both are there after the backward pass, so the inner product with the parameters, which
a penalty inside the clip needs, costs one pass over them in place of a product as large as the layer's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.gradients.formulas.part import scratch


@dataclass(frozen=True)
class Euler:
    """An output that is linear in the parameters `of`, together; the first is the one whose own product is dear."""

    of: tuple[Tensor | None, ...]
    rows: Callable[[Tensor, Tensor], Tensor]  # (δ, y) to Σ δ·y of each row of the layer's input

    def pays(self, outputs: int) -> bool:
        """Is holding so many outputs per sample better than a product with the layer's rows, which it keeps then?"""
        dear = self.of[0]
        return dear is not None and outputs <= dear.numel()


_WARM = 1 << 16
"""Elements multiplied at once: the product should still be in the cache when it is added up."""


def each(g: Tensor, y: Tensor) -> Tensor:
    """Σ δ·y over all but the first dimension, whatever the memory format, a few rows at a time."""
    rest, n = tuple(range(1, g.dim())), g[:1].numel()
    dense = g.is_contiguous() or (g.dim() == 4 and g.is_contiguous(memory_format=torch.channels_last))
    if g.stride() != y.stride() or not dense or not n:
        return (g * y).sum(rest)
    step, found = max(1, _WARM // n), g.new_empty(g.shape[0])
    for i in range(0, g.shape[0], step):
        few = g[i : i + step]
        room = scratch(few.numel(), few).as_strided(few.shape, few.stride())
        found[i : i + step] = torch.mul(few, y[i : i + step], out=room).sum(rest)
    return found

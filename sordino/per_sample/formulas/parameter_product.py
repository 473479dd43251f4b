"""Computes ⟨g_i, θ⟩ from a layer's output by Euler's identity Σ_p ⟨∂ℓ_i/∂p, p⟩ = ⟨δ_i, y_i⟩.

It holds for a layer that is linear in its parameters. δ is the gradient at the output y. Both are there after the
backward pass, so the inner product with the parameters, which a penalty inside the clip needs, costs one pass over them
in place of a product as large as the layer's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.per_sample.formulas.workspace import Workspace


@dataclass(frozen=True)
class ParameterProduct:
    """Describes an output that is linear in the parameters `parameters`, together.

    The others' own products are computed and subtracted, which leaves that of the first: so it should be the largest.
    """

    parameters: tuple[Tensor | None, ...]
    sum_products: Callable[[Tensor, Tensor], Tensor]  # (δ, y) to Σ δ·y of each row of the layer's input

    def is_cheaper(self, outputs: int) -> bool:
        """Returns whether holding so many outputs per sample, for the product with the parameters, is cheaper than one
        product with rows.

        The rows are those that the layer would keep instead.
        """
        largest = self.parameters[0]
        return largest is not None and outputs <= largest.numel()


_WARM = 1 << 16
"""Elements multiplied at once: the product should still be in the cache when it is added up."""


def sum_products_by_row(workspace: Workspace, g: Tensor, y: Tensor) -> Tensor:
    """Returns Σ δ·y over all but the first dimension, a layer's product with its parameters, whatever the memory
    format, a few rows at a time.
    """
    other_dims, n = tuple(range(1, g.dim())), g[:1].numel()
    # Equal strides and dense memory let the product be written into a buffer that is used again.
    dense = g.is_contiguous() or (g.dim() == 4 and g.is_contiguous(memory_format=torch.channels_last))
    if g.stride() != y.stride() or not dense or not n:
        return (g * y).sum(other_dims)
    step, found = max(1, _WARM // n), g.new_empty(g.shape[0])
    for i in range(0, g.shape[0], step):
        gradient_rows = g[i : i + step]
        room = workspace.allocate_temporary((gradient_rows.numel(),), gradient_rows).as_strided(
            gradient_rows.shape, gradient_rows.stride()
        )
        found[i : i + step] = torch.mul(gradient_rows, y[i : i + step], out=room).sum(other_dims)
    return found

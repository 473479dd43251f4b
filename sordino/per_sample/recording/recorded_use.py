"""One use of trainable parameters in a forward pass: what was kept of it, and the parts it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.autograd.graph import GradientEdge

from sordino.per_sample.formulas.compound_parts import SeveralRows
from sordino.per_sample.formulas.gradient_part import GradientRows, Part, lift_precision
from sordino.per_sample.formulas.parameter_product import ParameterProduct
from sordino.refusal import Refusal

Parts = Callable[[tuple[Tensor, ...], Tensor], Mapping[Tensor, Part | Tensor]]
"""Turns what a rule saved and the gradient at its output into one entry per parameter."""


@dataclass(slots=True)
class Use:
    """One recorded use: the place of its output in the graph, its inputs, and how to make parts of them."""

    name: str
    edge: GradientEdge
    saved: tuple[Tensor, ...]
    versions: tuple[int, ...]
    parts: Parts
    rows: int  # of the gradient, for each sample
    bytes: int = 0  # of the output
    depends_on_layer: bool = False  # its input depends on another recorded layer
    output: Tensor | None = None
    version: int = 0
    product: ParameterProduct | None = None

    def parameter_products(self, g: Tensor, parts: Mapping[Tensor, Part]) -> dict[Tensor, Tensor]:
        """Returns ⟨g_i, θ⟩ for the parameters of a recorded use, (B,), from its output; empty where the output has
        changed.
        """
        if self.product is None or self.output is None or self.output._version != self.version:
            return {}  # not held, or an in-place operation came after
        largest, *others = [p for p in self.product.parameters if p is not None]
        if not all(p in parts for p in (largest, *others)):  # a frozen one contributes to the output too
            return {}
        # The output's product with its gradient is the sum over all parameters. The largest one's is what is left of it
        # after the others, which are cheap.
        products = {p: parts[p].dot(p.detach()).double() for p in others}
        total = self.product.sum_products(g, self.output).double()
        total = total if self.rows == 1 else total.view(-1, self.rows).sum(1)
        products[largest] = total - sum(products.values())
        return products

    def resolve_parts(self, g: Tensor) -> dict[Tensor, Part]:
        """Returns the parts of a recorded use, once the gradient at the output is known; refuses an input that was
        changed since.
        """
        for tensor, version in zip(self.saved, self.versions, strict=True):
            if tensor._version != version:
                raise Refusal(
                    f"layer '{self.name}': its input was changed in place after the layer had read it.\n"
                    "Gradients need the value that it computed with.\n"
                    "Use the out-of-place operation (x = x + y, not x += y)."
                )
        return to_parts(self.parts(self.saved, g), self.rows)


def to_parts(entries: Mapping[Tensor, Part | Tensor], rows: int = 1) -> dict[Tensor, Part]:
    """Wraps the plain tensors that a recorded use gives as parts, and adds up the rows of a sample where it has
    several.
    """
    parts: dict[Tensor, Part] = {}
    for p, part in entries.items():
        plain: Part = GradientRows(lift_precision(part)) if isinstance(part, Tensor) else part
        parts[p] = plain if rows == 1 else SeveralRows(plain, rows)
    return parts

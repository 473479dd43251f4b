"""Computes the norms of all small layers in one compiled call, and their sums in another.

With one position per sample a layer's squared norms are ‖a_i‖²‖g_i‖² for the weight and ‖g_i‖² for the bias, and both
sums are made of w_i g_i. In a network of small layers the calls cost more than the work, so all layers share them.
Parts of other kinds, devices and types, such as convolutions, go the ordinary way beside them, and so does everything
where the library was not compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from sordino.kernels.matrices import Matrices, is_readable_matrix, load_functions
from sordino.kernels.product import load_products
from sordino.per_sample.formulas.gradient_part import GradientRows, Part, add_outer
from sordino.per_sample.formulas.matrix_product import Matmul
from sordino.per_sample.protocol import Norms

_SMALL = 1 << 20
"""Elements of a matrix up to which a call costs more than its work; larger ones are worth torch's threads."""


_AT_ONCE = 512
"""Samples in one call at most: sums run through all of them in float32, and roundings grow with their number."""


class SmallLayers:
    """The parts of some parameters, or of all, each a product of two matrices or the rows of one."""

    def __init__(
        self,
        columns: list[int],
        parts: Sequence[Matmul | GradientRows],
        matrices: Matrices,
        pairs: list[int],
        everything: bool,
    ) -> None:
        """Takes which parameters they are, and the places of each part's matrices: that of g, and that of a or −1."""
        self.columns, self._parts, self._matrices, self._pairs = columns, parts, matrices, pairs
        self.everything = everything

    def norms(self, names: tuple[str, ...]) -> Norms:
        """Returns the squared norms, where these are the parts of all parameters."""
        return Norms.with_known_sums(*self._matrices.squared_row_products(self._pairs), names)

    def squared_norms_by_column(self) -> Iterator[tuple[int, Tensor]]:
        """Returns, for each parameter, its column and its squared norms, (B,)."""
        return zip(self.columns, self._matrices.squared_row_products(self._pairs)[0].unbind(1), strict=True)

    def add_to(self, room: Callable[[int], Tensor], weights: Tensor, beta: int) -> Iterator[tuple[int, Tensor]] | None:
        """Adds Σ w_i g_i of all small layers to the memory of each parameter, one after the other, and yields its
        column and the sum.

        Returns None, and does nothing, where the weights differ by parameter or two parts share a matrix.
        """
        if weights.shape[1] != 1 or weights.dtype is not torch.float32 or weights.shape[0] > _AT_ONCE:
            return None
        # Decide for each part how its sum is made: from the rows of g, by the compiled product, or by torch's product
        # with whichever factor is smaller multiplied by the weights first.
        weighted: dict[int, Tensor] = {}
        sums: dict[int, Tensor] = {}
        products_of: dict[int, tuple[Tensor, Tensor] | None] = {}  # by part; None: from its matrices as they are
        kernel, pairs = load_products(), self._pairs
        for k, part in enumerate(self._parts):
            out, g, a = room(self.columns[k]), pairs[2 * k], pairs[2 * k + 1]
            if out.dtype is not torch.float32 or not out.is_contiguous():
                return None
            if isinstance(part, GradientRows):
                if g in sums:  # the same gradient for two parameters
                    return None
                sums[g] = out
            elif kernel is not None and kernel.can_multiply(part.g, part.a, out):
                products_of[k] = None
            elif part.a.shape[1] < part.g.shape[1]:
                if a not in weighted:
                    weighted[a] = torch.empty_like(part.a, memory_format=torch.contiguous_format)
                products_of[k] = part.g, weighted[a]
            else:
                if g not in weighted:
                    weighted[g] = torch.empty_like(part.g, memory_format=torch.contiguous_format)
                products_of[k] = weighted[g], part.a
        # One call multiplies all rows by their weights and adds up the sums of rows.
        self._matrices.write_weighted_rows(weights, weighted, sums, anew=not beta)
        return self._iterate_sums(room, weights, beta, sums, products_of)

    def _iterate_sums(
        self,
        room: Callable[[int], Tensor],
        weights: Tensor,
        beta: int,
        sums: Mapping[int, Tensor],
        products_of: Mapping[int, tuple[Tensor, Tensor] | None],
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields the sum of each small layer's part, making the products that are left."""
        kernel = load_products()
        for k, part in enumerate(self._parts):
            # Rows of gradients were summed in the common call already; products are made now, one after the other.
            column = self.columns[k]
            if isinstance(part, GradientRows):
                yield column, sums[self._pairs[2 * k]]
                continue
            out, both = room(column), products_of[k]
            if both is not None:
                add_outer(out, *both, beta)
            else:
                assert kernel is not None, "it was asked before"
                kernel.add_weighted_product(part.g, part.a, weights[:, 0], out, beta, torch.get_num_threads())
            yield column, out
            del out


def find_small_layers(parts: Sequence[Part | None], b: int) -> SmallLayers | None:
    """Returns the parts of small layers, of b samples, that one compiled call can do, if there are several of them;
    else None.
    """
    compiled = load_functions()
    if compiled is None:
        return None
    places: dict[int, int] = {}  # by identity
    matrices: list[Tensor] = []
    pairs: list[int] = []
    columns: list[int] = []
    simple: list[Matmul | GradientRows] = []
    max_matrices = compiled.most
    # Collect the parts of the two simple kinds whose matrices the library can read, each matrix once.
    for column, part in enumerate(parts):
        if type(part) is Matmul and part.kept is None:
            g, a = part.g, part.a
        elif type(part) is GradientRows:
            g, a = part.grads, None
        else:
            continue
        new_g, new_a = id(g) not in places, a is not None and id(a) not in places
        if len(matrices) + new_g + new_a > max_matrices or (new_g and not is_readable_matrix(g, b, _SMALL)):
            continue
        if new_a and a is not None and not is_readable_matrix(a, b, _SMALL):
            continue
        if new_g:
            places[id(g)] = len(matrices)
            matrices.append(g)
        if new_a and a is not None and a is not g:
            places[id(a)] = len(matrices)
            matrices.append(a)
        pairs += (places[id(g)], -1 if a is None else places[id(a)])
        columns.append(column)
        simple.append(part)
    if len(simple) < 2:
        return None
    return SmallLayers(columns, simple, Matrices(compiled, matrices), pairs, len(simple) == len(parts))

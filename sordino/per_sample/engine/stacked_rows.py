"""Measures and sums all small layers on a device in a handful of launches.

On a device an operation on a small tensor costs its launch, whatever it computes. So the rows (per-sample gradients) of
all small layers are written out, one launch a layer, and put side by side in one matrix (B, N). The lengths of its rows
are the norms, and one product with the weights is the sum of every parameter:

    ‖g_i‖² = Σ_n row_in²            Σ_i w_i g_i = wᵀ rows

Norms of single parameters are computed when somebody asks for them, which flat clipping does not.

Layers whose rows are too large for this go the ordinary way beside it. On the CPU, where launches cost little and rows
cost memory traffic, nothing is stacked.

Privacy: the rows that are measured are those that are summed, so nothing can cancel in between. Squares are added in
short runs, as `square_sum` does, and what may have vanished in them is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from sordino.per_sample.formulas.gradient_part import RUN, Part, add_rows, square_sum, two_dimensional
from sordino.per_sample.protocol import Norms, NormsOnDemand
from sordino.per_sample.row_arithmetic import vanished_squares

_MOST_BYTES = 1 << 25
"""Bytes of the matrix of rows. Below, a layer's launches take longer than writing its rows does."""

_SHORTEST = 63
"""Runs whose squares are added at once are longer than this."""


class StackedRows:
    """The rows of some parameters, or of all, side by side in one matrix on a device."""

    def __init__(self, columns: list[int], stacked: Tensor, shapes: list[torch.Size], everything: bool) -> None:
        """Takes which parameters they are, their rows (B, N) one after the other, and the parameters' shapes."""
        self.columns, self.everything = columns, everything
        self._stacked, self._shapes = stacked, shapes
        self._ends = list(accumulate(shape.numel() for shape in shapes))

    @cached_property
    def sums(self) -> Tensor:
        """The squared norms of the stacked rows of all parameters together, (B,)."""
        # Runs of equal length leave no rest, which would be three more launches.
        b, n = self._stacked.shape
        run = next((length for length in range(min(RUN, n), _SHORTEST, -1) if n % length == 0), None)
        if run is None:
            return square_sum(self._stacked)
        lengths: Tensor = torch.linalg.vector_norm(self._stacked.view(b, -1, run), dim=2)
        return lengths.square_().sum(1).add_(vanished_squares(self._stacked))

    def norms(self, names: tuple[str, ...]) -> Norms:
        """Returns the squared norms of the stacked rows, where these are the parts of all parameters."""
        return NormsOnDemand(
            self.sums, lambda: torch.stack([each for _, each in self.squared_norms_by_column()], 1), names
        )

    def squared_norms_by_column(self) -> Iterator[tuple[int, Tensor]]:
        """Yields, for each parameter, its column and its squared norms, (B,)."""
        for column, shape, end in zip(self.columns, self._shapes, self._ends, strict=True):
            yield column, square_sum(self._stacked[:, end - shape.numel() : end])

    def add_to(self, room: Callable[[int], Tensor], weights: Tensor, beta: int) -> Iterator[tuple[int, Tensor]] | None:
        """Adds Σ w_i g_i of the stacked rows to the memory of each parameter, and yields its column and that memory;
        None where the weights differ by parameter.
        """
        found = self.sum_rows(weights)
        if found is None:
            return None
        into = [room(column) for column in self.columns]
        torch._foreach_add_(into, found) if beta else torch._foreach_copy_(into, found)
        return zip(self.columns, into, strict=True)

    def sum_rows(self, weights: Tensor) -> list[Tensor] | None:
        """Returns Σ w_i g_i of each parameter of the stacked rows, as views of one vector; None where the weights differ
        by parameter.
        """
        if weights.shape[1] != 1 or weights.dtype != self._stacked.dtype:
            return None
        # A record of weight 0 adds nothing, even where its gradient is not finite: its row is replaced by that zero,
        # because 0 · nan is nan. Nobody waits to see whether there is such a row.
        rows = torch.where(weights == 0, weights, self._stacked)
        total = self._stacked.new_empty(self._stacked.shape[1])
        add_rows(total, rows, weights[:, 0], 0)
        pieces = total.split([shape.numel() for shape in self._shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]


def stack_rows(parts: Sequence[Part | None], parameters: Sequence[Tensor], b: int) -> StackedRows | None:
    """Returns the stacked rows of the small layers of a batch of b samples on a device; None on the CPU, or where there
    are fewer than two.
    """
    if not b or not parameters or parameters[0].is_cpu:
        return None
    # The smallest come first, as many as fit; their order in the matrix is that of the parameters.
    room, chosen = _MOST_BYTES // (4 * b), list[int]()
    candidates = [k for k, part in enumerate(parts) if part is not None and parameters[k].numel()]
    for k in sorted(candidates, key=lambda k: parameters[k].numel()):
        room -= parameters[k].numel()
        if room < 0:
            break
        chosen.append(k)
    # Only float32 is stacked: that is what almost everything is summed in.
    rows = [(k, part.rows(slice(None))) for k in sorted(chosen) if (part := parts[k]) is not None]
    rows = [(k, two_dimensional(own)) for k, own in rows if own.dtype is torch.float32]
    if len(rows) < 2:
        return None
    columns, matrices = [k for k, _ in rows], [own for _, own in rows]
    return StackedRows(
        columns, torch.cat(matrices, 1), [parameters[k].shape for k in columns], len(columns) == len(parts)
    )

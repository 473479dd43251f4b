"""Noise division: which coordinates of a sum each rank adds noise to.

Coordinates are divided evenly, or by the rows that a rank holds:

    replicated model        stretches of equal length; what is released goes to all: one all-gather
    fully sharded model     each parameter's own rows; what is released stays where the rows are

Privacy: every coordinate belongs to one rank and to no other, so each gets noise once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sordino.distributed import row_shard
from sordino.distributed.process_group import Ranks

Stretches = list[tuple[int, int]]
"""First coordinates and their numbers, ascending."""


class Division(Protocol):
    """A division of the coordinates of all tensors, end to end, among the ranks."""

    def own_stretches(self) -> Stretches:
        """Returns the coordinates of this rank."""
        ...

    def reduce_to_own(self, values: Tensor) -> Tensor:
        """Returns the sums over all ranks, at this rank's coordinates."""
        ...

    def assemble_release(self, own_values: Tensor, shapes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the released tensors, from what all ranks made of their coordinates."""
        ...


@dataclass(frozen=True)
class Evenly:
    """Stretches of equal length; the last ranks may have less."""

    ranks: Ranks
    size: int

    @property
    def _width(self) -> int:
        return -(-self.size // self.ranks.size)

    def own_stretches(self) -> Stretches:
        """Returns this rank's one stretch."""
        start = min(self.size, self.ranks.rank * self._width)
        return [(start, min(self._width, self.size - start))]

    def reduce_to_own(self, values: Tensor) -> Tensor:
        """Returns this rank's stretch of the sums over all ranks, by one reduce-scatter."""
        return self.ranks.reduce_scatter(_pad_to(values, self._width * self.ranks.size))[: self.own_stretches()[0][1]]

    def assemble_release(self, own_values: Tensor, shapes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the released tensors on every rank, by one all-gather."""
        return split_by_tensor(self.ranks.all_gather(_pad_to(own_values, self._width))[: self.size], shapes)


@dataclass(frozen=True)
class ByRows:
    """A division of each parameter by the rows that ranks hold of it already."""

    ranks: Ranks
    shards: Mapping[str, Tensor]

    def own_stretches(self) -> Stretches:
        """Returns the coordinates that the division of the noise by rows assigns to this rank: one stretch for each
        parameter.
        """
        # Stretches are counted over all parameters laid end to end, as the noise is drawn.
        stretches, before = [], 0
        for p in self.shards.values():
            start, count = row_shard.own_stretch(p)
            stretches.append((before + start, count))
            before += p.numel()
        return stretches

    def reduce_to_own(self, values: Tensor) -> Tensor:
        """Returns the sums over all ranks at the rows whose noise is this rank's by the division, by one reduce-scatter
        for each parameter.
        """
        # Rows are filled up to equal stretches, as the collective needs them.
        own_rows = [values[:0]]
        pieces = values.split([p.numel() for p in self.shards.values()])
        for piece, p in zip(pieces, self.shards.values(), strict=True):
            if p.numel():
                padded = _pad_to(piece, row_shard.stretch_width(p) * self.ranks.size)
                own_rows.append(self.ranks.reduce_scatter(padded)[: row_shard.own_stretch(p)[1]])
        return torch.cat(own_rows)

    def assemble_release(self, own_values: Tensor, shapes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the tensors released under a division of the noise by rows: as shards, each rank with its own rows;
        nothing is sent.
        """
        pieces = own_values.split([count for _, count in self.own_stretches()])
        return {
            name: row_shard.shard_from_rows(self.shards[name], piece)
            for name, piece in zip(shapes, pieces, strict=True)
        }


def split_by_tensor(values: Tensor, shapes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Splits coordinates, which a noise division numbers end to end over all tensors, into tensors of these shapes."""
    ends = torch.tensor([t.numel() for t in shapes.values()]).cumsum(0).tolist()
    pieces = values.tensor_split(ends[:-1]) if ends else ()
    return {name: piece.view(t.shape) for (name, t), piece in zip(shapes.items(), pieces, strict=True)}


def _pad_to(values: Tensor, length: int) -> Tensor:
    missing = length - len(values)
    return torch.cat([values, values.new_zeros(missing)]) if missing else values

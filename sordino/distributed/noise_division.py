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

    def own(self) -> Stretches:
        """Returns the coordinates of this rank."""
        ...

    def own_sums(self, values: Tensor) -> Tensor:
        """Returns the sums over all ranks, at this rank's coordinates."""
        ...

    def released(self, own: Tensor, shapes: Mapping[str, Tensor]) -> dict[str, Tensor]:
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

    def own(self) -> Stretches:
        """Returns this rank's one stretch."""
        start = min(self.size, self.ranks.rank * self._width)
        return [(start, min(self._width, self.size - start))]

    def own_sums(self, values: Tensor) -> Tensor:
        """Returns this rank's stretch of the sums over all ranks, by one reduce-scatter."""
        return self.ranks.own_sums(_padded(values, self._width * self.ranks.size))[: self.own()[0][1]]

    def released(self, own: Tensor, shapes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the released tensors on every rank, by one all-gather."""
        return apart(self.ranks.joined(_padded(own, self._width))[: self.size], shapes)


@dataclass(frozen=True)
class ByRows:
    """A division of each parameter by the rows that ranks hold of it already."""

    ranks: Ranks
    shards: Mapping[str, Tensor]

    def own(self) -> Stretches:
        """Returns one stretch for each parameter."""
        found, before = [], 0
        for p in self.shards.values():
            start, count = row_shard.stretch(p)
            found.append((before + start, count))
            before += p.numel()
        return found

    def own_sums(self, values: Tensor) -> Tensor:
        """Returns this rank's rows of the sums over all ranks, by one reduce-scatter for each parameter."""
        found = [values[:0]]
        pieces = values.split([p.numel() for p in self.shards.values()])
        for piece, p in zip(pieces, self.shards.values(), strict=True):
            if p.numel():
                room = _padded(piece, row_shard.width(p) * self.ranks.size)
                found.append(self.ranks.own_sums(room)[: row_shard.stretch(p)[1]])
        return torch.cat(found)

    def released(self, own: Tensor, shapes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the released tensors as shards, each rank with its own rows; nothing is sent."""
        pieces = own.split([count for _, count in self.own()])
        return {name: row_shard.with_rows(self.shards[name], piece) for name, piece in zip(shapes, pieces, strict=True)}


def apart(values: Tensor, shapes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Splits the coordinates of all tensors, end to end, into tensors of these shapes."""
    ends = torch.tensor([t.numel() for t in shapes.values()]).cumsum(0).tolist()
    pieces = values.tensor_split(ends[:-1]) if ends else ()
    return {name: piece.view(t.shape) for (name, t), piece in zip(shapes.items(), pieces, strict=True)}


def _padded(values: Tensor, length: int) -> Tensor:
    missing = length - len(values)
    return torch.cat([values, values.new_zeros(missing)]) if missing else values

"""Which coordinates of a sum each rank adds noise to, and what becomes of them: evenly, or by the rows it holds.

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
    """Of the coordinates of all tensors, end to end."""

    def own(self) -> Stretches:
        """The coordinates of this rank."""
        ...

    def own_sums(self, values: Tensor) -> Tensor:
        """Of this rank's coordinates, the sums over all ranks."""
        ...

    def released(self, own: Tensor, shapes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What all ranks made of their coordinates, by tensor."""
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
        """One stretch."""
        start = min(self.size, self.ranks.rank * self._width)
        return [(start, min(self._width, self.size - start))]

    def own_sums(self, values: Tensor) -> Tensor:
        """One reduce-scatter."""
        return self.ranks.own_sums(_padded(values, self._width * self.ranks.size))[: self.own()[0][1]]

    def released(self, own: Tensor, shapes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One all-gather."""
        return apart(self.ranks.joined(_padded(own, self._width))[: self.size], shapes)


@dataclass(frozen=True)
class ByRows:
    """Each parameter as it is divided already."""

    ranks: Ranks
    shards: Mapping[str, Tensor]

    def own(self) -> Stretches:
        """One stretch for each parameter."""
        found, before = [], 0
        for p in self.shards.values():
            start, count = row_shard.stretch(p)
            found.append((before + start, count))
            before += p.numel()
        return found

    def own_sums(self, values: Tensor) -> Tensor:
        """One reduce-scatter for each parameter."""
        found = [values[:0]]
        pieces = values.split([p.numel() for p in self.shards.values()])
        for piece, p in zip(pieces, self.shards.values(), strict=True):
            if p.numel():
                room = _padded(piece, row_shard.width(p) * self.ranks.size)
                found.append(self.ranks.own_sums(room)[: row_shard.stretch(p)[1]])
        return torch.cat(found)

    def released(self, own: Tensor, shapes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Nothing is sent."""
        pieces = own.split([count for _, count in self.own()])
        return {name: row_shard.with_rows(self.shards[name], piece) for name, piece in zip(shapes, pieces, strict=True)}


def apart(values: Tensor, shapes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Coordinates of all tensors, end to end, by tensor."""
    ends = torch.tensor([t.numel() for t in shapes.values()]).cumsum(0).tolist()
    pieces = values.tensor_split(ends[:-1]) if ends else ()
    return {name: piece.view(t.shape) for (name, t), piece in zip(shapes.items(), pieces, strict=True)}


def _padded(values: Tensor, length: int) -> Tensor:
    missing = length - len(values)
    return torch.cat([values, values.new_zeros(missing)]) if missing else values

"""Collectives on demand, for ranks that each go at their own pace through their chunks.

A collective needs all ranks, and ranks that compute layer by layer need many: the rows of a parameter before a layer runs,
and a sum of gradients brought together after it. So they go in rounds. In each, every rank says in one number what it needs
next, and all of them then do whatever any of them needs:

    0          nothing now: it waits for the others, or for a meeting that all will come to
    1 + 2j     the rows of parameter j: one all-gather, of which others keep nothing
    2 + 2j     its sum for parameter j is ready: one reduce-scatter, to which others add zeros
    −1         it has stopped

A rank that has fewer chunks than another, or none, or runs a batch again, keeps nobody waiting, so none needs records to
pad its chunks with. While all go through the same layers, a round is one request and 8 bytes more from each rank.

Privacy: which rank asks for what is known to ranks alone. Sums are whole numbers: zeros from a rank that brings none, and
the order of rounds, change no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sordino.distributed import row_shard
from sordino.distributed.process_group import Ranks
from sordino.distributed.shared_lot import StoppedElsewhere

Receives = Callable[[int, Tensor], None]
"""What becomes of this rank's rows of a sum over all ranks: the parameter's number, and the rows as whole numbers."""

_NOTHING, _STOPPED = 0, -1


class Rounds:
    """The rounds of one group of ranks over the parameters that are divided among it."""

    def __init__(self, ranks: Ranks, shards: Sequence[Tensor]) -> None:
        self._ranks, self.shards = ranks, shards
        self.receives: Receives | None = None
        self._over = False
        self.most = 0  # the most that one round gathered or brought together, in numbers: for tests and figures

    def rows(self, number: int) -> Tensor:
        """Returns a parameter's rows of all ranks."""
        found = self._round(1 + 2 * number)[0]
        assert found is not None, "it was asked for"
        return found

    def bring(self, number: int, sums: Tensor) -> None:
        """Hands over a sum for a parameter, as whole numbers end to end; every rank receives its rows of the total."""
        self._round(2 + 2 * number, sums)

    def wait(self) -> None:
        """Takes part in what others ask for until nobody needs anything, so that all can meet."""
        while not self._over and self._round(_NOTHING)[1]:
            pass

    def stop(self) -> None:
        """Tells the other ranks that there will be no more from this one; they stop too."""
        if not self._over:
            self._round(_STOPPED)

    def _round(self, asked: int, sums: Tensor | None = None) -> tuple[Tensor | None, bool]:
        """Makes one round; returns what this rank asked for, and whether any rank asked for anything."""
        with self._ranks.in_round():
            return self._made(asked, sums)

    def _made(self, asked: int, sums: Tensor | None) -> tuple[Tensor | None, bool]:
        """Exchanges what each rank asks for and carries all of it out, in the same order on every rank."""
        said = torch.tensor([asked], dtype=torch.int64, device=self._ranks.device)
        words = self._ranks.joined(said).tolist()
        # One rank that stopped ends the rounds of all, so that none waits for ever.
        if _STOPPED in words:
            self._over = True
            if asked != _STOPPED:
                raise StoppedElsewhere("another rank met an error and stopped; its own message says why")
            return None, False
        # Every rank joins every collective, whoever asked for it.
        found: Tensor | None = None
        for word in sorted(set(words) - {_NOTHING}):
            number, brought = divmod(word - 1, 2)
            if not brought:
                whole = self._whole(self.shards[number])
                found = whole if word == asked else found
            else:
                self._brought(number, sums if word == asked else None)
        return found, any(words)

    def _whole(self, p: Tensor) -> Tensor:
        """Gathers all rows of a parameter, by one all-gather."""
        found = joined_rows(self._ranks, p)
        self.most = max(self.most, found.numel())
        return found

    def _brought(self, number: int, sums: Tensor | None) -> None:
        """Adds this rank's sum, or zeros, to those of the others and keeps its own rows, by one reduce-scatter."""
        p = self.shards[number]
        room, length = row_shard.width(p) * self._ranks.size, p.numel()
        if sums is None or length < room:
            padded = torch.zeros(room, dtype=torch.int64, device=row_shard.local(p).device)
            if sums is not None:
                padded[:length] = sums
            sums = padded
        self.most = max(self.most, room)
        own = self._ranks.own_sums(sums)[: row_shard.stretch(p)[1]]
        assert self.receives is not None, "ranks that bring sums are in the same pass"
        self.receives(number, own)


def joined_rows(ranks: Ranks, p: Tensor) -> Tensor:
    """Returns all rows of a parameter that is divided among these ranks, by one all-gather."""
    own, width = row_shard.local(p).detach().reshape(-1), row_shard.width(p)
    room = own if len(own) == width else torch.cat([own, own.new_zeros(width - len(own))])
    found = ranks.joined(room)[: p.numel()]
    return (found.clone() if ranks.size == 1 else found).view(p.shape)

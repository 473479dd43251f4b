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


class CollectiveRounds:
    """The rounds of one group of ranks over the parameters that are divided among it."""

    def __init__(self, ranks: Ranks, shards: Sequence[Tensor]) -> None:
        self._ranks, self.shards = ranks, shards
        self.on_receive: Receives | None = None
        self._over = False
        self.largest_round = (
            0  # the most that one round gathered or brought together, in numbers: for tests and figures
        )

    def gather_rows(self, number: int) -> Tensor:
        """Returns a parameter's rows of all ranks, in a round of collectives that this rank demands."""
        rows = self._make_round(1 + 2 * number)[0]
        assert rows is not None, "it was asked for"
        return rows

    def contribute_sum(self, number: int, sums: Tensor) -> None:
        """Hands over a sum for a parameter, as whole numbers end to end; every rank receives its rows of the total."""
        self._make_round(2 + 2 * number, sums)

    def serve_until_idle(self) -> None:
        """Takes part in what others ask for until nobody needs anything, so that all can meet."""
        while not self._over and self._make_round(_NOTHING)[1]:
            pass

    def stop(self) -> None:
        """Tells the other ranks that there will be no more from this one; they stop too."""
        if not self._over:
            self._make_round(_STOPPED)

    def _make_round(self, asked: int, sums: Tensor | None = None) -> tuple[Tensor | None, bool]:
        """Makes one round; returns what this rank asked for, and whether any rank asked for anything."""
        with self._ranks.without_waiting():
            return self._exchange_requests(asked, sums)

    def _exchange_requests(self, asked: int, sums: Tensor | None) -> tuple[Tensor | None, bool]:
        """Exchanges which collectives each rank demands and carries all of them out, in the same order on every rank."""
        request = torch.tensor([asked], dtype=torch.int64, device=self._ranks.device)
        words = self._ranks.all_gather(request).tolist()
        # One rank that stopped ends the rounds of all, so that none waits for ever.
        if _STOPPED in words:
            self._over = True
            if asked != _STOPPED:
                raise StoppedElsewhere("another rank met an error and stopped; its own message says why")
            return None, False
        # Every rank joins every collective, whoever asked for it.
        requested_rows: Tensor | None = None
        for word in sorted(set(words) - {_NOTHING}):
            number, brought = divmod(word - 1, 2)
            if not brought:
                rows = self._gather_parameter(self.shards[number])
                requested_rows = rows if word == asked else requested_rows
            else:
                self._reduce_sum(number, sums if word == asked else None)
        return requested_rows, any(words)

    def _gather_parameter(self, p: Tensor) -> Tensor:
        """Gathers all rows of a parameter by one all-gather, a collective that some rank demands in this round."""
        rows = gather_rows(self._ranks, p)
        self.largest_round = max(self.largest_round, rows.numel())
        return rows

    def _reduce_sum(self, number: int, sums: Tensor | None) -> None:
        """Adds this rank's sum, or zeros, to those of the others by one reduce-scatter, a collective that some rank
        demands, and keeps its own rows.
        """
        p = self.shards[number]
        # All ranks take part with equally long buffers, filled up with zeros, whether or not they have a sum to bring.
        room, length = row_shard.stretch_width(p) * self._ranks.size, p.numel()
        if sums is None or length < room:
            padded = torch.zeros(room, dtype=torch.int64, device=row_shard.local_rows(p).device)
            if sums is not None:
                padded[:length] = sums
            sums = padded
        # Each rank receives the sum of its own rows, in whole numbers, so the order of the ranks changes nothing.
        self.largest_round = max(self.largest_round, room)
        own_rows = self._ranks.reduce_scatter(sums)[: row_shard.own_stretch(p)[1]]
        assert self.on_receive is not None, "ranks that bring sums are in the same pass"
        self.on_receive(number, own_rows)


def gather_rows(ranks: Ranks, p: Tensor) -> Tensor:
    """Returns all rows of a parameter that is divided among ranks, by the one collective that such a demand takes: an
    all-gather.
    """
    own_rows, width = row_shard.local_rows(p).detach().reshape(-1), row_shard.stretch_width(p)
    room = own_rows if len(own_rows) == width else torch.cat([own_rows, own_rows.new_zeros(width - len(own_rows))])
    all_rows = ranks.all_gather(room)[: p.numel()]
    return (all_rows.clone() if ranks.size == 1 else all_rows).view(p.shape)

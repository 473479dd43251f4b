"""Ways in which private training on many ranks goes wrong elsewhere, each as a change of one thing here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from sordino.distributed.noise_division import Stretches
from sordino.distributed.process_group import Ranks
from sordino.distributed.shared_lot import RankedLot
from sordino.distributed_run import DistributedRun
from sordino.lots.loading import CuttingInTurn
from sordino.private import Private
from sordino.release import release as door
from sordino.release.exact_sums import OnGrid
from sordino.rng.phase_noise import PhaseNoise
from sordino.rng.streams import Rng

Mutation = Callable[[Ranks], AbstractContextManager[None]]


@contextmanager
def every_rank_adds_noise_to_all(ranks: Ranks) -> Iterator[None]:
    """Each rank adds the noise of the whole sum to its share of it, and the shares are added up after that."""
    right = OnGrid.reduce_to_own

    def noised(total: OnGrid) -> torch.Tensor:
        drawn = Rng.from_seed(ranks.rank).normal(len(total.values)).double()
        more = replace(total, values=total.values + (drawn / total.grid.step).long())
        return right(more)

    with patch.object(OnGrid, "reduce_to_own", noised):
        yield


def _scaled(by: Callable[[int], float]) -> Mutation:
    @contextmanager
    def changed(ranks: Ranks) -> Iterator[None]:
        right = door._draw_noise_at

        def less(noise: Any, total: int, own: Stretches, scale: float, *more: Any) -> torch.Tensor:
            return right(noise, total, own, scale * by(ranks.size), *more)

        with patch.object(door, "_draw_noise_at", less):
            yield

    return changed


@contextmanager
def a_rank_adds_no_noise(ranks: Ranks) -> Iterator[None]:
    """The coordinates of one rank are released as they are."""
    right = door._draw_noise_at

    def lost(*given: Any) -> torch.Tensor:
        return right(*given) * (ranks.rank != ranks.size - 1)

    with patch.object(door, "_draw_noise_at", lost):
        yield


@contextmanager
def shares_of_noise_and_a_dead_rank(ranks: Ranks) -> Iterator[None]:
    """Each rank adds N(0, σ²/W) to its share of the sum, and one of them died before it did."""
    right = OnGrid.reduce_to_own

    def noised(total: OnGrid) -> torch.Tensor:
        alive = ranks.rank != ranks.size - 1
        drawn = Rng.from_seed(ranks.rank).normal(len(total.values)).double() * ranks.size**-0.5 * alive
        return right(replace(total, values=total.values + (drawn / total.grid.step).long()))

    def none(noise: Any, total: int, own: Stretches, *more: Any) -> torch.Tensor:
        return torch.zeros(sum(count for _, count in own))

    with patch.object(OnGrid, "reduce_to_own", noised), patch.object(door, "_draw_noise_at", none):
        yield


@contextmanager
def noise_at_other_coordinates(ranks: Ranks) -> Iterator[None]:
    """Each rank begins its noise at the first coordinate, whichever it holds: as if it held the first rows."""
    right = door._draw_noise_at

    def elsewhere(noise: Any, total: int, own: Stretches, *more: Any) -> torch.Tensor:
        return right(noise, total, [(start - own[0][0], count) for start, count in own], *more)

    with patch.object(door, "_draw_noise_at", elsewhere):
        yield


@contextmanager
def ranks_draw_by_themselves(ranks: Ranks) -> Iterator[None]:
    """Each rank samples with a key of its own."""
    with patch.object(DistributedRun, "create_root_stream", lambda self, seed, ledger: Rng.from_seed(ranks.rank)):
        yield


@contextmanager
def ranks_compute_the_same_records(ranks: Ranks) -> Iterator[None]:
    """Equal sampling seeds where each rank takes all that it draws for its own."""

    def all_of_it(self: CuttingInTurn, chunks: Any) -> list[range]:
        return [range(len(chunks))] * self.size

    with patch.object(CuttingInTurn, "shares_of_ranks", all_of_it):
        yield


@contextmanager
def one_chunk_twice(ranks: Ranks) -> Iterator[None]:
    """The last rank computes the first chunk too."""
    right = CuttingInTurn.shares_of_ranks

    def more(self: CuttingInTurn, chunks: Any) -> list[list[int]]:
        *others, last = map(list, right(self, chunks))
        return [*others, [0, *last] if len(chunks) > 1 else last]

    with patch.object(CuttingInTurn, "shares_of_ranks", more):
        yield


@contextmanager
def an_empty_rank_skips_the_lot(ranks: Ranks) -> Iterator[None]:
    """A rank without a record in the lot goes on to the next, as samplers that leave out empty batches do."""
    right = Private.backward

    def skipping(self: Private, lot: Any) -> Any:
        return right(self, lot) if len(lot.loads.numbers) or not self.steps % 2 else None

    with patch.object(Private, "backward", skipping):
        yield


@contextmanager
def another_learning_rate(ranks: Ranks) -> Iterator[None]:
    """The last rank steps twice as far."""
    right = torch.optim.Adam.__init__

    def further(self: Any, parameters: Any, lr: float) -> None:
        right(self, parameters, lr=lr * (1 + (ranks.rank == ranks.size - 1)))

    with patch.object(torch.optim.Adam, "__init__", further):
        yield


@contextmanager
def one_rank_fails(ranks: Ranks) -> Iterator[None]:
    """An error in the records of one rank."""
    right = RankedLot.begin_chunk

    def failing(self: RankedLot, place: int) -> int:
        if ranks.rank == ranks.size - 1 and self.passes:
            raise ValueError("a record that cannot be read")
        return right(self, place)

    with patch.object(RankedLot, "begin_chunk", failing):
        yield


def _shifted(name: str, shift: Callable[[Any, int], int]) -> Mutation:
    """The last rank is a step ahead of the others in a phase of correlated noise."""

    @contextmanager
    def changed(ranks: Ranks) -> Iterator[None]:
        right = getattr(PhaseNoise, name)

        def ahead(self: PhaseNoise, *given: Any) -> int:
            found = right(self, *given)
            return shift(self, found) if ranks.size > 1 and ranks.rank == ranks.size - 1 else found

        with patch.object(PhaseNoise, name, ahead):
            yield

    return changed


def _go_ahead(phase: PhaseNoise, _: Any) -> int:
    """Takes the phase itself one step further than was drawn."""
    phase.step += 1
    return phase.step


ALL: dict[str, Mutation] = {
    "a rank's phase is a step ahead": _shifted("draw_step", _go_ahead),
    "a rank's correlated noise is a step ahead": _shifted(
        "take_step", lambda phase, step: min(step + 1, phase.steps - 1)
    ),
    "every rank adds noise to all": every_rank_adds_noise_to_all,
    "σ/W": _scaled(lambda size: 1 / size),
    "σ/√W": _scaled(lambda size: size**-0.5),
    "σ/√W with a dead rank": shares_of_noise_and_a_dead_rank,
    "a rank adds no noise": a_rank_adds_no_noise,
    "noise at other coordinates": noise_at_other_coordinates,
    "ranks draw by themselves": ranks_draw_by_themselves,
    "ranks compute the same records": ranks_compute_the_same_records,
    "one chunk twice": one_chunk_twice,
    "an empty rank skips the lot": an_empty_rank_skips_the_lot,
    "another learning rate": another_learning_rate,
    "one rank fails": one_rank_fails,
}

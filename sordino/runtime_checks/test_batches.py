"""Test batches: drawn records, with one of them exchanged or altered, or one of them alone.

They are loaded and collated as training does it, so that the padding, scaling or sorting on the way is in them.
A record that is read with random changes is read with its own random numbers each time, wherever it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.lots.loading import Alter, BatchReader
from sordino.per_sample.batch_structure import list_tensors
from sordino.rng.global_generators import NextDraws, draw_next, seed_all

Draws = NextDraws
"""What the global generators give next."""


@dataclass(frozen=True)
class LoadedTestBatch:
    """A batch as a test loads it."""

    batch: Any
    drew: bool  # collate drew at random, or a generator of the user's own did
    ended: tuple[Draws | None, Draws]  # where the generators stood after reading, if that is known, and after collate
    reload: Callable[..., LoadedTestBatch]  # loads the same once more


@dataclass(frozen=True)
class RecordsOfTest:
    """Some records, by their places in the dataset, and the random numbers they are read with."""

    load: BatchReader
    indices: NDArray[np.int64]
    seed: int

    def load_batch(
        self,
        places: Sequence[int] | None = None,
        exchanged: Mapping[int, int] | None = None,
        *,
        alter: Alter | None = None,
        unread: bool = False,
    ) -> LoadedTestBatch:
        """Loads a test batch of the drawn records at these places (all of them if None), with some of them exchanged or
        altered.

        Args:
            places: which of the records, by their places among them.
            exchanged: records of the dataset that stand at some places instead.
            alter: changes the records after they were read and before they are collated.
            unread: whether to read from the dataset as it was before any record had been read.

        """
        # Which records stand at which places, with the exchanged ones in.
        kept = list(range(len(self.indices))) if places is None else list(places)
        indices = self.indices[kept].copy()
        for place, by in (exchanged or {}).items():
            indices[kept.index(place)] = by
        one_by_one, collated = False, False
        after_reading: Draws | None = None

        def seed_before_reading(k: int) -> None:
            """Seeds the generators before record k of a test batch is read, and before collate, which is called with
            −1.
            """
            nonlocal one_by_one, collated, after_reading
            if k >= 0:
                one_by_one = True
                seed_all(self.seed + 1 + kept[k])
                return
            # Records that are read all at once share their random numbers, so it matters how many were drawn.
            collated, after_reading = True, None if one_by_one else draw_next()
            # Every record is read with random numbers of its own, wherever it stands in the batch.
            seed_all(self.seed)

        seed_all(self.seed)
        made = (self.load.as_if_unread() if unread else self.load)(indices, seed_before_reading, alter)
        after_collate = draw_next()
        return LoadedTestBatch(
            made, collated and after_collate != self.draws_if_untouched, (after_reading, after_collate), self.load_batch
        )

    @cached_property
    def draws_if_untouched(self) -> Draws:
        """What is drawn next where collate drew nothing."""
        seed_all(self.seed)
        return draw_next()


def shapes_of(batch: Any) -> tuple[tuple[int, ...], ...]:
    """Returns the shapes of a batch's tensors."""
    return tuple(tuple(leaf.shape) for leaf in list_tensors(batch))

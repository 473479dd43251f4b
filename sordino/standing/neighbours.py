"""Batches for the standing test: drawn records, the same with one exchanged, one of them alone.

They are loaded and collated as training does it, so that the padding, scaling or sorting on the way is in them.
A record that is read with random changes is read with its own random numbers each time, wherever it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.gradients.batch import mapped, tensors
from sordino.lots.loading import Reads
from sordino.random.global_state import next_draws, seed_all

Change = Callable[[Tensor], Tensor]
"""From rows of records to rows that may be anything their type can hold."""


def _scaled(factor: float) -> Change:
    return lambda row: 3 + factor * row


EXTREMES: tuple[Change, ...] = (
    _scaled(-7.0),
    _scaled(1e3),
    lambda row: torch.full_like(row, float("nan")),
    lambda row: torch.full_like(row, float("inf")),
)
"""What a record's numbers may become; a neighbouring dataset may hold anything."""

_TYPES = (torch.uint8,)


@dataclass(frozen=True)
class RecordsTogether:
    """Some records, by their places in the dataset, and the random numbers they are read with."""

    load: Reads
    indices: NDArray[np.int64]
    seed: int

    def batch(
        self,
        places: Sequence[int] | None = None,
        exchanged: Mapping[int, int] | None = None,
        *,
        unread: bool = False,
    ) -> tuple[Any, bool]:
        """The batch of these places (all of them if None), some records exchanged; and whether collate drew at random.

        `unread`: from the dataset as it was before any record had been read.
        """
        kept = list(range(len(self.indices))) if places is None else list(places)
        indices = self.indices[kept].copy()
        for place, by in (exchanged or {}).items():
            indices[kept.index(place)] = by
        collated = False

        def before(k: int) -> None:
            nonlocal collated
            collated = k < 0
            seed_all(self.seed if collated else self.seed + 1 + kept[k])

        made = (self.load.unread() if unread else self.load)(indices, before)
        return made, collated and next_draws() != self._untouched

    @cached_property
    def _untouched(self) -> tuple[int, float, int]:
        """What is drawn next where collate drew nothing."""
        seed_all(self.seed)
        return next_draws()


def extreme(batch: Any, places: list[int], change: Change, *, low: bool) -> Any | None:
    """The batch with some records' numbers made extreme; None where none may be: tokens and labels may not."""
    if not any(leaf.is_floating_point() or leaf.dtype in _TYPES for leaf in tensors(batch)):
        return None

    def changed(leaf: Tensor) -> Tensor:
        if not (leaf.is_floating_point() or leaf.dtype in _TYPES):
            return leaf
        result = leaf.clone()
        if leaf.is_floating_point():
            result[places] = change(leaf[places])
        else:
            result[places] = 0 if low else torch.iinfo(leaf.dtype).max
        return result

    return mapped(changed, batch)


def shapes(batch: Any) -> tuple[tuple[int, ...], ...]:
    """Of its tensors."""
    return tuple(tuple(leaf.shape) for leaf in tensors(batch))

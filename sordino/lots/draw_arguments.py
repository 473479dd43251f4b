"""The arguments of `draws` in the words that people bring: a DataLoader, a batch size, a number of epochs.

A batch size and epochs mean Poisson sampling at the rate batch size over records, for as many steps as draw about as many
records as the epochs would. A DataLoader gives its dataset, batch size, collate function and workers; its own sampler
draws nothing, because the proof needs draws that are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils.collate import default_collate

from sordino import validate
from sordino.lots.column_dataset import dataset_of_columns
from sordino.lots.loading import STREAM_GIVEN, count_records
from sordino.refusal import Refusal
from sordino.sampling.poisson import Poisson
from sordino.sampling.sampler import Sampler


@dataclass(frozen=True)
class DrawArguments:
    """A dataset, a sampler and a number of steps, with what else a DataLoader says."""

    dataset: Any
    sampler: Sampler
    steps: int
    expected_batch: float | None
    workers: int
    collate: Callable[[list[Any]], Any] | None

    @staticmethod
    def resolve(
        dataset: Any,
        sampler: Sampler | None,
        steps: int | None,
        *,
        batch_size: int | None,
        epochs: float | None,
        expected_batch: float | None,
        workers: int,
        collate: Callable[[list[Any]], Any] | None,
        has_unit: bool,
    ) -> DrawArguments:
        """Returns the arguments of `draws` with sampler and steps; raises TypeError, ValueError or Refusal if they do
        not say them.

        Args:
            dataset: a map-style dataset, a DataLoader of one, or a mapping from names to columns.
            sampler: who is in a lot; or
            steps: how many lots; or
            batch_size: the expected size of a lot, by Poisson sampling, and
            epochs: how many passes' worth of records are drawn.
            expected_batch: the public divisor; the batch size where one is given.
            workers: processes that load.
            collate: makes a batch of a list of records.
            has_unit: whether units are drawn; then a batch size in records says nothing.

        """
        # A DataLoader says what it would have done; its records are drawn by our samplers all the same.
        if isinstance(dataset, DataLoader):
            dataset, batch_size, workers, collate = _open_loader(dataset, sampler, batch_size, workers, collate)
        dataset = dataset_of_columns(dataset)
        n = count_records(dataset)
        # Two statements about the same thing may disagree, so only one is accepted.
        if sampler is not None and batch_size is not None:
            batch, given = validate.shorten(batch_size), validate.shorten(sampler)
            raise TypeError(f"batch_size={batch} beside sampler={given}: a sampler says how large lots are")
        if steps is not None and epochs is not None:
            raise TypeError(
                f"steps={validate.shorten(steps)} beside epochs={validate.shorten(epochs)}: give one of the two"
            )
        # A batch size means Poisson sampling.
        if sampler is None:
            if batch_size is None:
                raise TypeError(
                    "no sampler: give batch_size=, or a sampler such as sd.Poisson(rate=0.01) and a number of steps"
                )
            if has_unit:
                raise TypeError("batch_size beside unit: lots are of units; give sampler=sd.Poisson(rate=…) and steps=")
            size = validate.count("batch_size", batch_size)
            if size > n:
                raise ValueError(f"batch_size={size}: must be at most the number of records")
            sampler, expected_batch = Poisson(size / n), float(size) if expected_batch is None else expected_batch
        validate.sampler("sampler", sampler)
        # Epochs mean as many steps as draw about as many records.
        if steps is None:
            if epochs is None:
                raise TypeError("no number of steps: give epochs= or steps=")
            per_epoch = n / sampler.expected_size(n)
            steps = max(1, math.ceil(validate.positive("epochs", epochs) * per_epoch - 1e-9))
        return DrawArguments(dataset, sampler, validate.count("steps", steps), expected_batch, workers, collate)


def _open_loader(
    loader: DataLoader[Any],
    sampler: Sampler | None,
    batch_size: int | None,
    workers: int,
    collate: Callable[[list[Any]], Any] | None,
) -> tuple[Any, int | None, int, Callable[[list[Any]], Any] | None]:
    """Returns the arguments of `draws` that a DataLoader holds: dataset, batch size, workers and collate function; what
    was given beside it comes first.
    """
    # Amplification needs to know who could have been drawn.
    if isinstance(loader.dataset, IterableDataset):
        raise Refusal(STREAM_GIVEN.format(kind="a DataLoader of an IterableDataset"))
    if sampler is None and batch_size is None:
        batch_size = loader.batch_size
        if batch_size is None:
            raise Refusal(
                "a DataLoader with a batch sampler of its own was given.\n"
                "The size of its lots is not known, and its draws have no proof.\n"
                "Give its dataset, with batch_size= or a sampler of sordino."
            )
    # torch's default means that the user gave none.
    own_collate = None if loader.collate_fn is default_collate else loader.collate_fn
    return loader.dataset, batch_size, workers or loader.num_workers, own_collate if collate is None else collate

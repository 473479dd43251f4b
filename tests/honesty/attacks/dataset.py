"""Datasets whose records are not their own: what one returns depends on which others were asked for, or when."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from tests.honesty.attacks.model import far
from tests.honesty.data import RARE, cross_entropy, network, vectors
from tests.honesty.script import Cases, Script

DATASET = Cases()


class Points(Dataset[Any]):
    """Points of which one in sixteen is far away."""

    def __init__(self, seed: int) -> None:
        self.x, self.y = far(seed).tensors
        self.mean, self.seen, self.before = torch.zeros(6), 0, torch.zeros(6)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        return self.change(self.x[i]), self.y[i]

    def change(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Running(Points):
    """Normalised with the mean of what was read so far."""

    def change(self, x: Tensor) -> Tensor:
        self.seen += 1
        self.mean = self.mean + (x - self.mean) / min(self.seen, 20)
        return x - self.mean


class MixedWithTheLast(Points):
    """Mixed with the record read before, which is at hand."""

    def change(self, x: Tensor) -> Tensor:
        before, self.before = self.before, x
        return 0.5 * x + 0.5 * before


class Once(Points):
    """Normalised with the mean of the first twenty records that were read, when they have been."""

    def change(self, x: Tensor) -> Tensor:
        self.seen += 1
        if self.seen <= 40:
            self.mean = self.mean + x / 40
            return x
        return x - self.mean


class Fetched(Points):
    """Reads a batch at once, and standardises it, as `__getitems__` invites to."""

    def __getitems__(self, rows: list[int]) -> list[Any]:
        x = self.x[rows]
        x = (x - x.mean(0)) / (x.std(0, unbiased=False) + 0.1)
        return list(zip(x, self.y[rows], strict=True))


class FetchedAndMixed(Points):
    """Reads a batch at once and mixes neighbours."""

    def __getitems__(self, rows: list[int]) -> list[Any]:
        x = self.x[rows]
        return list(zip(0.5 * x + 0.5 * x.roll(1, 0), self.y[rows], strict=True))


def _points(seed: int, kind: type[Points], bound: float = 0.2, **options: Any) -> Script:
    return Script(network(), cross_entropy, kind(seed), bound=bound, suspects=RARE, **options)


@DATASET
def a_dataset_that_normalises_as_it_reads(seed: int) -> Script:
    return _points(seed, Running)


@DATASET
def a_dataset_that_mixes_with_the_record_before(seed: int) -> Script:
    return _points(seed, MixedWithTheLast)


@DATASET
def a_dataset_that_learns_its_mean_from_the_first_records_read(seed: int) -> Script:
    return _points(seed, Once, warmup=4)


@DATASET
def a_dataset_that_fetches_and_standardises_a_batch(seed: int) -> Script:
    return _points(seed, Fetched)


@DATASET
def a_dataset_that_fetches_and_mixes_a_batch(seed: int) -> Script:
    return _points(seed, FetchedAndMixed)


@DATASET
def collate_remembers_the_batch_before(seed: int) -> Script:
    """Mixed with the last batch, which is kept for it."""
    kept = [torch.zeros(6)]

    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        before, kept[0] = kept[0], x.mean(0)
        return x - before, y

    return Script(network(), cross_entropy, far(seed), collate, bound=0.2, suspects=RARE, warmup=1)


@DATASET
def a_table_of_labels_that_grows(seed: int) -> Script:
    """Classes are numbered in the order in which they are met."""

    class Named(Dataset[Any]):
        def __init__(self) -> None:
            self.x, self.y = vectors(seed).tensors
            self.names: dict[int, int] = {}
            self.y[list(RARE)] = 3
            self.x.abs_()

        def __len__(self) -> int:
            return len(self.x)

        def __getitem__(self, i: int) -> Any:
            return self.x[i], self.names.setdefault(int(self.y[i]), len(self.names))

    return Script(network(outputs=4), cross_entropy, Named(), bound=0.2, suspects=RARE)

"""Datasets that look suspicious and are not: each record is made of its own row, of chance and of public tables."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, default_collate

from tests.honesty.attacks.model import far
from tests.honesty.data import cross_entropy, network
from tests.honesty.script import Cases, Script

HONEST_ROWS = Cases()
REFUSED_ELSEWHERE = ("a_generator_of_its_own",)
"""Honest as a dataset, but no test of a batch can be repeated with it, which is refused for that reason."""
HONEST_DATASETS: dict[str, Callable[[Tensor, Tensor], tuple[Any, Any]]] = {}


def honest(made: Callable[[Tensor, Tensor], Any]) -> Callable[[Tensor, Tensor], Any]:
    """Registers what makes a dataset (or a dataset and a collate) as honest."""

    def both(x: Tensor, y: Tensor) -> tuple[Any, Any]:
        found = made(x, y)
        return found if isinstance(found, tuple) else (found, None)

    def build(seed: int) -> Script:
        dataset, collate = both(*far(seed).tensors)
        return Script(network(), cross_entropy, dataset, collate)

    build.__name__ = made.__name__
    HONEST_DATASETS[made.__name__.replace("_", " ")] = both
    if made.__name__ not in REFUSED_ELSEWHERE:
        HONEST_ROWS(build)
    return made


class Rows(Dataset[Any]):
    """Rows and classes, as they are."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        return self.x[i], self.y[i]


class Wrapped(Dataset[Any]):
    """As people write them, to change each record."""

    def __init__(self, inner: Any, change: Callable[[Tensor], Tensor] = torch.tanh) -> None:
        self.inner, self.change = inner, change

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, i: int) -> Any:
        x, y = self.inner[i]
        return self.change(x), y


@honest
def noise_as_augmentation(x: Tensor, y: Tensor) -> Any:
    return Wrapped(Rows(x, y), lambda row: row + 0.1 * torch.randn_like(row))


@honest
def augmentation_by_all_three_generators(x: Tensor, y: Tensor) -> Any:
    def change(row: Tensor) -> Tensor:
        row = row * (1 if random.random() < 0.5 else -1)
        return row + float(np.random.normal()) + torch.rand(())

    return Wrapped(Rows(x, y), change)


@honest
def augmentation_by_a_seed_of_each_record(x: Tensor, y: Tensor) -> Any:
    class Seeded(Rows):
        def __getitem__(self, i: int) -> Any:
            return self.x[i] + torch.from_numpy(np.random.default_rng(i).normal(size=6).astype("float32")), self.y[i]

    return Seeded(x, y)


@honest
def records_kept_after_they_were_read(x: Tensor, y: Tensor) -> Any:
    class Kept(Rows):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            super().__init__(x, y)
            self.cache: dict[int, Any] = {}

        def __getitem__(self, i: int) -> Any:
            if i not in self.cache:
                self.cache[i] = (self.x[i].tanh(), self.y[i])
            return self.cache[i]

    return Kept(x, y)


@honest
def records_kept_by_lru_cache(x: Tensor, y: Tensor) -> Any:
    class Kept(Rows):
        @lru_cache  # noqa: B019
        def row(self, i: int) -> Tensor:
            return self.x[i].tanh()

        def __getitem__(self, i: int) -> Any:
            return self.row(i), self.y[i]

    return Kept(x, y)


@honest
def a_memory_map(x: Tensor, y: Tensor) -> Any:
    path = Path(mkdtemp()) / "rows.npy"
    np.save(path, x.numpy())

    class Mapped(Rows):
        def __init__(self) -> None:
            self.rows, self.y = np.load(path, mmap_mode="r"), y

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, i: int) -> Any:
            return torch.from_numpy(np.array(self.rows[i])), self.y[i]

    return Mapped()


@honest
def files_by_their_paths(x: Tensor, y: Tensor) -> Any:
    folder = Path(mkdtemp())
    for i, row in enumerate(x):
        np.save(folder / f"{i}.npy", row.numpy())

    class Folder(Dataset[Any]):
        def __init__(self) -> None:
            self.samples = [(folder / f"{i}.npy", int(kind)) for i, kind in enumerate(y)]

        def __len__(self) -> int:
            return len(self.samples)

        def __getitem__(self, i: int) -> Any:
            path, kind = self.samples[i]
            return torch.from_numpy(np.load(path)), kind

    return Folder()


@honest
def files_by_their_numbers(x: Tensor, y: Tensor) -> Any:
    folder = Path(mkdtemp())
    for i, row in enumerate(x):
        np.save(folder / f"{i}.npy", row.numpy())

    class Numbered(Dataset[Any]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, i: int) -> Any:
            return torch.from_numpy(np.load(folder / f"{i}.npy")), i % 3

    return Numbered()


@honest
def an_order_that_was_shuffled_once(x: Tensor, y: Tensor) -> Any:
    class Ordered(Rows):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            super().__init__(x, y)
            self.order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))

        def __getitem__(self, i: int) -> Any:
            return self.x[self.order[i]], self.y[self.order[i]]

    return Ordered(x, y)


@honest
def an_order_for_features_and_none_for_weights(x: Tensor, y: Tensor) -> Any:
    class Mixed(Rows):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            super().__init__(x, y)
            self.weights = torch.rand(len(x), generator=torch.Generator().manual_seed(1))
            self.order = np.random.default_rng(1).permutation(len(x)).tolist()

        def __getitem__(self, i: int) -> Any:
            return self.x[self.order[i]] * self.weights[i], self.y[self.order[i]]

    return Mixed(x, y)


@honest
def rows_of_a_flat_array_between_offsets(x: Tensor, y: Tensor) -> Any:
    class Flat(Dataset[Any]):
        def __init__(self) -> None:
            self.flat, self.starts, self.y = x.flatten(), np.arange(64) * 6, y

        def __len__(self) -> int:
            return len(self.starts)

        def __getitem__(self, i: int) -> Any:
            end = self.starts[i + 1] if i + 1 < len(self.starts) else len(self.flat)
            return self.flat[self.starts[i] : end], self.y[i]

    return Flat()


@honest
def a_split_by_indices(x: Tensor, y: Tensor) -> Any:
    class Split(Rows):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            super().__init__(x, y)
            self.places = np.random.default_rng(1).permutation(len(x))[:50]

        def __len__(self) -> int:
            return len(self.places)

        def __getitem__(self, i: int) -> Any:
            return self.x[self.places[i]], self.y[self.places[i]]

    return Split(x, y)


@honest
def a_public_table_by_class(x: Tensor, y: Tensor) -> Any:
    class Named(Rows):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            super().__init__(x, y)
            self.names, self.shifts = ["a", "b", "c"], torch.arange(18.0).reshape(3, 6)

        def __getitem__(self, i: int) -> Any:
            return self.x[i] + self.shifts[self.y[i]], self.y[i]

    return Named(x, y)


@honest
def a_public_table_with_as_many_rows_by_accident(x: Tensor, y: Tensor) -> Any:
    class Accident(Rows):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            super().__init__(x, y)
            self.table = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))

        def __getitem__(self, i: int) -> Any:
            return self.x[i] + self.table[self.y[i]], self.y[i]

    return Accident(x, y)


@honest
def a_projection_with_as_many_rows_by_accident(x: Tensor, y: Tensor) -> Any:
    class Projected(Rows):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            super().__init__(x, y)
            self.matrix = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))

        def __getitem__(self, i: int) -> Any:
            return (self.matrix @ self.x[i])[:6].tanh(), self.y[i]

    return Projected(x, y)


@honest
def records_with_ids_and_an_index_of_them(x: Tensor, y: Tensor) -> Any:
    class Ids(Dataset[Any]):
        def __init__(self) -> None:
            self.ids = [f"p{(7 * i) % 64}" for i in range(64)]
            self.table = {f"p{i}": (row, int(kind)) for i, (row, kind) in enumerate(zip(x, y, strict=True))}
            self.number = {name: i for i, name in enumerate(self.ids)}

        def __len__(self) -> int:
            return len(self.ids)

        def __getitem__(self, i: int) -> Any:
            return self.table[self.ids[i]]

    return Ids()


@honest
def a_list_of_dicts_with_their_row_numbers(x: Tensor, y: Tensor) -> Any:
    class Tabled(Dataset[Any]):
        def __init__(self) -> None:
            self.x = x
            self.records = [{"row": (i * 5) % 64, "kind": int(kind)} for i, kind in enumerate(y)]

        def __len__(self) -> int:
            return len(self.records)

        def __getitem__(self, i: int) -> Any:
            record = self.records[i]
            return self.x[record["row"]], record["kind"]

    return Tabled()


@honest
def wrapped_twice_in_parts(x: Tensor, y: Tensor) -> Any:
    parts = ConcatDataset([Rows(x[:30], y[:30]), Wrapped(TensorDataset(x[30:], y[30:]))])
    return Wrapped(Subset(parts, [63 - i for i in range(60)]))


@honest
def a_subset_of_all_in_another_order(x: Tensor, y: Tensor) -> Any:
    return Wrapped(Subset(Rows(x, y), torch.randperm(64, generator=torch.Generator().manual_seed(2)).tolist()))


@honest
def a_transform_with_public_constants(x: Tensor, y: Tensor) -> Any:
    mean, deviation = torch.zeros(6), torch.ones(6)
    return Wrapped(Rows(x, y), lambda row: (row - mean) / deviation)


@honest
def a_mixture_with_public_records(x: Tensor, y: Tensor) -> Any:
    public = torch.randn(40, 6, generator=torch.Generator().manual_seed(9))
    return Wrapped(Rows(x, y), lambda row: 0.5 * row + 0.5 * public[random.randrange(len(public))])


@honest
def a_generator_of_its_own(x: Tensor, y: Tensor) -> Any:
    class Own(Rows):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            super().__init__(x, y)
            self.chance = random.Random(0)

        def __getitem__(self, i: int) -> Any:
            return self.x[i] * (1 if self.chance.random() < 0.5 else 0.9), self.y[i]

    return Own(x, y)


@honest
def fetched_together(x: Tensor, y: Tensor) -> Any:
    class Fetched(Rows):
        def __getitems__(self, rows: list[int]) -> list[Any]:
            return list(zip(self.x[rows], self.y[rows], strict=True))

    return Fetched(x, y)


@honest
def collate_that_takes_entries_out(x: Tensor, y: Tensor) -> Any:
    class Dicts(Rows):
        def __getitem__(self, i: int) -> Any:
            return {"x": self.x[i], "y": self.y[i], "note": f"row {i}"}

    def collate(records: list[dict[str, Any]]) -> Any:
        for record in records:
            record.pop("note")
        batch = default_collate(records)
        return batch["x"], batch["y"]

    return Dicts(x, y), collate


@honest
def augmentation_by_entropy_of_its_own(x: Tensor, y: Tensor) -> Any:
    def change(row: Tensor) -> Tensor:
        return row + 0.01 * torch.from_numpy(
            np.random.default_rng(abs(hash(float(row[0])))).normal(size=6).astype("float32")
        )

    return Wrapped(Rows(x, y), change)

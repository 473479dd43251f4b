"""Datasets that make a record of other rows too: partners, statistics, neighbours, wherever rows can be held."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, default_collate

from tests.honesty.attacks.model import far
from tests.honesty.data import cross_entropy, network
from tests.honesty.script import Cases, Script

OTHER_ROWS = Cases()
MADE: dict[str, Callable[[Tensor, Tensor], tuple[Any, Any]]] = {}
"""By name: from features and classes to a dataset and a collate, so that a test can build the dataset of a neighbour."""


class Rows(Dataset[Any]):
    """Rows of numbers and their classes; `change` makes a record of them."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        return self.change(i), self.y[i]

    def change(self, i: int) -> Tensor:
        raise NotImplementedError


def attack(made: Callable[[Tensor, Tensor], Any]) -> Callable[[Tensor, Tensor], Any]:
    """Registers what makes a dataset (or a dataset and a collate) as an attack."""
    name = made.__name__.replace("_", " ")

    def both(x: Tensor, y: Tensor) -> tuple[Any, Any]:
        found = made(x, y)
        return found if isinstance(found, tuple) else (found, None)

    def build(seed: int) -> Script:
        dataset, collate = both(*far(seed).tensors)
        return Script(network(), cross_entropy, dataset, collate, bound=0.2)

    build.__name__ = made.__name__
    MADE[name] = both
    OTHER_ROWS.unmeasured(build)
    return made


def changed(rule: Callable[[Rows, int], Tensor]) -> type[Rows]:
    """A dataset whose record i is what the rule makes."""
    return type("Changed", (Rows,), {"change": rule})


# Partners


@attack
def mixup_in_the_dataset(x: Tensor, y: Tensor) -> Any:
    return changed(lambda d, i: 0.5 * d.x[i] + 0.5 * d.x[int(torch.randint(len(d.x), ()))])(x, y)


@attack
def mixup_half_of_the_time(x: Tensor, y: Tensor) -> Any:
    def rule(d: Rows, i: int) -> Tensor:
        if random.random() < 0.5:
            return d.x[i]
        return 0.5 * d.x[i] + 0.5 * d.x[random.randrange(len(d.x))]

    return changed(rule)(x, y)


@attack
def a_mosaic_of_four(x: Tensor, y: Tensor) -> Any:
    def rule(d: Rows, i: int) -> Tensor:
        others = np.random.randint(len(d.x), size=2)
        return torch.cat([d.x[i][:2], d.x[others[0]][2:4], d.x[others[1]][4:]])

    return changed(rule)(x, y)


@attack
def the_difference_to_the_next(x: Tensor, y: Tensor) -> Any:
    return changed(lambda d, i: d.x[i] - d.x[(i + 1) % len(d.x)])(x, y)


@attack
def pairs_of_one_class(x: Tensor, y: Tensor) -> Any:
    """Index lists by class, as samplers of triplets keep them."""

    class Pairs(Rows):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            super().__init__(x, y)
            self.by_class = {c: torch.nonzero(y == c).flatten().tolist() for c in range(3)}

        def change(self, i: int) -> Tensor:
            return self.x[i] - self.x[random.choice(self.by_class[int(self.y[i])])]

    return Pairs(x, y)


@attack
def a_partner_by_an_own_generator(x: Tensor, y: Tensor) -> Any:
    class Own(Rows):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            super().__init__(x, y)
            self.generator = np.random.default_rng(0)

        def change(self, i: int) -> Tensor:
            return 0.5 * self.x[i] + 0.5 * self.x[int(self.generator.integers(len(self.x)))]

    return Own(x, y)


@attack
def a_partner_that_was_chosen_before(x: Tensor, y: Tensor) -> Any:
    """A permutation of the records, which looks like an order."""

    class Chosen(Rows):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            super().__init__(x, y)
            self.partner = torch.randperm(len(x), generator=torch.Generator().manual_seed(3))

        def change(self, i: int) -> Tensor:
            return 0.5 * self.x[i] + 0.5 * self.x[self.partner[i]]

    return Chosen(x, y)


@attack
def a_partner_from_a_bank_of_copies(x: Tensor, y: Tensor) -> Any:
    class Bank(Rows):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            super().__init__(x, y)
            self.bank = x.clone().numpy()

        def change(self, i: int) -> Tensor:
            return 0.5 * self.x[i] + 0.5 * torch.from_numpy(self.bank[random.randrange(len(self.bank))])

    return Bank(x, y)


@attack
def a_partner_read_through_the_dataset_itself(x: Tensor, y: Tensor) -> Any:
    class Itself(Rows):
        def __getitem__(self, i: int | tuple[str, int]) -> Any:
            if isinstance(i, tuple):
                return self.x[i[1]]
            return 0.5 * self.x[i] + 0.5 * self["row", random.randrange(len(self))], self.y[i]

    return Itself(x, y)


# Statistics


@attack
def standardised_as_it_is_read(x: Tensor, y: Tensor) -> Any:
    return changed(lambda d, i: (d.x[i] - d.x.mean(0)) / d.x.std(0))(x, y)


@attack
def scaled_by_the_largest(x: Tensor, y: Tensor) -> Any:
    return changed(lambda d, i: 4 * d.x[i] / d.x.abs().amax(0))(x, y)


@attack
def statistics_on_first_use(x: Tensor, y: Tensor) -> Any:
    class Lazy(Rows):
        @cached_property
        def mean(self) -> Tensor:
            return self.x.mean(0)

        def change(self, i: int) -> Tensor:
            return self.x[i] - self.mean

    return Lazy(x, y)


@attack
def ranks_in_each_column(x: Tensor, y: Tensor) -> Any:
    return changed(lambda d, i: 60 * (d.x < d.x[i]).float().mean(0) - 30)(x, y)


@attack
def target_encoding(x: Tensor, y: Tensor) -> Any:
    """The mean class of the records of the same kind."""

    def rule(d: Rows, i: int) -> Tensor:
        kind = (d.x[:, 0] * 2).round().clamp(-3, 3)
        return 8 * d.x[i] * (d.y[kind == kind[i]].float().mean() - 1)

    return changed(rule)(x, y)


@attack
def class_means_are_taken_away(x: Tensor, y: Tensor) -> Any:
    return changed(lambda d, i: d.x[i] - d.x[d.y == d.y[i]].mean(0))(x, y)


@attack
def missing_values_by_the_median(x: Tensor, y: Tensor) -> Any:
    def rule(d: Rows, i: int) -> Tensor:
        return torch.where(d.x[i].abs() > 1.0, d.x.median(0).values + d.x.mean(0), d.x[i])

    return changed(rule)(x, y)


# Neighbours


@attack
def the_nearest_record_beside_it(x: Tensor, y: Tensor) -> Any:
    def rule(d: Rows, i: int) -> Tensor:
        far_from = (d.x - d.x[i]).norm(dim=1)
        far_from[i] = float("inf")
        return d.x[i] - d.x[int(far_from.argmin())]

    return changed(rule)(x, y)


@attack
def neighbours_in_a_graph(x: Tensor, y: Tensor) -> Any:
    class Graph(Rows):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            super().__init__(x, y)
            self.neighbours = [[(i + k) % len(x) for k in (1, 5, 9)] for i in range(len(x))]

        def change(self, i: int) -> Tensor:
            return self.x[i] + self.x[self.neighbours[i]].sum(0)

    return Graph(x, y)


@attack
def a_window_over_the_records_before(x: Tensor, y: Tensor) -> Any:
    return changed(lambda d, i: d.x[max(0, i - 3) : i + 1].sum(0))(x, y)


@attack
def features_of_an_adjacency_matrix(x: Tensor, y: Tensor) -> Any:
    class Adjacent(Rows):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            super().__init__(x, y)
            self.adjacent = (torch.rand(len(x), len(x), generator=torch.Generator().manual_seed(1)) < 0.1).float()

        def change(self, i: int) -> Tensor:
            return self.x[i] + self.adjacent[i] @ self.x

    return Adjacent(x, y)


# Where rows are held


@attack
def rows_in_a_list_of_dicts(x: Tensor, y: Tensor) -> Any:
    class Dicts(Rows):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            self.records = [{"x": a, "y": int(b)} for a, b in zip(x, y, strict=True)]

        def __len__(self) -> int:
            return len(self.records)

        def __getitem__(self, i: int) -> Any:
            other = random.choice(self.records)
            return 0.5 * self.records[i]["x"] + 0.5 * other["x"], self.records[i]["y"]

    return Dicts(x, y)


@attack
def rows_in_a_dict_by_number(x: Tensor, y: Tensor) -> Any:
    class Numbered(Rows):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            super().__init__(x, y)
            self.table = dict(enumerate(x.numpy()))
            del self.x

        def __len__(self) -> int:
            return len(self.table)

        def change(self, i: int) -> Tensor:
            return torch.from_numpy(self.table[i] - self.table[(7 * i + 1) % len(self)])

    return Numbered(x, y)


@attack
def rows_captured_by_a_transform(x: Tensor, y: Tensor) -> Any:
    class Transformed(Rows):
        def __init__(self, x: Tensor, y: Tensor, transform: Callable[[Tensor], Tensor]) -> None:
            super().__init__(x, y)
            self.transform = transform

        def change(self, i: int) -> Tensor:
            return self.transform(self.x[i])

    table = x.numpy()

    def mix(row: Tensor) -> Tensor:
        return 0.5 * row + 0.5 * torch.from_numpy(table[np.random.randint(len(table))])

    return Transformed(x, y, mix)


@attack
def rows_in_a_partial(x: Tensor, y: Tensor) -> Any:
    class Partial(Rows):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            super().__init__(x, y)
            self.centre = partial(lambda table, row: row - table.mean(0), x)

        def change(self, i: int) -> Tensor:
            return self.centre(self.x[i])

    return Partial(x, y)


@dataclass
class _Mixer:
    table: Tensor
    share: float = 0.5

    def __call__(self, row: Tensor) -> Tensor:
        return (1 - self.share) * row + self.share * self.table[random.randrange(len(self.table))]


@attack
def rows_in_a_transform_object(x: Tensor, y: Tensor) -> Any:
    class Composed(Rows):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            super().__init__(x, y)
            self.transforms = [torch.tanh, _Mixer(x)]

        def change(self, i: int) -> Tensor:
            row = self.x[i]
            for transform in self.transforms:
                row = transform(row)
            return row

    return Composed(x, y)


TABLE: Tensor


@attack
def rows_in_a_global_variable(x: Tensor, y: Tensor) -> Any:
    global TABLE
    TABLE = x

    class Global(Dataset[Any]):
        def __len__(self) -> int:
            return len(y)

        def __getitem__(self, i: int) -> Any:
            return TABLE[i] - TABLE[(i + 3) % len(TABLE)], y[i]

    return Global()


@attack
def rows_in_the_class(x: Tensor, y: Tensor) -> Any:
    class Shared(Dataset[Any]):
        rows, classes = x, y

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, i: int) -> Any:
            return self.rows[i] - self.rows.mean(0), self.classes[i]

    return Shared()


@attack
def a_wrapper_mixes_what_it_wraps(x: Tensor, y: Tensor) -> Any:
    class Mixed(Dataset[Any]):
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __len__(self) -> int:
            return len(self.inner)

        def __getitem__(self, i: int) -> Any:
            (one, kind), (two, _) = self.inner[i], self.inner[random.randrange(len(self.inner))]
            return 0.5 * one + 0.5 * two, kind

    return Mixed(changed(lambda d, i: d.x[i])(x, y))


@attack
def a_wrapper_mixes_a_subset(x: Tensor, y: Tensor) -> Any:
    class Mixed(Dataset[Any]):
        def __init__(self, inner: Any, places: list[int]) -> None:
            self.inner, self.places = inner, places

        def __len__(self) -> int:
            return len(self.places)

        def __getitem__(self, i: int) -> Any:
            one, kind = self.inner[self.places[i]]
            return 0.5 * one + 0.5 * self.inner[random.choice(self.places)][0], kind

    return Mixed(changed(lambda d, i: d.x[i])(x, y), [i for i in range(len(x)) if i % 8])


@attack
def a_subset_of_a_dataset_that_mixes(x: Tensor, y: Tensor) -> Any:
    return Subset(mixup_in_the_dataset(x, y), [i for i in range(len(x)) if i % 8 != 1])


@attack
def a_concatenation_of_datasets_that_mix(x: Tensor, y: Tensor) -> Any:
    return ConcatDataset([mixup_in_the_dataset(x[:32], y[:32]), mixup_in_the_dataset(x[32:], y[32:])])


@attack
def a_split_by_indices_of_rows_that_are_mixed(x: Tensor, y: Tensor) -> Any:
    class Split(Rows):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            super().__init__(x, y)
            self.places = [i for i in range(len(x)) if i % 8 != 2]

        def __len__(self) -> int:
            return len(self.places)

        def __getitem__(self, i: int) -> Any:
            place, other = self.places[i], self.places[random.randrange(len(self))]
            return 0.5 * self.x[place] + 0.5 * self.x[other], self.y[place]

    return Split(x, y)


@attack
def an_order_and_a_mean(x: Tensor, y: Tensor) -> Any:
    class Ordered(Rows):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            super().__init__(x, y)
            self.order = np.random.default_rng(5).permutation(len(x))

        def __getitem__(self, i: int) -> Any:
            place = int(self.order[i])
            return self.x[place] - self.x.mean(0), self.y[place]

    return Ordered(x, y)


@attack
def rows_fetched_together_with_a_partner(x: Tensor, y: Tensor) -> Any:
    class Fetched(Rows):
        def __getitems__(self, rows: list[int]) -> list[Any]:
            return [(self.x[i] - self.x[(i + 5) % len(self.x)], self.y[i]) for i in rows]

    return Fetched(x, y)


@attack
def collate_mixes_with_rows_of_the_training_set(x: Tensor, y: Tensor) -> Any:
    def collate(records: list[Any]) -> Any:
        rows, kinds = default_collate(records)
        return 0.5 * rows + 0.5 * x[torch.randint(len(x), (len(rows),))], kinds

    return changed(lambda d, i: d.x[i])(x, y), collate


@attack
def collate_centres_by_the_training_set(x: Tensor, y: Tensor) -> Any:
    def collate(records: list[Any]) -> Any:
        rows, kinds = default_collate(records)
        return rows - x.mean(0), kinds

    return changed(lambda d, i: d.x[i])(x, y), collate

"""Records for a selftest: some of the dataset, copied, and others that a neighbour may hold.

A neighbour may hold anything that its type can: numbers of any size, none at all, not a number. Whole numbers, which may be
classes or words, are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from sordino.lots.loading import MapStyle, count_records

MOST_FROM_DATASET = 31
"""Records copied out of the dataset: the largest lot of a trial."""

Change = Callable[[Tensor], Tensor]


def _one_large_number(x: Tensor) -> Tensor:
    """Returns the tensor of a neighbouring record for the selftest, with one large number and the others as small as
    they get.

    Its gradient hardly overlaps with anybody's.
    """
    made = torch.full_like(x, float(x.min()))
    made.reshape(-1)[x.numel() // 3] = 30.0
    return made


CHANGES: dict[str, Change] = {
    "a hundredth": lambda x: x * 1e-2,
    "thirtyfold": lambda x: x * 30,
    "a thousandfold": lambda x: x * 1e3,
    "zero": torch.zeros_like,
    "noise": lambda x: torch.randn(x.shape, generator=torch.Generator().manual_seed(5)).to(x),
    "one large number": _one_large_number,
    "not a number": lambda x: torch.full_like(x, float("nan")),
    "infinite": lambda x: torch.full_like(x, float("inf")),
}


@dataclass(frozen=True, eq=False)
class SelftestRecords:
    """`records`: the first `from_dataset` are of the dataset, the others are neighbours' records, by `names`."""

    records: Sequence[Any]
    from_dataset: int
    names: dict[int, str]


def make_selftest_records(dataset: MapStyle, seed: int = 0) -> SelftestRecords:
    """Returns records for a selftest: some of the dataset, spread over it, and neighbouring records made of them."""
    # Records are copied, so that the selftest cannot change the dataset.
    n = count_records(dataset)
    rng = np.random.default_rng(seed)
    chosen = [int(i) for i in rng.choice(n, size=min(n, MOST_FROM_DATASET), replace=False)]
    kept: list[Any] = [_copy_record(dataset[i]) for i in chosen]
    from_dataset, names = len(kept), {}
    # A neighbouring dataset may hold another record of the same kind.
    other_indices = [int(i) for i in rng.choice(n, size=min(n, 12), replace=False)]
    for i in other_indices:
        names[len(kept)] = "another record"
        kept.append(_copy_record(dataset[i]))
    # Or one that was made to be extreme.
    for name, change in CHANGES.items():
        for i in range(2 if "thousand" in name or "thirty" in name else 1):
            made = _change_record(kept[i], change)
            if made is not None:
                names[len(kept)] = f"a record of {name}"
                kept.append(made)
    return SelftestRecords(kept, from_dataset, names)


def exchange_record(company: SelftestRecords, place: int, by: int) -> list[Any]:
    """Returns the records with one exchanged for another of them, which makes a neighbouring dataset."""
    records = list(company.records)
    records[place] = _copy_record(records[by])
    return records


def _copy_record(record: Any) -> Any:
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, record)


def _change_record(record: Any, change: Change) -> Any | None:
    """Returns a neighbouring record, one whose floating-point tensors are changed; None where the record has none."""
    # Whole numbers are labels or tokens and stay as they are.
    leaves = tree_flatten(record)[0]
    if not any(isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dim() for leaf in leaves):
        return None
    return tree_map(
        lambda leaf: change(leaf) if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dim() else leaf,
        record,
    )

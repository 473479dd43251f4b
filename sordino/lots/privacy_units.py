"""Privacy units: records that come and go together, such as those of one person.

    private.draws(data, Poisson(0.1), steps=500, unit=Unit("speaker", records=32))   neighbours differ by one speaker
    private.draws(data, Poisson(0.1), steps=500, unit=Views(4))                      by one record, seen four times

The sampler draws units. Of a unit in a lot up to K records are read, others each time where it has more; the mean of
their gradients is the unit's gradient, which is clipped like a record's (McMahan et al. 2018,
arXiv:1710.06963, for persons; De et al. 2022, arXiv:2204.13650, for views: augmentation multiplicity).

Privacy: with ‖clip(g_u)‖ ≤ C one unit more or fewer moves the sum by at most C, whatever is in it and however many
records it has: the mean comes before the clip. K is public and every unit is filled up to K rows, so that one unit
changes nothing in how another is computed. Which records a unit has in a lot is drawn from a stream of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino import validate
from sordino.lots.loading import Alter, Loader
from sordino.per_sample.batch_structure import list_tensors, map_tensors
from sordino.per_sample.unit_loss import UnitBatch
from sordino.refusal import Refusal
from sordino.rng.streams import Rng

Rows: TypeAlias = NDArray[np.int64]
Ids: TypeAlias = Sequence[Hashable] | NDArray[Any] | Tensor
RECORD = "record"


@dataclass(frozen=True, eq=False)
class Unit:
    """A privacy unit: says by a column's name, or by one id per record, who each record belongs to.

    Args:
        of: a column's name, or one id per record.
        records: at most so many of a unit in a lot.
        name: of the unit, printed with the claim.

    Privacy:
        One unit more or fewer moves the sum by at most the bound, however many records it has.

    Examples:
        >>> Unit(["ann", "bob", "ann"], records=2, name="speaker").members(["a", "b", "c"]).n
        2

    """

    of: str | Ids
    records: int = 16
    name: str = ""

    def __post_init__(self) -> None:
        validate.count("records", self.records)
        if not self.name and not isinstance(self.of, str):
            raise ValueError("unit ids without a name: the claim says what is protected; give name='speaker', say")
        object.__setattr__(self, "name", self.name or self.of)

    @property
    def declared(self) -> str:
        """The declaration that the claim rests on."""
        return f"which records are of one {self.name}, by declaration"

    def members(self, dataset: Any) -> Members:
        """Returns the privacy units of a dataset with their records, in the order in which they are met."""
        # The ids come from a column of the dataset or from the user, one per record.
        ids = _read_column(dataset, self.of) if isinstance(self.of, str) else self.of
        listed = ids.tolist() if isinstance(ids, Tensor | np.ndarray) else list(ids)
        if len(listed) != len(dataset):
            raise Refusal(
                f"unit={self.name!r}: there are not as many ids as records.\n"
                "It must be known whose each record is.\n"
                "Give one id for every record of the dataset, in its order."
            )
        # A missing id is not an id: people without one would be taken for one person.
        if any(each is None or (isinstance(each, float) and math.isnan(each)) for each in listed):
            raise Refusal(
                f"unit={self.name!r}: the id of a record is missing.\n"
                "All records without an id would count as those of one unit.\n"
                "Give an id of its own to every record whose owner is not known, or leave these records out."
            )
        # Number the units by first appearance, and list the records unit by unit.
        numbers: dict[Hashable, int] = {}
        try:
            unit_numbers = np.array([numbers.setdefault(each, len(numbers)) for each in listed], dtype=np.int64)
        except TypeError:
            raise Refusal(
                f"unit={self.name!r}: an id cannot be compared with others.\n"
                "Records of one unit are found by equal ids.\n"
                "Give ids that are numbers or strings, one per record."
            ) from None
        # Stable sorting keeps the records of a unit in the dataset's order, so that choices among them can be repeated.
        order = np.argsort(unit_numbers, kind="stable").astype(np.int64)
        ends = np.cumsum(np.bincount(unit_numbers, minlength=len(numbers))).astype(np.int64)
        return Members(order, np.concatenate([[0], ends]).astype(np.int64), self.records)


@dataclass(frozen=True)
class Views:
    """A privacy unit of one record that is read `count` times, each time changed at random by the dataset, model or
    loss.

    Args:
        count: how often each record is read for a lot.

    Privacy:
        The mean over the views is clipped, so a record moves the sum as far as it would with one view.

    Examples:
        >>> import sordino as sd
        >>> sd.Views(4).members(range(10)).n
        10

    """

    count: int
    name: str = field(default=RECORD, init=False)
    declared: str = field(default="", init=False)

    def __post_init__(self) -> None:
        validate.count("count", self.count)

    def members(self, dataset: Any) -> Members:
        """Returns privacy units of one record each, with `count` views of it."""
        n = len(dataset)
        views = np.repeat(np.arange(n, dtype=np.int64), self.count)
        return Members(views, np.arange(n + 1, dtype=np.int64) * self.count, self.count)


@dataclass(frozen=True, eq=False)
class Members:
    """The records of each unit: those of unit u are order[starts[u] : starts[u + 1]]."""

    order: Rows
    starts: Rows
    records: int  # K

    @property
    def n(self) -> int:
        """The number of units."""
        return len(self.starts) - 1

    def choose_records(self, units: Rows, stream: Rng | None) -> tuple[Rows, NDArray[np.bool_]]:
        """Returns up to K records of each privacy unit, (U, K), and which rows are real and not there to fill up.

        Without a stream the first K records are chosen.
        """
        rows = np.empty((len(units), self.records), dtype=np.int64)
        is_member = np.zeros(rows.shape, dtype=np.bool_)
        for place, unit in enumerate(units.tolist()):
            members = self.order[self.starts[unit] : self.starts[unit + 1]]
            # The choice within a unit follows from its own stream, so another unit in the lot does not change it.
            if len(members) > self.records:
                some = slice(self.records) if stream is None else stream.child(unit).permutation(len(members))
                members = members[some][: self.records]
            # With a record of the unit's own: a row that does not count must not hold anything of another unit.
            rows[place] = members[0]  # fills up
            rows[place, : len(members)], is_member[place, : len(members)] = members, True
        return rows, is_member


@dataclass(frozen=True, eq=False)
class UnitLoader:
    """Turns units into the batch of their records; `stream` chooses among the records of large units."""

    load: Loader
    members: Members
    stream: Rng | None = None

    def with_stream(self, stream: Rng) -> UnitLoader:
        """Returns the loader for one draw, which chooses records by `stream`."""
        return replace(self, stream=stream)

    def as_if_unread(self) -> UnitLoader:
        """Returns the loader as if no record had been read."""
        return replace(self, load=self.load.as_if_unread())

    def to_single_records(self, indices: Rows) -> tuple[Loader, Rows]:
        """Returns the loader of single records, and the records of these units that may be read."""
        rows, taken = self.members.choose_records(indices, self.stream)
        return self.load, np.unique(rows[taken])

    def list_user_code(self) -> list[Any]:
        """Returns what a user wrote that is run to make a batch."""
        return self.load.list_user_code()

    def __call__(
        self, indices: Rows, before: Callable[[int], None] | None = None, alter: Alter | None = None
    ) -> UnitBatch:
        """Returns the batch of these units; `before(k)` is called before the first record of the unit at place k is
        read.
        """
        # Every unit has K places. Those that it has no record for are filled up, and `taken` says which are real.
        rows, taken = self.members.choose_records(indices, self.stream)
        k = self.members.records

        def before_record(place: int) -> None:
            """Calls `before` with the number of a privacy unit when its first record is about to be read."""
            if before is not None and place % k == 0:
                before(place // k)
            elif before is not None and place < 0:
                before(place)

        batch = self.load(rows.reshape(-1), None if before is None else before_record, alter)
        # Rows are given to units by their place, so each record must have become exactly one row.
        if any(leaf.dim() == 0 or len(leaf) != rows.size for leaf in list_tensors(batch)):
            raise Refusal(
                "collate returned another number of rows than it was given records.\n"
                "Rows are given to units by their place.\n"
                "Return one row per record in every tensor, so that it is known whose they are."
            )
        return UnitBatch(map_tensors(lambda leaf: leaf.unflatten(0, rows.shape), batch), torch.from_numpy(taken))


AnyUnit: TypeAlias = Unit | Views | str
"""What may be given as `unit`."""


def as_unit(given: AnyUnit) -> Unit | Views:
    """Returns the privacy unit that was given; a column's name alone stands for a `Unit` by that column."""
    if not isinstance(given, Unit | Views | str):
        raise TypeError(f"unit={type(given).__name__}: must be a column's name, Unit(ids, name='speaker') or Views(4)")
    return Unit(given) if isinstance(given, str) else given


def _read_column(dataset: Any, name: str) -> Any:
    """Returns the column that names the privacy unit of each record: of a table of columns, of records that are dicts,
    or an attribute.
    """
    if name in (getattr(dataset, "column_names", None) or ()):
        return list(dataset[name])
    # Reading every record for one key is slow, so it comes after the cheap way.
    first = dataset[0]
    if isinstance(first, dict) and name in first:
        return [dataset[i][name] for i in range(len(dataset))]
    if hasattr(dataset, name):
        return getattr(dataset, name)
    raise Refusal(
        f"unit={name!r}: the dataset has no such column.\n"
        "It must be known whose each record is.\n"
        f"Give one id per record, as in unit=Unit(ids, records=16, name={name!r})."
    )

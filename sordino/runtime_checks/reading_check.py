"""Reading check: whether the dataset reads each record from its own row alone.

A chosen record is read as training reads it, from a copy of the dataset; and once more, with the same random numbers,
from a view in which all other rows are exchanged (`dataset_view`). If the two readings differ, other records are in
this one, and one record can move the sum by more than its bound. A difference is looked into before it counts: a
container whose rows are looked up by an order, by a label or not by record at all is no breach. The losses of the chosen
records are tested in the same way (`loss_rows_check`).

What cannot be tested is said in the claim: a dataset that holds nothing to exchange, such as one that reads numbered
files, or one that reads a record differently each time.

Privacy: a test releases nothing. That it failed is said once, with no word about which records.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sordino.distributed.process_group import Ranks
from sordino.distributed.shared_lot import first_finding
from sordino.lots.data_owners import Sites
from sordino.lots.loading import BatchReader, Loader
from sordino.per_sample.batch_structure import map_tensors
from sordino.refusal import Refusal
from sordino.rng.global_generators import preserve_generators, seed_all
from sordino.rng.streams import Rng
from sordino.runtime_checks.coupling_finding import Broken, CouplingFinding
from sordino.runtime_checks.dataset_view import (
    DatasetWalk,
    Exchange,
    is_same_record,
    reading_distance,
    whole_numbers_at,
)
from sordino.runtime_checks.loss_rows_check import HELD_ROWS, NOT_EXCHANGED, Containers, RowsOfLoss

FIRST_RECORDS, LATER_RECORDS = 8, 2
"""Records that are tested at the first lot, and at each later lot that is tested."""
_DENSE, _LASTING = 2.0, 0.01
"""Lot k is tested with chance max(1/100, 2/k), as by the neighbour test."""
_LOSSES = 0.05
"""The share of later tested lots at which the losses are tested too, which takes a pass of the model."""
_CLAIMS = 4
"""Claims in the middle of a loop before which the last lot is tested."""
_FEWEST = 8
"""Datasets with fewer records are not tested: a list of eight settings would be taken for records."""
_NO_ACCIDENT = 256
"""With as many records as this, something else that has exactly as many entries is not there by accident."""
_MOST_RULES, _PAIRS, _MOST_TIMES = 12, 4, 64
"""Rules by which rows may be repeated, pairs of records tried for each, and how often a row is repeated at most."""
_OTHER_RECORDS, _OTHER_ROWS, _LIKE_ANY_OTHER = 3, 5, 3.0
"""With fewer, the own row of so many records is compared with so many others each, and must matter by this factor more."""

NOT_TESTED = (
    "your word that each record is read from its own row alone: the dataset holds nothing that could be exchanged to test "
    "it, or reads a record differently each time"
)


class ReadingOutcome(Enum):
    """What a test of some records showed."""

    CLEAN = 0
    COUPLED = 1
    NOT_SEEN = 2
    REPEATED = 3


def check_reading_of_records(load: Loader, records: Iterable[int], seed: int) -> ReadingOutcome:
    """Makes the reading check: reads records from the dataset and from a view with all other rows exchanged, and says
    whether the readings differ.
    """
    if load.is_by_indexing:
        return ReadingOutcome.CLEAN  # rows of tensors, read by nobody's code
    with preserve_generators():
        return _ReadingTest(load, sorted(set(records)), seed).find_outcome()


def check_for_repeats(load: Loader, seed: int) -> ReadingOutcome:
    """Makes the reading check for repeats: looks for rows that the dataset reads as several records, by a wrapper that
    repeats or by indices, plain and augmented.
    """
    if load.is_by_indexing or load.repeats_are_charged:
        return ReadingOutcome.CLEAN
    with preserve_generators():
        return ReadingOutcome.REPEATED if _ReadingTest(load, [], seed).finds_repeats() else ReadingOutcome.CLEAN


def find_containers_of_records(load: Loader, records: Iterable[int], seed: int) -> Containers:
    """Returns what a dataset holds that has one row per record, each with an exchange of all rows but those that the
    given records are made of.
    """
    with preserve_generators():
        return _ReadingTest(load, sorted(set(records)), seed, unread=False).find_containers(load.is_by_indexing)


class _ReadingTest:
    """One test: a dataset as it was before anything was read of it, some records, and a seed to read them with."""

    def __init__(self, load: Loader, records: list[int], seed: int, *, unread: bool = True) -> None:
        fresh = load.as_if_unread() if unread else load
        self._dataset, self._collate, self._n = fresh.dataset, fresh.collate, len(fresh.dataset)
        self._records, self._seed = records, seed
        self._pointers: list[NDArray[np.int64]] = []
        self._kept_rows_of: dict[int, frozenset[int]] = {}

    def find_outcome(self) -> ReadingOutcome:
        """Makes the reading check of some records: reads them, exchanges all other rows of the dataset, reads again and
        compares.
        """
        # Read every record twice without any exchange; what differs already cannot be compared.
        plain = self._read_plainly()
        if plain is None:
            return ReadingOutcome.NOT_SEEN
        steady = [i for i in self._records if i in plain]
        # The view shows the records' own rows as they are, and other rows in place of all others.
        walk = self._new_walk()
        dataset, collate = self._copy_dataset_and_collate(walk, Exchange.all_but(self._n, steady, walk.choose))
        # The dataset's own __getitem__ is always exchanged, which shows nothing unless it calls itself for others.
        if not walk.containers and len(walk.readers) < 2:
            return ReadingOutcome.NOT_SEEN
        seen = False
        # A record that reads differently through the view was made of other rows too; before that counts, it is asked
        # which.
        for i in steady:
            try:
                reading = self._read(dataset, collate, i)
            except Exception:
                continue  # what a view cannot offer is an error of ours, and shows nothing
            seen = True
            if not is_same_record(plain[i], reading) and self._is_coupled(i, plain[i], walk):
                return ReadingOutcome.COUPLED
        return ReadingOutcome.CLEAN if seen else ReadingOutcome.NOT_SEEN

    def find_containers(self, are_columns: bool) -> Containers:
        """Returns the containers of the dataset in which records have rows, with all rows exchanged but those that the
        records are made of; `are_columns`: every record is a row of tensors, with the same number.
        """
        # Rows of nested datasets, and those that a split points at, are known from reading the records.
        if not are_columns:
            self._read_plainly()
        walk = self._new_walk(exchanging=False)
        exchange = Exchange.all_but(self._n, self._records, walk.choose)
        self._copy_dataset_and_collate(walk, exchange)
        # With few records, a table of something else may have as many rows by accident.
        held = [
            (container, walk.exchange_of[key])
            for key, container in walk.containers.items()
            if are_columns or self._n >= _NO_ACCIDENT or self._holds_records(key, walk.choose)
        ]
        return [*held, (self._dataset, exchange)] if isinstance(self._dataset, list | tuple | np.ndarray) else held

    def finds_repeats(self) -> bool:
        """Returns whether the reading check finds that pairs of records are read from one row of a container, by one of
        the usual rules for repeats.
        """
        # Which containers are shorter than the dataset? Their rows may be read as several records.
        walk, n = self._new_walk(exchanging=False), self._n
        self._copy_dataset_and_collate(walk, Exchange.keeping_all(n))
        sized = {**walk.sized, **walk.lengths}
        # The usual rules: record i is row i mod m, row i div k, or what a list of indices says.
        numbers = np.arange(n, dtype=np.int64)
        by_position = [
            (key, m, rule)
            for key, m in sized.items()
            if max(_FEWEST, n // _MOST_TIMES) <= m < n
            for rule in (numbers % m, numbers // -(-n // m))
        ]
        by_list = [(key, m, c) for c in walk.repeated_indices if len(c) == n for key, m in sized.items() if m > c.max()]
        # A list of labels looks like a list of indices, but two records with one label are not equal.
        return any(self._pairs_share_a_row(*rule, equal=False) for rule in by_position[:_MOST_RULES]) or any(
            self._pairs_share_a_row(*rule, equal=True) for rule in by_list[:_MOST_RULES]
        )

    def _pairs_share_a_row(self, key: int, length: int, row_of: NDArray[np.int64], *, equal: bool) -> bool:
        """Returns whether, in every pair that the reading check tries, records with the same number in `row_of` are
        read from that row of one container.

        `equal`: the two records must also read the same with the same random numbers.
        """
        # Some rows that at least two records would share, by the rule that is tried.
        rows, counts = np.unique(row_of, return_counts=True)
        tried = np.random.default_rng(self._seed).permutation(rows[counts > 1])[:_PAIRS].tolist()
        for row in tried:
            one, other = np.flatnonzero(row_of == row)[[0, -1]].tolist()
            plain = self._copy_dataset_and_collate(self._new_walk(exchanging=False), Exchange.keeping_all(self._n))
            if equal and not is_same_record(
                self._read(*plain, one, seed=self._seed - one), self._read(*plain, other, seed=self._seed - other)
            ):
                return False
            if not self._is_made_of([one, other], key, length, row):
                return False
        return bool(tried)

    def _is_made_of(self, records: list[int], key: int, length: int, row: int) -> bool:
        """Returns whether the reading check finds that records are read from one row alone: they read the same when all
        other rows are exchanged, and differently when that row is.
        """
        # Two exchanges that complement each other: all other rows, and this row alone.
        choose = np.random.default_rng(self._seed)
        kept, gone = Exchange.all_but(length, [row], choose), Exchange.only_row(length, row, choose)
        plain = self._copy_dataset_and_collate(self._new_walk(exchanging=False), Exchange.keeping_all(self._n))
        others = self._copy_dataset_and_collate(self._new_walk(alone={key: kept}), Exchange.keeping_all(self._n))
        without = self._copy_dataset_and_collate(self._new_walk(alone={key: gone}), Exchange.keeping_all(self._n))
        # A record is made of a row if exchanging the others leaves it and exchanging the row changes it.
        try:
            for i in records:
                record = self._read(*plain, i)
                if not is_same_record(record, self._read(*others, i)) or is_same_record(
                    record, self._read(*without, i)
                ):
                    return False
        except Exception:
            return False
        return True

    def _read_plainly(self) -> dict[int, Any] | None:
        """Returns those records of the reading check that read the same twice, and notes which rows of nested datasets
        they are read from.
        """
        # Two walks without exchange, so that each reading starts from fresh copies.
        one, two = self._new_walk(exchanging=False), self._new_walk(exchanging=False)
        everything = Exchange.all_but(self._n, self._records, one.choose)
        first, second = self._copy_dataset_and_collate(one, everything), self._copy_dataset_and_collate(two, everything)
        self._pointers = one.indices
        plain: dict[int, Any] = {}
        own_rows: dict[int, set[int]] = {}
        # A record that reads differently with the same random numbers cannot be compared.
        for i in self._records:
            for noted in two.reads.values():
                noted.clear()
            record = self._read(*first, i)
            if not is_same_record(record, self._read(*second, i)):
                continue
            plain[i] = record
            # Rows of nested datasets that were read for this record are its own, as far as they can be told apart.
            for key, noted in two.reads.items():
                if key == id(self._dataset) or key not in two.lengths:
                    continue
                rows = set(noted)
                if two.lengths[key] == self._n and i in rows:
                    rows = {i}
                elif (
                    len(rows) > 1
                ):  # one of them is the record's own: the one that is read with other random numbers too
                    noted.clear()
                    self._read(*second, i, seed=self._seed + 1)
                    rows &= noted
                own_rows.setdefault(key, set()).update(rows)
        self._kept_rows_of = {key: frozenset(rows) for key, rows in own_rows.items()}
        return plain or None

    def _is_coupled(self, record: int, plain: Any, walk: DatasetWalk) -> bool:
        """Returns whether a difference that the reading check found is made by a container that holds records,
        exchanged on its own.
        """
        candidates = {int(places[record]) for places in self._pointers if record < len(places)}
        looked_up = {k for each in walk.containers.values() for k in whole_numbers_at(each, record)}
        every = {**walk.containers, **walk.readers}
        for key in every:
            exchange = walk.exchange_of[key]
            if not self._differs(record, plain, key, exchange):
                continue
            # The record may be made of another row of this container: one that a list of places points at.
            rows = [r for r in candidates if r < exchange.length and r not in exchange.kept]
            # Or this is a table that a label is looked up in, unless the same values are in another container too.
            if key in walk.containers and not self._is_shared(key, walk):
                rows += [r for r in looked_up if 0 <= r < exchange.length and r not in exchange.kept]
            one_row = (Exchange.all_but(exchange.length, [r], walk.choose) for r in rows)
            if not all(self._differs(record, plain, key, each) for each in one_row):
                continue
            if exchange.length != self._n or self._n >= _NO_ACCIDENT or key in walk.readers:
                return True
            # Or a matrix that happens to have as many rows as there are records: then a record's own row is like any other.
            if self._is_shared(key, walk) or self._holds_records(key, walk.choose):
                return True
        return False

    def _holds_records(self, key: int, choose: np.random.Generator) -> bool:
        """Returns whether records depend on a row of their own in this container more than on single other rows."""
        sample = [int(r) for r in choose.permutation(self._n)[:_OTHER_ROWS]]
        return all(self._has_own_row(record, key, choose) for record in sample[:_OTHER_RECORDS])

    def _has_own_row(self, record: int, key: int, choose: np.random.Generator) -> bool:
        """Returns whether the reading check finds that a record changes more with a row of its own than with single
        other rows of a container.
        """
        # Rows that may be the record's own: its number, and what lists of indices say about it.
        own_rows = [record, *(int(places[record]) for places in self._pointers if record < len(places))]
        own_rows = [row for row in own_rows if row < self._n]
        # Some other rows give the scale: any row moves a record that is normalised by all of them.
        others = [int(r) for r in choose.permutation(self._n) if r not in own_rows][:_OTHER_ROWS]
        all_others = Exchange.all_but(self._n, [record], choose)
        plain = self._read(*self._copy_dataset_and_collate(self._new_walk(exchanging=False), all_others), record)

        def distance_without_row(row: int) -> float:
            """Returns how far one row of the reading check's dataset, exchanged alone, moves the reading of the record."""
            walk = self._new_walk(only=key, instead={key: Exchange.only_row(self._n, row, choose)})
            try:
                return reading_distance(plain, self._read(*self._copy_dataset_and_collate(walk, all_others), record))
            except Exception:
                return 0.0

        # A row of its own moves a record much more than any other row does.
        return max(map(distance_without_row, own_rows)) > _LIKE_ANY_OTHER * float(
            np.median([distance_without_row(row) for row in others])
        )

    def _differs(self, record: int, plain: Any, key: int, exchange: Exchange) -> bool:
        """Returns whether a record of the reading check reads differently where one container of the dataset alone is
        exchanged.
        """
        walk = self._new_walk(only=key, instead={key: exchange})
        try:
            reading = self._read(
                *self._copy_dataset_and_collate(walk, Exchange.all_but(self._n, [record], walk.choose)), record
            )
        except Exception:
            return False
        return not is_same_record(plain, reading)

    def _is_shared(self, key: int, walk: DatasetWalk) -> bool:
        """Returns whether another container that the reading check met has the same rows: a copy of the records, kept
        beside them.
        """
        mine = walk.containers.get(key)
        rows = np.random.default_rng(self._seed).integers(self._n, size=4).tolist()
        for other, container in walk.containers.items():
            try:
                if other != key and all(_have_common_part(mine, container, i) for i in rows):
                    return True
            except Exception:  # not indexed by rows
                continue
        return False

    def _new_walk(self, **options: Any) -> DatasetWalk:
        choose = np.random.default_rng(self._seed)
        return DatasetWalk(choose, kept_rows_of=self._kept_rows_of, pointers=self._pointers, **options)

    def _copy_dataset_and_collate(self, walk: DatasetWalk, exchange: Exchange) -> tuple[Any, Any]:
        return walk.copy_dataset(self._dataset, exchange), walk.copy_function(self._collate, exchange)

    def _read(self, dataset: Any, collate: Any, record: int, seed: int | None = None) -> Any:
        """Returns one reading for the reading check: a record and the batch that collate makes of it alone, with random
        numbers of its own.
        """
        # Equal seeds for equal records, so that augmentation is the same in every reading.
        seed = self._seed if seed is None else seed
        seed_all(seed + 1 + record)
        many = getattr(dataset, "__getitems__", None)
        entry = dataset[record] if many is None else many([record])[0]
        kept = _copy_record(entry)
        if collate is None:
            return kept
        seed_all(seed - 1 - record)  # another partner for each record, if collate looks for one
        try:
            return kept, collate([entry])
        except Exception:  # a collate may need more than one record
            return kept


def _have_common_part(one: Any, other: Any, row: int) -> bool:
    """Returns whether two containers hold the same numbers, more than one of them, in this row."""
    theirs = _parts_of_row(other, row)
    return any(np.array_equal(a, b) for a in _parts_of_row(one, row) for b in theirs)


def _parts_of_row(container: Any, row: int) -> list[NDArray[np.float32]]:
    """Returns the arrays of several numbers that one row consists of (its columns or its entries), by which the reading
    check recognises rows.
    """
    # The stored numbers are compared, not what a transform makes of them.
    if hasattr(container, "with_format"):
        container = container.with_format(None)  # without the transform
    entry = container.iloc[row].tolist() if hasattr(container, "iloc") else container[row]
    entries = list(entry.values()) if isinstance(entry, dict) else list(entry) if isinstance(entry, tuple) else [entry]
    parts = []
    for each in entries:
        try:
            parts.append(np.asarray(each, dtype=np.float64).reshape(-1))
        except (TypeError, ValueError, RuntimeError):
            continue
    return [part.astype(np.float32) for part in parts if part.size > 1]


def _copy_record(record: Any) -> Any:
    """Returns a copy of a record of the reading check that collate cannot change: many collators take entries out of
    the dicts they are given.
    """
    if isinstance(record, dict):
        return {name: _copy_record(value) for name, value in record.items()}
    if type(record) in (list, tuple):
        return type(record)(map(_copy_record, record))
    if isinstance(record, Tensor):
        return map_tensors(Tensor.clone, record)
    return copy.copy(record) if isinstance(record, np.ndarray | set) else record


@dataclass(frozen=True)
class _PendingLot:
    """A lot that was drawn and whose reading is not tested yet."""

    number: int
    load: Loader
    indices: NDArray[np.int64]


def _choose_held_records(dataset: Any, stream: Rng, count: int) -> NDArray[np.int64]:
    """Returns random records for the reading check of a rank that computes none of the lot, among those that its
    process holds.
    """
    if isinstance(dataset, Sites):
        return dataset.to_record_numbers(stream.integers(count, len(dataset.local_records)))
    return stream.integers(count, len(dataset))


class ReadingCheck:
    """Tests how records are read, and which rows their losses are made of, at the first lot, at secret later ones and
    before claims.

    Args:
        stream: the secret choices of this check.
        void: takes the claim away.
        declare: says in the claim what remains the user's word.
        find_rows_of_loss: tests the losses of some records of a loader; the last argument is a seed.
        gathered: makes divided parameters whole while losses are computed.
        is_sharded: whether the parameters are divided among ranks.
        ranks: the processes that must agree on the outcome.

    """

    def __init__(
        self,
        stream: Rng,
        void: Callable[[str], None],
        declare: Callable[[str], None],
        find_rows_of_loss: Callable[[Loader, list[int], int], RowsOfLoss],
        gathered: Callable[[], AbstractContextManager[None]],
        ranks: Ranks | None = None,
        *,
        is_sharded: bool = False,
    ) -> None:
        self._stream, self._void, self._declare, self._ranks = stream, void, declare, ranks
        self._find_rows_of_loss, self._gathered = find_rows_of_loss, gathered
        self._is_sharded = is_sharded
        self._lot: _PendingLot | None = None
        self._tested, self._before_claims = 0, 0

    def replace_stream(self, stream: Rng) -> None:
        """Uses the stream of a loaded state: which lots are tested follows from the loaded run's key."""
        self._stream = stream

    def note_lot(self, number: int, load: BatchReader, indices: NDArray[np.int64]) -> None:
        """Notes a lot that was drawn; it is tested before its gradients are computed, if its turn has come."""
        self._lot = _PendingLot(number, *load.to_single_records(indices))

    def before_backward(self, *, step_was_taken: bool) -> None:
        """Makes the reading check of the pending lot if it is the first of the run or a secret coin says so."""
        lot = self._lot
        if lot is None:
            return
        chance = max(_LASTING, min(1.0, _DENSE / max(lot.number, 1)))
        coin = 0.0 if self._tested == 0 else float(self._stream.child("coin", lot.number).uniform(1)[0])
        if coin < chance:
            count = FIRST_RECORDS if self._tested == 0 else LATER_RECORDS
            with_losses = self._tested == 0 or float(self._stream.child("losses", lot.number).uniform(1)[0]) < _LOSSES
            if with_losses or not lot.load.is_by_indexing:
                self._test_pending_lot(self._ranks, count, with_losses=with_losses, step_was_taken=step_was_taken)

    def before_claim(self, *, over: bool) -> None:
        """Makes the reading check of the last lot before a claim if it was not made: always when the loop is over, and
        before the first few claims within it.
        """
        if self._lot is None:
            return
        if over or (self._before_claims < _CLAIMS and not self._lot.load.is_by_indexing):
            self._before_claims += int(not over)
            # One rank alone may claim, and parameters that are divided can be gathered by all ranks together only.
            self._test_pending_lot(None, LATER_RECORDS, with_losses=over and not self._is_sharded, step_was_taken=True)

    def _test_pending_lot(self, ranks: Ranks | None, count: int, *, with_losses: bool, step_was_taken: bool) -> None:
        """Makes the reading check on `count` records of the lot, and of their losses if asked; a failure is refused
        before the first step, and voids the claim after it.
        """
        lot, self._lot = self._lot, None
        assert lot is not None, "a lot was drawn"
        # Which records are tested is a secret of the run.
        stream = self._stream.child("records", lot.number, self._tested)
        n = len(lot.load.dataset)
        self._tested += 1
        if n < _FEWEST:
            return

        def find_breach() -> CouplingFinding | None:
            """Makes the reading check on some records of the lot, and at the first lot looks for rows that are read as
            several records too.
            """
            if len(lot.indices):
                drawn = lot.indices[stream.permutation(len(lot.indices))]
            else:
                drawn = _choose_held_records(lot.load.dataset, stream, count)
            if count == FIRST_RECORDS and check_for_repeats(lot.load, stream.seed()) is ReadingOutcome.REPEATED:
                return CouplingFinding(Broken.REPEATED)
            records = drawn[: min(count, n // 4)].tolist()
            outcome = check_reading_of_records(lot.load, records, stream.seed())
            if outcome is ReadingOutcome.NOT_SEEN:
                self._declare(NOT_TESTED)
            if outcome is ReadingOutcome.COUPLED:
                return CouplingFinding(Broken.READ)
            if not with_losses:
                return None
            # What is read alone may still meet other rows in the loss or in the model.
            rows = self._find_rows_of_loss(lot.load, records, stream.seed())
            if rows in (RowsOfLoss.HELD, RowsOfLoss.UNKNOWN):
                self._declare(HELD_ROWS if rows is RowsOfLoss.HELD else NOT_EXCHANGED)
            return CouplingFinding(Broken.LOSS_READS) if rows is RowsOfLoss.OTHERS else None

        # Ranks must agree on the outcome, so that all of them stop or go on.
        with self._gathered() if with_losses else nullcontext():
            finding = (
                find_breach()
                if ranks is None
                else first_finding(ranks, find_breach, "how records are read", lot.number)
            )
        if finding is not None:
            if not step_was_taken:
                raise Refusal(str(finding))
            self._void(str(finding))

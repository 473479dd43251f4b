"""SortedDPSGD as published: lots filled by the rank of gradient lengths, without a guarantee.

Pflaeging 2023, *Varianten von DPSGD*, ch. 4.

Before every lot the lengths of all records not yet used in this pass are taken at the current model; the lot is filled
by their order, and its records are used up until the pass is over. The ways to fill a lot of L from N records that are
left:

    top_k            the L longest
    quantile         T = the α-quantile of the lengths, Q = {length ≥ T}. If |Q| > L, each of Q with probability L/|Q|;
                     otherwise all of Q, and each of the rest with probability (L − |Q|)/(N − |Q|). Algorithm 2 there,
                     its slips mended: it tests |S| for |Q|, and prints (|Q| − L)/N for the second probability.
    class_diverse    the longest of each class in turn, so that no class has more than its share while others have records
    similar_length   a run of L neighbours in the sorted order, at a random place

Cheaper: `refresh=k` ranks anew only every k lots and uses the same lengths in between; `pool=m` ranks m lots' worth of
records, drawn at random from those that are left, instead of all. `remeasured=m` remembers the lengths between lots and
measures only m lots' worth of records before each, those that are likeliest to be the longest (`remembered_lengths.py`);
a pass begins by measuring all.

Privacy: none. Whether a record is in a lot depends on the lengths of all others: one record more pushes another out of
the lot, and out of every later one. No noise on the gradients covers that, and the draws are `NonPrivate` whatever is
added. `Threshold` is the form that has a guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sordino import validate
from sordino.former_names import former_method
from sordino.refusal import Refusal
from sordino.registry import Declaration, Example, Method, Parameters, RunNumbers
from sordino.rng.streams import Rng
from sordino.sampling.record_access import (
    Label,
    Lengths,
    Records,
    Rows,
    indistinguishable_records,
    pack_array,
    unpack_array,
)
from sordino.sampling.remembered_lengths import (
    RecordFeatures,
    RememberedLengths,
    measure_everyone,
    measure_likeliest,
)
from sordino.sampling.sampler import Draw, mark_unproven

Labels = Callable[[], Rows]
Mask = NDArray[np.bool_]
_FEWEST_REMEASURED = 2
"""Lots' worth of records among which a lot is chosen, at least."""


class Fill(Protocol):
    """A way to fill a lot."""

    def __call__(self, lengths: Lengths, labels: Labels, size: int, rng: Rng) -> Rows:
        """Returns which of the candidates, by position, make up a lot of about `size`."""
        ...


@dataclass(frozen=True)
class Longest:
    """Fills a lot with the `size` longest; by a partial selection, not a sort."""

    def __call__(self, lengths: Lengths, labels: Labels, size: int, rng: Rng) -> Rows:
        """Returns positions in no particular order; of equally long records any may be taken."""
        if size >= len(lengths):
            return np.arange(len(lengths))
        # A partial selection finds the `size` largest in linear time; their order does not matter to a sum.
        return np.argpartition(lengths, len(lengths) - size)[len(lengths) - size :]


@dataclass(frozen=True)
class UpperQuantile:
    """Fills a lot at random from the records at or above the quantile, and from the others if those are too few."""

    quantile: float

    def __call__(self, lengths: Lengths, labels: Labels, size: int, rng: Rng) -> Rows:
        """Returns positions, ascending; their number is random, about `size`."""
        n = len(lengths)
        # T is the α-quantile and Q = {length ≥ T}; lots are filled from Q first.
        upper = lengths >= np.quantile(lengths, self.quantile)
        q = int(upper.sum())
        # Q is larger than the lot: each of its records has an equal chance.
        if q > size:
            chance = np.where(upper, size / q, 0.0)
        else:
            # Q is smaller: all of it, and the others fill the rest with an equal chance each.
            chance_below = min(1.0, (size - q) / (n - q)) if n > q else 0.0
            chance = np.where(upper, 1.0, chance_below)
        return np.flatnonzero(rng.uniform(n) < chance)


@dataclass(frozen=True)
class LongestOfEachClass:
    """Fills a lot with the longest of every class, then the second longest of every class, and so on."""

    label: Label | None = field(repr=False)  # a function prints its address, and a resumed run is told by the text

    def __call__(self, lengths: Lengths, labels: Labels, size: int, rng: Rng) -> Rows:
        """Returns positions, by place in their class and then by length."""
        # The rank within a class decides first, so that classes take turns.
        classes = labels()
        order = np.lexsort((-lengths, classes))  # class by class, each from its longest
        first = np.searchsorted(classes[order], classes[order])  # where the record's class begins
        # How far a record is from the beginning of its class in that order is its rank within the class.
        place = np.empty(len(lengths), dtype=np.int64)
        place[order] = np.arange(len(lengths)) - first
        return np.lexsort((-lengths, place))[:size]


@dataclass(frozen=True)
class Neighbours:
    """Fills a lot with a run of `size` records in the sorted order, at a random place."""

    def __call__(self, lengths: Lengths, labels: Labels, size: int, rng: Rng) -> Rows:
        """Returns positions, by length."""
        # So many runs of `size` neighbours fit; a lot of all records has one place only.
        places = max(0, len(lengths) - size) + 1
        start = int(rng.integers(1, places)[0])
        return np.argsort(lengths, kind="stable")[start : start + size]


@dataclass(frozen=True)
class Sorted:
    """Draws lots of `batch_size` records, filled by rank; made by one of the four constructors.

    Args:
        batch_size: records in every lot.
        fill: which records fill it; the four constructors set this.
        refresh: records are ranked anew after so many lots.
        pool: so many lots' worth of records are ranked at a time; None for all.
        remeasured: so many lots' worth of records are measured anew before each lot, and the others are taken to be as
            their remembered lengths predict; None for all, the exact order.

    Privacy:
        None. Which records are in a lot depends on the others: the claim is a `NoGuarantee` that says so.

    Examples:
        >>> import sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> event = sd.dry_run(query, sd.Sorted.top_k(100), dataset_size=1000, steps=100)
        >>> type(event).__name__
        'NonPrivate'

    """

    batch_size: int
    fill: Fill
    refresh: int = 1
    pool: int | None = None
    remeasured: int | None = None

    def __post_init__(self) -> None:
        """Validates the numbers and the way to fill lots."""
        # A pool must last until the records are ranked anew.
        object.__setattr__(self, "batch_size", validate.count("batch_size", self.batch_size))
        object.__setattr__(self, "refresh", validate.count("refresh", self.refresh))
        validate.function("fill", self.fill, "a way to fill lots; sd.Sorted.top_k(100) has one")
        if self.pool is not None and validate.count("pool", self.pool) < self.refresh:
            raise ValueError(f"pool={self.pool}: must hold the {self.refresh} lots until it is ranked anew (refresh)")
        if self.remeasured is not None:
            self._validate_remeasured(self.remeasured)

    def _validate_remeasured(self, remeasured: int) -> None:
        """Raises an error where lengths cannot be remembered between sorted lots as the other arguments ask."""
        if validate.count("remeasured", remeasured) < _FEWEST_REMEASURED:
            raise ValueError(
                f"remeasured={remeasured}: must be at least {_FEWEST_REMEASURED}, because a lot is chosen among so many "
                "lots' worth of records"
            )
        if self.refresh != 1 or self.pool is not None:
            raise ValueError("remeasured: replaces refresh and pool; give one of the three")
        # The other ways need the lengths of all records: a quantile, or a place in the whole order.
        if not isinstance(self.fill, Longest | LongestOfEachClass):
            raise ValueError(f"remeasured={remeasured}: only for the longest and for the longest of each class")

    @staticmethod
    def top_k(batch_size: int, *, refresh: int = 1, pool: int | None = None, remeasured: int | None = None) -> Sorted:
        """Returns a sampler that draws the longest gradients first."""
        return Sorted(batch_size, Longest(), refresh, pool, remeasured)

    @staticmethod
    def quantile(batch_size: int, quantile: float = 0.75, *, refresh: int = 1, pool: int | None = None) -> Sorted:
        """Returns a sampler that draws at random among the gradients above a quantile: Quantilesort."""
        return Sorted(batch_size, UpperQuantile(validate.fraction("quantile", quantile)), refresh, pool)

    @staticmethod
    def class_diverse(
        batch_size: int,
        label: Label | None = None,
        *,
        refresh: int = 1,
        pool: int | None = None,
        remeasured: int | None = None,
    ) -> Sorted:
        """Returns a sampler of sorted lots that draws the records with the longest gradients of each class in turn.

        `label` makes the class from a batch's columns; None means that it is the last column.
        """
        return Sorted(batch_size, LongestOfEachClass(label), refresh, pool, remeasured)

    @staticmethod
    def similar_length(batch_size: int, *, refresh: int = 1, pool: int | None = None) -> Sorted:
        """Returns a sampler that draws gradients of about the same length, not the longest."""
        return Sorted(batch_size, Neighbours(), refresh, pool)

    @property
    def size_is_public(self) -> bool:
        """Yes: the divisor is the batch size."""
        return True

    def expected_size(self, n: int) -> float:
        """Returns the batch size."""
        return float(min(self.batch_size, n))

    expected = former_method("expected", "expected_size")

    def draws(self, n: int, rng: Rng, start: int) -> Iterator[Draw]:
        """Yields draws of records that are all alike, for a dry run."""
        return self.draws_from(indistinguishable_records(n), rng, start, None)

    def draws_from(self, records: Records, rng: Rng, start: int, memory: Any) -> Iterator[Draw]:
        """Yields disjoint lots, filled by sorted gradient lengths, until every record was used, then begins again."""
        # Every lot depends on all lots before it, so without a memory only the first can be drawn.
        k, n = start, len(records)
        if start and memory is None:
            raise Refusal(
                f"lot {start} depends on the lots before it, which are not known.\n"
                "Records that were used in a pass are not drawn again in it.\n"
                "Resume from a checkpoint."
            )
        # A checkpoint brings the records that are left and the lengths still in use, so the next lot is the same.
        left, ranked = _begin_pass(n) if memory is None else _unpack_memory(memory, n)
        remembered = (
            None if memory is None or "remembered" not in memory else RememberedLengths.unpack(memory["remembered"])
        )
        label = self.fill.label if isinstance(self.fill, LongestOfEachClass) else None
        features: RecordFeatures | None = None
        while True:
            # Every record was used once: a new pass begins.
            if not left.any():
                left, ranked = _begin_pass(n)
                remembered = None
            # With a memory, only the likeliest candidates are measured, and the lot is filled from these.
            if self.remeasured is not None:
                if features is None:
                    features = _features_of(records, label)
                rows, lengths, remembered = self._measure_candidates(records, left, remembered, features, k, rng)
                ranked = _RankedCandidates(rows, lengths, 1)
            # Rank anew once the candidates were used for `refresh` lots. Looking at lengths forgoes the guarantee.
            elif not ranked.lots_left or not len(ranked.rows):
                rows = self._choose_candidates(left, rng.child(k, "pool"))
                ranked = _RankedCandidates(rows, records.lengths(rows), self.refresh)
            # Labels are handed over as a function: only the fill by class asks for them.
            positions = self.fill(
                ranked.lengths, partial(records.labels, ranked.rows, label), self.batch_size, rng.child(k)
            )
            # What was drawn leaves the candidates and the pass, so that no record is used twice in it.
            lot, ranked = ranked.take_lot(positions)
            left = left.copy()  # what a draw remembers does not change under it
            left[lot] = False
            yield Draw(np.sort(lot), mark_unproven, memory=partial(_pack_memory, left, ranked, remembered))
            k += 1

    def _measure_candidates(
        self,
        records: Records,
        left: Mask,
        remembered: RememberedLengths | None,
        features: RecordFeatures,
        k: int,
        rng: Rng,
    ) -> tuple[Rows, Lengths, RememberedLengths]:
        """Returns the records that are measured for the next sorted lot, their lengths, and what is remembered of all."""
        rows = np.flatnonzero(left)
        budget = int(self.remeasured or 0) * self.batch_size
        # All are measured at the beginning of a pass, and where no more are left than are measured anyway.
        if remembered is None or len(rows) <= budget:
            return rows, *measure_everyone(records, rows, k)
        label = self.fill.label if isinstance(self.fill, LongestOfEachClass) else None

        def choose(lengths: Lengths, some: Rows, size: int) -> Rows:
            return self.fill(lengths, partial(records.labels, some, label), size, rng.child(k, "choose"))

        return measure_likeliest(records, remembered, rows, features, budget, k, choose, rng.child(k, "stale"))

    def _choose_candidates(self, left: Mask, rng: Rng) -> Rows:
        """Returns the records that are sorted for the next lot: all that are left, or a random pool of them."""
        rows = np.flatnonzero(left)
        if self.pool is None or self.pool * self.batch_size >= len(rows):
            return rows
        return np.sort(rows[rng.permutation(len(rows))[: self.pool * self.batch_size]])


def _features_of(records: Records, label: Label | None) -> RecordFeatures:
    """Returns what predicts the remembered lengths of sorted lots; records without classes count as one class."""
    every = np.arange(len(records), dtype=np.int64)
    try:
        classes = records.labels(every, label)
    except Refusal:
        classes = np.zeros_like(every)
    return RecordFeatures(classes, records.summaries())


@dataclass(frozen=True)
class _RankedCandidates:
    """Candidates and their lengths, which are used for so many more lots."""

    rows: Rows
    lengths: Lengths
    lots_left: int

    def take_lot(self, at: NDArray[np.int64]) -> tuple[Rows, _RankedCandidates]:
        """Returns the lot at these positions of the sorted candidates, and the candidates that remain."""
        kept = np.ones(len(self.rows), dtype=bool)
        kept[at] = False
        return self.rows[at], _RankedCandidates(self.rows[kept], self.lengths[kept], self.lots_left - 1)


def _begin_pass(n: int) -> tuple[Mask, _RankedCandidates]:
    """Returns the state at the beginning of a pass: all records are left, and none is ranked."""
    return np.ones(n, dtype=bool), _RankedCandidates(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32), 0)


def _pack_memory(left: Mask, ranked: _RankedCandidates, remembered: RememberedLengths | None) -> dict[str, Any]:
    """Returns what the next draw of sorted lots must know, as JSON; candidates are kept only while they are still used."""
    # Candidates that will be ranked anew need not be remembered.
    stale = ranked.lots_left > 0  # otherwise the next lot asks anew
    return {
        "left": pack_array(np.packbits(left)),
        "rows": pack_array(ranked.rows if stale else ranked.rows[:0]),
        "lengths": pack_array(ranked.lengths if stale else ranked.lengths[:0]),
        "lots": ranked.lots_left,
        **({} if remembered is None else {"remembered": remembered.pack()}),
    }


def _unpack_memory(memory: Mapping[str, Any], n: int) -> tuple[Mask, _RankedCandidates]:
    """Returns the records that are left for sorted lots and the ranked candidates, from what `_pack_memory` returned."""
    # The mask was packed into bits, eight records to a byte.
    left = np.unpackbits(unpack_array(memory["left"], np.uint8), count=n).astype(bool)
    ranked = _RankedCandidates(
        unpack_array(memory["rows"], np.int64), unpack_array(memory["lengths"], np.float32), memory["lots"]
    )
    return left, ranked


def _declare_method(
    name: str, about: str, fill: Callable[..., Sorted], example: str, *, remembers: bool = False
) -> Method:
    """Returns the declaration of one of the four ways in which SortedDPSGD fills a lot; `remembers` says that it can
    remember lengths between lots.
    """
    # The parameters are floats on the command line: a pool of 0 means that all records are ranked, and 0 in
    # `remeasured` that all are measured.
    defaults = {"refresh": 1.0, "pool": 0.0, **({"remeasured": 0.0} if remembers else {})}

    def sampler(run: RunNumbers, parameters: Parameters) -> Sorted:
        given = {one: int(parameters[one]) or None for one in defaults if one != "refresh"}
        return fill(run.lot_size, refresh=int(parameters["refresh"]), **given)

    return Method(
        f"sorted-{name}",
        f"{about}, as published: no guarantee",
        sampler=sampler,
        parameters=lambda run: dict(defaults),
        example=example,
    )


DECLARED = Declaration(
    (Sorted,),
    methods=(
        _declare_method(
            "top-k", "lots of the longest gradients", Sorted.top_k, "sd.Sorted.top_k(batch_size=50)", remembers=True
        ),
        _declare_method(
            "quantile",
            "lots from above a quantile of the lengths",
            Sorted.quantile,
            "sd.Sorted.quantile(batch_size=50)",
        ),
        _declare_method(
            "class-diverse",
            "lots of the longest of each class in turn",
            Sorted.class_diverse,
            "sd.Sorted.class_diverse(batch_size=50, label=lambda x, y: (y[:, 0] > 0).long())",
            remembers=True,
        ),
        _declare_method(
            "similar-length",
            "lots of gradients of like lengths",
            Sorted.similar_length,
            "sd.Sorted.similar_length(batch_size=50)",
        ),
    ),
    examples=(
        Example(
            "sorted-cheaper",
            "rank four lots' worth of records drawn at random, every second lot: no guarantee",
            sampler="sd.Sorted.top_k(batch_size=50, refresh=2, pool=4)",
        ),
        Example(
            "sorted-remembered",
            "lengths remembered between lots, and four lots' worth of records measured before each: no guarantee",
            sampler="sd.Sorted.top_k(batch_size=50, remeasured=4)",
        ),
        Example(
            "sorted-logarithmic",
            "sorted lots with the logarithmic schedule for a bound: sorting still has no guarantee",
            query="sd.NoisySum(sd.Scheduled(sd.schedules.Logarithmic(2.0, 0.5, 10)), sd.Gaussian(multiplier=1.1))",
            sampler="sd.Sorted.top_k(batch_size=50)",
        ),
        Example(
            "sorted-median",
            "sorted lots with the median length of the lot, at most 5, for a bound: no guarantee",
            query="sd.NoisySum(sd.BatchStatistic.median(cap=5.0), sd.Gaussian(multiplier=1.1))",
            sampler="sd.Sorted.top_k(batch_size=50)",
        ),
        Example(
            "sorted-sgd",
            "sorting with plain SGD: no bound, no noise, no guarantee",
            query='sd.NoisySum(sd.Flat(bound=float("inf")), sd.Gaussian(multiplier=0.0))',
            sampler="sd.Sorted.top_k(batch_size=50)",
        ),
    ),
)

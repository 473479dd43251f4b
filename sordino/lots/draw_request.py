"""The request of a call of `draws`, checked before anything is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino import validate
from sordino.lots.chunking import WHOLE, Cutting
from sordino.lots.data_owners import OwnRecords, Sites
from sordino.lots.draw_phase import Phase
from sordino.lots.loading import Batches, Loader, MapStyle, Prefetch, Reads, length
from sordino.lots.privacy_units import RECORD, AnyUnit, Unit, UnitLoader, unit_of
from sordino.lots.repeated_records import SOME_EQUAL, EqualRows, grouped, most_copies
from sordino.refusal import Refusal
from sordino.release.rounding import slack
from sordino.rng.streams import Rng
from sordino.sampling.record_access import Records
from sordino.sampling.sampler import Draw, Informed, Sampler, drawn

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True, eq=False)
class Request:
    """What a call of `draws` asks for: `steps` lots of a dataset by a sampler."""

    dataset: MapStyle
    sampler: Sampler
    steps: int
    workers: int
    collate: Collate | None
    n: int
    expected: float  # the public number that sums are divided by
    load: Reads
    copies: int  # of one record, at most
    unit: str = RECORD  # what is drawn
    declared: str = ""  # the user's word for it
    cutting: Cutting = WHOLE

    @staticmethod
    def checked(
        dataset: MapStyle,
        sampler: Sampler,
        steps: int,
        expected_batch: float | None,
        workers: int,
        collate: Collate | None,
        given: AnyUnit | None = None,
    ) -> Request:
        """Returns the request, or raises Refusal, TypeError or ValueError if it cannot be met."""
        # Data owners hold some records each, so nothing may be asked about all records at once.
        n = length(dataset)
        if isinstance(dataset, Sites) and (given is not None or isinstance(sampler, Informed)):
            what = "units are" if given is not None else f"{type(sampler).__name__} is"
            raise Refusal(f"{what} about all records, and sites hold some of them each: draw records, with Poisson say")
        # Find the privacy units, and how often one record is in the dataset.
        unit = None if given is None else unit_of(given)
        members = None if unit is None else unit.members(dataset)
        copies = 1 if isinstance(unit, Unit) else most_copies(*_here(dataset, n))
        n = n if members is None else members.n
        # Check the numbers of the call.
        if not isinstance(sampler, Sampler):
            raise TypeError(f"sampler={sampler!r}: must be a sampler, such as Poisson(rate=0.01)")
        steps = validate.count("steps", steps)
        workers = validate.count("workers", workers, least=0)
        expected = sampler.expected(n)  # refuses what the sampler cannot draw from this dataset
        if expected_batch is not None:
            expected = validate.positive("expected_batch", expected_batch)
        if workers and isinstance(sampler, Informed):
            raise Refusal(
                f"workers={workers}: {type(sampler).__name__} asks the records at the model of the moment, so its lots "
                "cannot be loaded ahead; use workers=0"
            )
        if workers and unit is not None:
            raise Refusal(f"workers={workers}: units are read by the process that trains; use workers=0")
        # The loader remembers the dataset as it is before the first record is read.
        load = Loader(dataset, collate, repeats_are_charged=copies > 1 or unit is not None)
        load.begin()
        if unit is None or members is None:
            return Request(dataset, sampler, steps, workers, collate, n, expected, load, copies)
        of_units = UnitLoader(load, members)
        return Request(dataset, sampler, steps, 0, collate, n, expected, of_units, copies, unit.name, unit.declared)

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Names of what the records' contents show that a claim does not cover."""
        return (SOME_EQUAL,) if self.unit == RECORD and EqualRows.of(self.here[0]).some else ()

    def first(self, few: int) -> Any:
        """Returns a batch of the first `few` records that are held here, for the checks before the first draw."""
        return self.own(np.arange(few) % self.here[1])

    @property
    def here(self) -> tuple[Any, int]:
        """The records that are held here, and their number."""
        return _here(self.dataset, self.n)

    @property
    def own(self) -> Reads:
        """The reader of the records that are held here, numbered from 0."""
        return OwnRecords(self.load, self.dataset) if isinstance(self.dataset, Sites) else self.load

    def draws(
        self, phase: Phase, records: Records, root: Rng, chunk: int
    ) -> Iterator[tuple[Draw, Batches, NDArray[np.int64]]]:
        """Yields the draws of a phase from its position, with their batches and which of the records held here are in
        them.
        """
        stream, start = root.child("draws", phase.number), phase.position
        memory = None if phase.memory is None else phase.memory()

        def made() -> Iterator[Draw]:
            return islice(drawn(self.sampler, records, stream, start, memory), self.steps)

        # Workers make the same draws ahead of the loop, from the same stream.
        prefetch = None
        if self.workers:
            seed = root.child("workers", phase.number, start).seed()
            prefetch = Prefetch(self.dataset, made, chunk, self.workers, self.collate, seed, self.cutting)
        for k, draw in enumerate(made()):
            ahead = None if prefetch is None else prefetch.of(k)
            # A record that is in the dataset several times is charged as a group.
            whole = grouped(draw, self.copies, self.sampler)
            load = self.load
            if isinstance(load, UnitLoader):
                load = load.at(root.child("records of units", phase.number, start + k))
            own = self.dataset.places(draw.indices) if isinstance(self.dataset, Sites) else draw.indices
            yield whole, Batches(draw.indices, chunk, load, self.n, ahead, self.cutting), own


def _here(dataset: Any, n: int) -> tuple[Any, int]:
    return (dataset.here, len(dataset.here)) if isinstance(dataset, Sites) else (dataset, n)


def summable(records: int | None) -> int | None:
    """Returns the physical batch, if one was given; refuses more records than can be added up in float32."""
    if records is not None:
        slack(validate.count("physical_batch", records))
    return records

"""Lots: what a call of `draws` asks for, the draws that are made of it, and the lots that the training loop gets.

A call of `draws` is checked before anything is drawn (`DrawRequest`) and has a phase of its own (`DrawPhase`). Each draw
is turned into a `Lot`, the handle that the loop passes to `backward`; `Draws` is the iterator over them.

Frameworks take batches apart: they ask for a length, move them to a device, look for tensors in them. A lot lets itself
be handed around and says what to do where it is asked for what is private.

Privacy: a lot shows neither its records nor their number. A pass of a shuffle is known to the ledger by the phase it
belongs to. Each call of `draws` has a phase of its own, so lots drawn from two of them in turn are never taken for batches
of one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from sordino import validate
from sordino.events import Event
from sordino.lots.data_owners import LocalRecords, Sites
from sordino.lots.loading import (
    ONE_PROCESS,
    BatchReader,
    Loader,
    LotBatches,
    LotCutting,
    MapStyle,
    Prefetch,
    count_records,
)
from sordino.lots.privacy_units import RECORD, AnyUnit, Unit, UnitLoader, as_unit
from sordino.lots.repeated_records import SOME_EQUAL, EqualRows, charge_as_group, count_most_copies
from sordino.lots.shards import Shards
from sordino.progress_bar import ProgressBar
from sordino.refusal import Refusal
from sordino.release.correlated_noise import find_correlated_noise
from sordino.release.rounding import rounding_slack
from sordino.release.sealed import Seal, Sealed
from sordino.rng.phase_noise import PhaseNoise
from sordino.rng.streams import Rng
from sordino.sampling.record_access import Records
from sordino.sampling.sampler import Draw, Informed, Sampler, draw_lots

Collate = Callable[[list[Any]], Any]


class Lot:
    """One draw. Pass it to `private.backward` before the next one is drawn.

    Privacy:
        Its records and their number are private. `expected_batch` and `step` are public; reading the records voids
        the claim.

    Examples:
        >>> import torch, sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> private = sd.Private(torch.nn.Linear(3, 1), lambda model, x: model(x).square().sum(1), query)
        >>> data = torch.utils.data.TensorDataset(torch.randn(100, 3))
        >>> next(private.draws(data, sd.Poisson(rate=0.1), steps=5, expected_batch=10))
        Lot(step=0, size=Sealed(…), expected_batch=10.0)

    """

    __slots__ = ("__weakref__", "expected_batch", "loads", "most", "size", "step")

    step: int
    """The number of the lot, counted from 0 over the life of the `Private`; public."""
    size: Sealed[int]
    """The number of its records, which is private under Poisson sampling."""
    expected_batch: float
    """The public divisor."""
    loads: Callable[[], Iterable[Any]]
    """Loads its batches; for the library alone."""
    most: int | None
    """The largest number of records in one batch; public."""

    def __init__(
        self,
        step: int,
        size: Sealed[int],
        expected_batch: float,
        loads: Callable[[], Iterable[Any]],
        most: int | None = None,
    ) -> None:
        values = {"step": step, "size": size, "expected_batch": expected_batch, "loads": loads, "most": most}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def batches(self) -> Iterable[Any]:
        """Returns the lot's records themselves, which voids the claim: the loop could do anything with them."""
        self.size.void(
            "the records of a lot were read in the training loop.\n"
            "What the loop does with them is not bounded.\n"
            "Give the lot to private.backward, which reads them itself."
        )
        return self.loads()

    def to(self, *_: Any, **__: Any) -> Lot:
        """Returns itself: `private.backward` loads its records and moves them to the model's device."""
        return self

    def __repr__(self) -> str:
        return f"Lot(step={self.step}, size={self.size}, expected_batch={self.expected_batch})"

    def __contains__(self, name: object) -> bool:
        return False  # whoever looks for a key or a tensor finds none

    def __bool__(self) -> bool:
        return True  # an empty draw is a draw

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"lot.{name} cannot be set: a lot is what was drawn; give private.draws other numbers")

    def _refuse(self, *_: Any) -> NoReturn:
        """Raises TypeError for a use of a lot as if it were a batch of records, and says what to do with a lot."""
        raise TypeError(
            "a lot is the handle of a private draw, not a batch of records.\n"
            "How many records it has is private; lot.expected_batch is public.\n"
            "Pass it to private.backward(lot), which runs the loss that you gave to Private on its records."
        )

    __len__ = __iter__ = __getitem__ = keys = __reduce__ = __copy__ = __deepcopy__ = _refuse


class Draws(Iterator[Lot]):
    """An iterator over `len` lots, each drawn and charged when it is asked for, and none ahead of the loop.

    It can be gone through once. Asked again, as a framework does at a new epoch, it goes on where it stands.

    Privacy:
        A lot is charged when it is drawn, used or not.

    Examples:
        >>> import torch, sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> private = sd.Private(torch.nn.Linear(3, 1), lambda model, x: model(x).square().sum(1), query)
        >>> data = torch.utils.data.TensorDataset(torch.randn(100, 3))
        >>> lots = private.draws(data, sd.Poisson(rate=0.1), steps=5, expected_batch=10)
        >>> len(lots), next(lots).step
        (5, 0)

    """

    def __init__(self, steps: int, made: Generator[Lot, None, None], bar: ProgressBar | None = None) -> None:
        self._steps, self._lots = steps, made
        self._bar, self._done = bar, 0

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Draws:
        return self

    def __next__(self) -> Lot:
        """Draws the next lot. Asking for it means that the loop is done with the one before, which the bar then counts."""
        if self._bar is not None:
            self._bar.update(self._done)
        try:
            lot = next(self._lots)
        except BaseException:
            self._close_bar()
            raise
        self._done += 1
        return lot

    def __repr__(self) -> str:
        return f"Draws: {self._done} of {self._steps} lots drawn"

    def close(self) -> None:
        """Ends the loop early: no further lot is drawn, and the workers that load records stop."""
        self._lots.close()
        self._close_bar()

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()


@dataclass
class DrawPhase:
    """The state of one call of `draws`: a number that no other call of the run has, and its position."""

    number: int
    source: tuple[str, int]  # sampler and size of the dataset
    position: int = 0
    memory: Callable[[], Any] | None = None  # what an informed sampler left behind
    ended: bool = False
    """Whether the call has made all its lots, or was left: nobody draws from it any more."""
    steps: int = 0
    """Lots that the call which began it asked for. A phase that is charged as a whole has no more."""
    noise: PhaseNoise | None = None
    """Noise that may be correlated between the steps; None unless the phase is charged as a whole."""
    is_checked: bool = False
    """Whether it is known that the query has a price with the draws of this phase."""

    def has_room_for(self, steps: int) -> bool:
        """Returns whether so many more draws are part of what the phase was charged for, or are charged one by one."""
        return self.noise is None or self.position + steps <= self.steps

    def begin_step(self, draw: Draw, query: Any, noise: Rng) -> Callable[[Event], Event]:
        """Returns what turns the event of a release on a lot, the last one of the phase, into its charge.

        In a phase that is charged as a whole it also takes the noise to this step, whether a release follows or not.

        Raises:
            Refusal: if the noise is correlated between steps and has no price with such draws.
            ValueError: if it has more bands than there are groups.

        """
        # The charge of one release may depend on the whole phase.
        amplify = draw.amplify_in(self.steps)
        # The first draw of a phase decides whether its noise can be priced at all; this is found out before anything is
        # released.
        if not self.is_checked:
            correlated = find_correlated_noise(query)
            if correlated is not None and draw.of_phase is None:
                raise Refusal(
                    f"{self.source[0]} draws lots in a way for which correlated noise has no price.\n"
                    "Plain Poisson draws, for one, would cost more than a product over the steps says.\n"
                    "Use CyclicPoisson with at least as many groups as bands, or FixedOrder."
                )
            if correlated is not None:
                amplify(correlated.as_event)  # refuses what no theorem covers, such as more bands than groups
            self.is_checked = True
        # A phase that is charged as a whole has noise streams of its own, which every step of it continues.
        if draw.of_phase is not None and self.noise is None:
            self.noise = PhaseNoise(noise.child("phase", self.number), self.steps)
        if self.noise is not None:
            self.noise.draw_step(self.position - 1)
        noise.phase = self.noise
        return amplify

    def describe_whole(self) -> dict[str, Any] | None:
        """Returns what a saved state must hold of a phase of lots that is charged as a whole; None for any other."""
        if self.noise is None:
            return None
        return {"steps": self.steps, "scale": self.noise.scale, "layout": self.noise.layout}

    def resume_whole(self, stream: Rng, saved: Mapping[str, Any]) -> None:
        """Makes this a phase of lots that was charged as a whole before, with its noise at the position of the saved
        state.
        """
        self.steps = saved["steps"]
        self.noise = PhaseNoise(stream, self.steps)
        # `position` counts the draws that were made, so the last of them is step position − 1.
        self.noise.step, self.noise.scale, self.noise.layout = self.position - 1, saved["scale"], saved["layout"]

    def end_here(self) -> None:
        """Ends a phase that is charged as a whole: its noise cannot go on, so draws after it begin a new one."""
        if self.noise is not None:
            self.steps = self.noise.steps = self.position


class DrawnLot(NamedTuple):
    """One draw of a phase, with what is needed to load it, to charge it and to test it."""

    draw: Draw  # as it is charged
    batches: LotBatches
    local_indices: NDArray[np.int64]  # those of its records that are held here, numbered from 0
    pass_name: str | None  # of the pass over the data that the draw belongs to; None if it belongs to none
    amplify: Callable[[Event], Event]  # from what is released on the draw to its charge
    nearby: tuple[BatchReader, int] | None = None  # reader and number of the records that tests take, if not all

    def make_lot(self, step: int, expected_batch: float, seal: Seal, most: int | None = None) -> Lot:
        """Returns the lot as the training loop sees it; opening its size is recorded by `seal`.

        `most` is as how many records' sum the lot's sums are rounded; by default that of one batch.
        """
        size = Sealed(len(self.draw.indices), seal)
        return Lot(step, size, expected_batch, self.batches, self.batches.most if most is None else most)


@dataclass(frozen=True, eq=False)
class DrawRequest:
    """What a call of `draws` asks for: `steps` lots of a dataset by a sampler."""

    dataset: MapStyle
    sampler: Sampler
    steps: int
    workers: int
    collate: Collate | None
    n: int
    expected: float  # the public number that sums are divided by
    load: BatchReader
    copies: int  # of one record, at most
    unit: str = RECORD  # what is drawn
    declared: str = ""  # the user's word for it
    cutting: LotCutting = ONE_PROCESS

    @staticmethod
    def create_checked(
        dataset: MapStyle,
        sampler: Sampler,
        steps: int,
        expected_batch: float | None,
        workers: int,
        collate: Collate | None,
        given: AnyUnit | None = None,
    ) -> DrawRequest:
        """Returns the request for lots that a call of `draws` makes, or raises Refusal, TypeError or ValueError if it
        cannot be met.
        """
        validate.sampler("sampler", sampler)
        if collate is not None:
            validate.function("collate", collate, "a function from a list of records to a batch")
        # Data owners hold some records each, so nothing may be asked about all records at once.
        n = count_records(dataset)
        if isinstance(dataset, Sites) and (given is not None or isinstance(sampler, Informed)):
            subject = "units are" if given is not None else f"{type(sampler).__name__} is"
            raise Refusal(
                f"{subject} about all records, and sites hold some of them each.\n"
                "No rank could look at all records.\n"
                "Draw records, with Poisson for example."
            )
        # Find the privacy units, and how often one record is in the dataset.
        unit = None if given is None else as_unit(given)
        members = None if unit is None else unit.members(dataset)
        copies = 1 if isinstance(unit, Unit) else count_most_copies(*_local_data_of(dataset, n))
        n = n if members is None else members.n
        # Check the numbers of the call.
        steps = validate.count("steps", steps)
        workers = validate.count("workers", workers, least=0, most=10_000)
        expected = sampler.expected_size(n)  # refuses what the sampler cannot draw from this dataset
        if expected_batch is not None:
            expected = validate.positive("expected_batch", expected_batch)
        if workers and isinstance(sampler, Informed):
            raise Refusal(
                f"workers={workers} was given, and {type(sampler).__name__} asks the records at the model of the "
                "moment.\n"
                "Its lots cannot be loaded ahead of the steps that they depend on.\n"
                "Use workers=0."
            )
        if workers and unit is not None:
            raise Refusal(
                f"workers={workers} was given beside a unit.\n"
                "Units are read by the process that trains.\n"
                "Use workers=0."
            )
        # The loader remembers the dataset as it is before the first record is read.
        load = Loader(dataset, collate, repeats_are_charged=copies > 1 or unit is not None)
        load.remember_unread()
        if unit is None or members is None:
            return DrawRequest(dataset, sampler, steps, workers, collate, n, expected, load, copies)
        of_units = UnitLoader(load, members)
        return DrawRequest(dataset, sampler, steps, 0, collate, n, expected, of_units, copies, unit.name, unit.declared)

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Names of what the records' contents show that a claim does not cover."""
        return (SOME_EQUAL,) if self.unit == RECORD and EqualRows.find_in(self.local_data[0]).has_some else ()

    def load_first(self, count: int) -> Any:
        """Returns a batch of the first `count` records that are held here, for the checks before the first draw."""
        return self.local_reader(np.arange(count) % self.local_data[1])

    @property
    def local_data(self) -> tuple[Any, int]:
        """The records that are held here, and their number."""
        return _local_data_of(self.dataset, self.n)

    @property
    def local_reader(self) -> BatchReader:
        """The reader of the records that are held here, numbered from 0."""
        return LocalRecords(self.load, self.dataset) if isinstance(self.dataset, Sites) else self.load

    def generate_draws(
        self, phase: DrawPhase, records: Records, root: Rng, chunk: int, query: Any, noise: Rng
    ) -> Iterator[DrawnLot]:
        """Yields the draws that the lots of a phase are made of, from the phase's position on; each, with its noise,
        advances the phase.

        A query whose noise has no price with such draws is refused before the first.
        """
        # Everything about draw k follows from the stream and k alone, so a resumed run makes the same draws.
        stream, start = root.child("draws", phase.number), phase.position
        memory = None if phase.memory is None else phase.memory()

        def make_draws() -> Iterator[Draw]:
            return islice(draw_lots(self.sampler, records, stream, start, memory), self.steps)

        # Workers make the same draws ahead of the loop, from the same stream.
        prefetch = None
        if self.workers:
            seed = root.child("workers", phase.number, start).seed()
            prefetch = Prefetch(self.dataset, make_draws, chunk, self.workers, self.collate, seed, self.cutting)
        for k, draw in enumerate(make_draws()):
            prefetched = None if prefetch is None else prefetch.batches_of_lot(k)
            # A record that is in the dataset several times is charged as a group.
            charged_draw = draw if self.copies == 1 else charge_as_group(draw, self.copies, self.sampler)
            # Units choose some of their records at random; each draw has a stream of its own for that.
            load = self.load
            if isinstance(load, UnitLoader):
                load = load.with_stream(root.child("records of units", phase.number, start + k))
            local_indices = (
                self.dataset.to_local_places(draw.indices) if isinstance(self.dataset, Sites) else draw.indices
            )
            # The phase is part of the name: the first passes of two calls of `draws` touch the same records.
            pass_name = None if draw.cover is None else f"{phase.number}/{draw.cover}"
            # The phase moves on before the lot is handed out: a lot that was drawn counts even if the loop breaks off
            # inside it.
            phase.position, phase.memory = phase.position + 1, draw.memory
            lot_batches = LotBatches(draw.indices, chunk, load, self.n, prefetched, self.cutting)
            amplify = phase.begin_step(charged_draw, query, noise)
            # Tests exchange records of a lot for others. Of a stream, those are in the shards that the lot opens anyway.
            nearby = None
            window = self.dataset.window_of(draw.indices) if isinstance(self.dataset, Shards) else None
            if window is not None and not isinstance(load, UnitLoader):
                local_indices, nearby = draw.indices - window.first, (LocalRecords(load, window), window.count)
            yield DrawnLot(charged_draw, lot_batches, local_indices, pass_name, amplify, nearby)


def _local_data_of(dataset: Any, n: int) -> tuple[Any, int]:
    return (dataset.local_records, len(dataset.local_records)) if isinstance(dataset, Sites) else (dataset, n)


def check_physical_batch(records: int | None) -> int | None:
    """Returns the physical batch that lots are requested with, if one was given; refuses more records than can be added
    up in float32.
    """
    if records is not None:
        rounding_slack(validate.count("physical_batch", records))
    return records

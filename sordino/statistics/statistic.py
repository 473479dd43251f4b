"""Statistics of the data: bounded sums over the records, each released once with noise.

    mean = sd.ask(Mean(bound=1.0, noise=Gaussian(20.0)), data, ledger=ledger)

A statistic is a few sums Σ_i h(x_i) with ‖h(x)‖ ≤ C for every record x, and a function of their noisy values. It is
asked of the whole data, or of one draw of a sampler; all its sums are then on that one draw. What it gives back is
public.

Privacy: each sum is one Gaussian or Laplace release with sensitivity C; the ledger composes them, amplifies them once
by the draw, and composes that with everything else done to the data. The function of the noisy sums is post-processing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from sordino import validate
from sordino.distributed.agreement import agree_within_group
from sordino.distributed.claim_facts import ClaimFacts
from sordino.distributed.process_group import new_rng
from sordino.events import Event
from sordino.ledger import claims
from sordino.ledger.ledger import Ledger
from sordino.lots.data_digest import add_records
from sordino.lots.loading import Loader, MapStyle, count_records, cut_into_batches
from sordino.lots.repeated_records import charge_as_group, count_most_copies
from sordino.refusal import Refusal
from sordino.release.noise import Noise
from sordino.release.release import release
from sordino.release.sealed import Sealed
from sordino.release.sensitivity import Sensitivity
from sordino.rng.streams import Rng
from sordino.sampling.full import Full
from sordino.sampling.sampler import Draw, Sampler
from sordino.sampling.size_disclosure import numbers_telling_size

V_co = TypeVar("V_co", covariant=True)
V = TypeVar("V")


class Sum(Protocol):
    """A sum over records to which each contributes a bounded amount."""

    @property
    def sensitivity(self) -> Sensitivity:
        """How far one record can move the sum."""
        ...

    @property
    def noise(self) -> Noise:
        """The noise that is added to the sum."""
        ...

    def total(self, rows: Tensor) -> Tensor:
        """Returns Σ_i h(x_i) over rows of shape (B, …) in float64; each row's h looks at that row alone."""
        ...


class Statistic(Protocol[V_co]):
    """A statistic: sums over the records, and what is made of their noisy values."""

    @property
    def sums(self) -> Sequence[Sum]:
        """The sums that are released, one after the other, on one draw."""
        ...

    def value(self, noisy: Sequence[Tensor], records: Callable[[], float]) -> V_co:
        """Returns the result from the noisy sums; asking `records()` for the public divisor may tell N."""
        ...


def ask(
    statistic: Statistic[V],
    data: Tensor | MapStyle,
    *,
    ledger: Ledger,
    sampler: Sampler | None = None,
    expected_batch: float | None = None,
    physical_batch: int = 1024,
    seed: int | None = None,
    rng: Rng | None = None,
) -> V:
    """Asks a statistic of a tensor of rows or of a dataset's first column, and enters its releases in the ledger.

    Args:
        statistic: `Mean`, `Count`, `Normaliser`, `PCA`, `Ranges` or another.
        data: rows, or a dataset whose first column they are.
        ledger: the one that everything done to these records goes into.
        sampler: who is asked; all records by default.
        expected_batch: the public number that sums are divided by. Without it a statistic that divides uses the
            sampler's expectation for N records, and the claim says that it does not cover the dataset's size.
        physical_batch: records processed at once.
        seed: for tests. Without it the randomness is the operating system's.
        rng: a stream that the caller keeps; asked again with the same stream, a statistic has new noise.

    Returns:
        What the statistic makes of its noisy sums: a tensor, a number, a module.

    Privacy:
        One release of each of its sums, entered in the ledger. What is returned may be used for anything.

    Examples:
        >>> from sordino import Gaussian, Ledger
        >>> from sordino.statistics import Mean
        >>> ledger = Ledger()
        >>> ask(Mean(bound=1.0, noise=Gaussian(5.0)), torch.rand(1000, 3), ledger=ledger, expected_batch=1000).shape
        torch.Size([3])
        >>> print(ledger.claim(delta=1e-5))
        (0.726, 1e-05)-differential privacy
          neighbours   add-or-remove-one: one record added or removed
          accountant   PLD
          event        Gaussian(5)

    """
    # Check everything before a record is read.
    _check_statistic(statistic, sampler)
    validate.instance("ledger", ledger, Ledger, "a sordino.Ledger, the one that everything done to this data goes into")
    dataset: Any = as_dataset(data) if isinstance(data, Tensor) else data
    n, sampler = count_records(dataset), Full() if sampler is None else sampler
    load = Loader(dataset, None)
    expected = sampler.expected_size(n)  # refuses what the sampler cannot draw from this dataset
    given = None if expected_batch is None else validate.positive("expected_batch", expected_batch)

    def public_count() -> float:
        """Returns the number of records by which a statistic may divide; the ledger names a size that is not public."""
        if given is not None:
            return given
        if not sampler.size_is_public:
            ledger.disclose(claims.DATASET_SIZE)
        return expected

    if rng is not None:
        validate.instance("rng", rng, Rng, "a sordino.rng.streams.Rng")
    # A seed can be guessed, so the claim does not cover it. Ranks must ask the same of the same records.
    if seed is not None:
        ledger.disclose(claims.SEED)
    if rng is None and seed is None:

        def add_facts(facts: ClaimFacts, key: bytes) -> None:
            """Adds everything about a statistic and its data that the ranks must agree on."""
            facts.add("statistic", statistic)
            facts.add("sampler", sampler)
            facts.add("expected_batch", given)
            facts.add("number of records", n)
            facts.add("entries of the ledger", ledger.length)
            add_records(facts, key, load, n)

        agree_within_group(add_facts)
    # A key of its own for this question; with a seed it can be repeated.
    if rng is None:
        rng = new_rng() if seed is None else Rng.from_seed(validate.count("seed", seed, least=0))
    for name in numbers_telling_size(sampler, n, given):
        ledger.disclose(name)
    # Draw the records and charge the draw before anything is computed on it.
    stream = rng.split()
    draw = charge_as_group(next(sampler.draws(n, stream.child("draws"), 0)), count_most_copies(dataset, n), sampler)
    ledger.uses(data)
    section, noise = ledger.new_section(), stream.child("noise")
    _charge_draw(ledger, draw, statistic, section)
    # Add up batch by batch; each record contributes a bounded amount.
    shape = _first_column(load(np.zeros(1, dtype=np.int64)))[:0]  # of no records: where the sums begin
    totals = [part.total(shape) for part in statistic.sums]
    for indices in cut_into_batches(draw.indices, validate.count("physical_batch", physical_batch)):
        rows = _first_column(load(indices))
        for part, total in zip(statistic.sums, totals, strict=True):
            total += part.total(rows)
    # Release each sum with noise and enter its event. What follows is post-processing.
    ledger.record_coordinates(max((total.numel() for total in totals), default=0))
    noisy = []
    for part, total in zip(statistic.sums, totals, strict=True):
        released = release(Sealed({"sum": total}, ledger), part.sensitivity, part.noise, noise)
        ledger.release(released.event, section)
        noisy.append(released.value["sum"])
    ledger.close(section)
    return statistic.value(noisy, public_count)


def dry_ask(statistic: Statistic[object], sampler: Sampler | None = None, dataset_size: int = 1) -> Event:
    """Returns the event of asking a statistic, by releasing the sums of no records; for calibration together with
    `dry_run`.

    Args:
        statistic: what would be asked.
        sampler: of whom; all records by default.
        dataset_size: how many records there are; `FixedSize` asks.

    Privacy:
        Nothing is released and no data is touched.

    Examples:
        >>> from sordino import Gaussian, Poisson
        >>> from sordino.statistics import Mean
        >>> dry_ask(Mean(1.0, Gaussian(5.0)), Poisson(0.1))
        Poisson(rate=0.1, event=Gaussian(multiplier=5.0))

    """
    _check_statistic(statistic, sampler)
    # A ledger of its own and a key of zeros: nothing is released, and only the event is wanted.
    ledger, chosen = Ledger(), Full() if sampler is None else sampler
    n = validate.count("dataset_size", dataset_size)
    _charge_draw(ledger, next(chosen.draws(n, Rng(bytes(32)), 0)), statistic, "")
    return ledger.event()


def _check_statistic(statistic: Any, sampler: Any) -> None:
    """Raises TypeError unless the arguments of `ask` are a statistic and a sampler or None."""
    need = "a statistic such as sd.statistics.Mean(1.0, sd.Gaussian(5.0))"
    validate.has_methods("statistic", statistic, ("sums", "value"), need)
    if sampler is not None:
        validate.sampler("sampler", sampler)


def _charge_draw(ledger: Ledger, draw: Draw, statistic: Statistic[object], section: str) -> None:
    """Charges a draw with what the statistic would release on it."""
    cover = None if draw.cover is None else str(draw.cover)
    ledger.open(draw.amplify_in(1), lambda: _dry_event(statistic), cover, draw.bins, section)


def _dry_event(statistic: Statistic[object]) -> Event:
    """Returns the event of a statistic's releases, by releasing sums of no records in a ledger of their own."""
    ledger, rng = Ledger(), Rng(bytes(32))
    for part in statistic.sums:
        ledger.release(release(Sealed({"sum": torch.zeros(1)}), part.sensitivity, part.noise, rng).event)
    return ledger.event()


def as_dataset(data: Tensor) -> torch.utils.data.TensorDataset:
    """Returns the rows of a tensor as a dataset, of which a statistic is asked."""
    if data.dim() == 0:
        raise Refusal(
            "a tensor without dimensions was given.\n"
            "A statistic is of rows, one per record.\n"
            "Give a tensor with one row per record."
        )
    return torch.utils.data.TensorDataset(data)


def _first_column(batch: Any) -> Tensor:
    """Returns the first column of a batch, of which a statistic is asked."""
    rows = batch[0] if isinstance(batch, tuple | list) else batch
    if not isinstance(rows, Tensor):
        raise Refusal(
            f"the first column of the data is a {type(rows).__name__}.\n"
            "A statistic is of numbers.\n"
            "Give a tensor with a row per record."
        )
    return rows

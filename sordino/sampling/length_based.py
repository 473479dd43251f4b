"""Length-based sampling: a record's probability depends on its own gradient length.

It is the form of sorting that has a guarantee:

    record x is in the lot with probability p(‖g(x)‖) ≤ most, by its own coin

Lengths are taken every `refresh` lots, at the model of that moment, and stay as they were in between. What is known in
advance, or was released, may enter p: a threshold, a schedule. What is divided by is a fixed public number.

Privacy: p depends on the record and on public numbers alone, so the draw is dominated by Poisson sampling at rate
`most` (`record_access.py`), and is charged as that: rare records pay for the rate of the frequent ones. Stale lengths
cost nothing more, since the model they were taken at was public. Norms are rounded, and the last bit may differ with
the other records of a chunk: a record whose length falls on a threshold to that bit is decided by the rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino import events, validate
from sordino.former_names import former_method
from sordino.refusal import Refusal
from sordino.registry import Declaration, Example, Method
from sordino.rng.streams import Rng
from sordino.sampling.record_access import Lengths, Mechanism, Rate, Records, indistinguishable_records
from sordino.sampling.sampler import Draw


@dataclass(frozen=True)
class ByLength:
    """Draws each record with probability `rate(length)`, cut at `most`, which is what the claim counts with.

    `rate` takes an array of lengths to one of probabilities, each on its own; `Band` is one.

    Args:
        rate: from gradient lengths to probabilities, each on its own.
        most: the largest probability; higher ones are cut to it.
        refresh: lengths are measured anew after so many lots.

    Privacy:
        Each record's coin depends on that record alone, so the lot is charged as `Poisson(most)`.

    Examples:
        >>> import sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> sd.dry_run(query, sd.ByLength(sd.Band(1.0, 2.0, inside=0.1), most=0.1), dataset_size=1000, steps=100)
        Repeat(event=Poisson(rate=0.1, event=Gaussian(multiplier=1.1)), count=100)

    """

    rate: Rate
    most: float
    refresh: int = 1

    def __post_init__(self) -> None:
        if not callable(self.rate):
            raise TypeError(f"rate={self.rate!r}: must be a function from lengths to probabilities, such as Band(…)")
        object.__setattr__(self, "most", validate.rate("most", self.most))
        object.__setattr__(self, "refresh", validate.count("refresh", self.refresh))

    @property
    def size_is_public(self) -> bool:
        """No: the neighbour has one record more or fewer."""
        return False

    def expected_size(self, n: int) -> float:
        """Returns the most it can be, most × n; a better public guess is given as `expected_batch`."""
        return self.most * n

    expected = former_method("expected", "expected_size")

    def draws(self, n: int, rng: Rng, start: int) -> Iterator[Draw]:
        """Yields draws of records that are all alike, for a dry run."""
        return self.draws_from(indistinguishable_records(n), rng, start, None)

    def draws_from(self, records: Records, rng: Rng, start: int, memory: Any) -> Iterator[Draw]:
        """Yields draws with independent coins for every lot."""
        return _draw_by_coins(records, rng, start, memory, self.refresh, self.most, lambda _: self.rate, 0.0)


@dataclass(frozen=True)
class Band:
    """A rate that is `inside` for lengths from `bottom` up to `top`, and `outside` for all others.

    Args:
        bottom: lengths from here on
        top: up to here
        inside: have this rate,
        outside: and all others this one.

    Examples:
        >>> import numpy as np
        >>> Band(1.0, 2.0, inside=0.1, outside=0.01)(np.array([0.5, 1.5], dtype=np.float32))
        array([0.01, 0.1 ])

    """

    bottom: float
    top: float
    inside: float
    outside: float = 0.0

    def __call__(self, lengths: Lengths) -> NDArray[np.float64]:
        """Returns the probability of each length."""
        return np.where((lengths >= self.bottom) & (lengths < self.top), self.inside, self.outside)


@dataclass(frozen=True)
class Threshold:
    """Draws records at least `threshold` long with probability `high`, and shorter ones with probability `low`.

    The threshold is a public number, or a mechanism that releases one whenever the lengths are taken anew, such as
    `PrivateQuantile(0.75, ceiling=10.0, epsilon=0.05)`; each of its releases is charged.

    Args:
        threshold: a public length, or a mechanism that releases one.
        low: probability of shorter records.
        high: probability of longer ones, which the claim counts with.
        refresh: lengths are measured anew after so many lots.

    Privacy:
        Charged as `Poisson(high)`, and for every release of the threshold.

    Examples:
        >>> import sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> sd.dry_run(query, sd.Threshold(1.0, low=0.01, high=0.1), dataset_size=1000, steps=100)
        Repeat(event=Poisson(rate=0.1, event=Gaussian(multiplier=1.1)), count=100)

    """

    threshold: float | Mechanism
    low: float
    high: float
    refresh: int = 1

    def __post_init__(self) -> None:
        """Raises an error for numbers that are out of range, or where nobody would ever be drawn."""
        # A threshold may be a number or a mechanism that releases one.
        if not callable(self.threshold):
            object.__setattr__(self, "threshold", validate.non_negative("threshold", self.threshold))
        for name in ("low", "high"):
            value = getattr(self, name)
            # Unlike other rates, one of these two may be 0: those records are never drawn.
            object.__setattr__(self, name, 0.0 if value == 0 else validate.rate(name, value))
        object.__setattr__(self, "refresh", validate.count("refresh", self.refresh))
        # Rates of zero on both sides would draw nobody and still charge for it.
        if not self._highest_rate:
            raise ValueError("low=0.0, high=0.0: nobody would ever be drawn; one of them must be > 0")

    @property
    def _highest_rate(self) -> float:
        return max(self.low, self.high)

    @property
    def size_is_public(self) -> bool:
        """No: the neighbour has one record more or fewer."""
        return False

    def expected_size(self, n: int) -> float:
        """Returns the most it can be; a better public guess is given as `expected_batch`."""
        return self._highest_rate * n

    expected = former_method("expected", "expected_size")

    def draws(self, n: int, rng: Rng, start: int) -> Iterator[Draw]:
        """Yields draws of records that are all alike, for a dry run."""
        return self.draws_from(indistinguishable_records(n), rng, start, None)

    def draws_from(self, records: Records, rng: Rng, start: int, memory: Any) -> Iterator[Draw]:
        """Yields length-based draws with independent coins for every lot, by a threshold on the records' gradient
        lengths.
        """
        return _draw_by_coins(
            records, rng, start, memory, self.refresh, self._highest_rate, self._rate_at, self.threshold
        )

    def _rate_at(self, threshold: float) -> Rate:
        return Band(threshold, np.inf, inside=self.high, outside=self.low)


def _draw_by_coins(
    records: Records,
    rng: Rng,
    start: int,
    memory: Any,
    refresh: int,
    most: float,
    rate_at: Callable[[float], Rate],
    threshold: float | Mechanism,
) -> Iterator[Draw]:
    """Yields length-based draws, in which every record flips its own coin with a probability by its gradient length.

    Lengths are measured every `refresh` draws; if `threshold` is a mechanism, it then releases a number.
    """
    threshold_now = 0.0 if callable(threshold) else threshold
    # A resumed run goes on with the lengths and the number that its checkpoint kept.
    if memory is not None:
        records.restore_lengths(memory["lengths"])
        threshold_now = memory["known"]
    elif start % refresh:
        raise Refusal(
            f"draw {start} uses the lengths taken before it, which are not there.\n"
            "They were measured by earlier draws of the run.\n"
            "Resume from a checkpoint."
        )
    k = start
    while True:
        # Lengths are taken anew every `refresh` lots at the current model; in between the old ones are used, which is
        # as private, because a record's coin depends on its own length alone.
        if k % refresh == 0:
            records.measure()
            if callable(threshold):
                threshold_now = records.release(threshold, rng.child(k, "released"))
        # Charged as Poisson(most), whatever the rate computes.
        rows = records.flip(rate_at(threshold_now), most, rng.child(k))
        yield Draw(rows, partial(events.Poisson, most), memory=partial(_memory_of_draw, records, threshold_now))
        k += 1


def _memory_of_draw(records: Records, known: float) -> dict[str, Any]:
    return {"lengths": records.save_lengths(), "known": known}


DECLARED = Declaration(
    (Band, ByLength, Threshold),
    methods=(
        Method(
            "threshold",
            "records with long gradients take part more often, and are charged for it",
            sampler=lambda run, own: Threshold(own["threshold"], own["low"], own["high"], int(own["refresh"])),
            parameters=lambda run: {
                "threshold": run.bound,
                "low": run.rate / 2,
                "high": min(1.0, 2 * run.rate),
                "refresh": run.lots_in_a_pass,
            },
            example="sd.Threshold(1.0, low=0.1, high=0.2, refresh=10)",
        ),
    ),
    examples=(
        Example(
            "by-length",
            "gradients of a middle length are drawn more often, each by its own coin: with a guarantee",
            sampler="sd.ByLength(sd.Band(0.5, 5.0, inside=0.2, outside=0.05), most=0.2, refresh=10)",
        ),
        Example(
            "threshold-released",
            "the threshold is a quantile of all lengths, released privately and charged",
            sampler="sd.Threshold(sd.PrivateQuantile(0.75, ceiling=10.0, epsilon=0.05), low=0.1, high=0.2, refresh=10)",
        ),
        Example(
            "threshold-adaptive",
            "threshold sampling with a bound that follows a quantile privately: with a guarantee",
            query="sd.NoisySum("
            "sd.AdaptiveQuantile(bound=1.0, quantile=0.5, count_noise=2.5), sd.Gaussian(multiplier=1.1))",
            sampler="sd.Threshold(1.0, low=0.1, high=0.2, refresh=10)",
        ),
        Example(
            "threshold-logarithmic",
            "threshold sampling with the logarithmic schedule for a bound: both public, with a guarantee",
            query="sd.NoisySum(sd.Scheduled(sd.schedules.Logarithmic(2.0, 0.5, 10)), sd.Gaussian(multiplier=1.1))",
            sampler="sd.Threshold(1.0, low=0.1, high=0.2, refresh=10)",
        ),
    ),
)

"""Sampler checks: lots have the distribution that their event takes for granted.

    Poisson     every record by its own coin: sizes, their spread, each record's count, lots that follow each other
    FixedSize   lots of one size, each record equally often
    a pass      every record in at most one lot of it

Of samplers that ask the records only what they say is known, and nothing is tested here.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, chi2

from sordino import validate
from sordino.auditing import e_values
from sordino.auditing.verdict import SelftestFinding
from sordino.events import FixedSize, Gaussian, Poisson
from sordino.rng.streams import Rng
from sordino.sampling.sampler import Draw, Informed, Sampler

_MOST_RECORDS = 2000
_COINS = 60_000_000
_HEADS = 100_000
"""Records drawn, over all lots, at which a rate that is 2 % off is seen."""
_WANTED = 60
"""Times that each record should come up: one that never does is then seen."""


def check_sampler(sampler: Sampler | None, n: int, rng: Rng | None = None) -> list[SelftestFinding]:
    """Runs the sampler checks of a selftest on a few hundred lots, or more, and returns what was found."""
    if sampler is None:
        return [SelftestFinding("sampler", "none was given")]
    validate.sampler("sampler", sampler)
    if isinstance(sampler, Informed):
        return [SelftestFinding("sampler", f"{type(sampler).__name__} asks the records")]
    stream = Rng.from_entropy() if rng is None else rng
    # The event of a first draw says which theorem is used, and so what must be tested.
    first = next(iter(sampler.draws(n, stream, 0)))
    event = first.amplify(Gaussian(1.0))
    if isinstance(event, Poisson):
        return _check_poisson(sampler, event.rate, n, stream)
    if isinstance(event, FixedSize):
        return _check_fixed_size(sampler, event, n, stream)
    if first.cover is not None:
        return _check_passes(sampler, n, stream)
    has_everybody = len(np.unique(first.indices)) == n
    found = "every record is in every lot" if has_everybody else "what it amounts to is not known here"
    return [SelftestFinding("sampler", found, holds=True if has_everybody else None)]


def _check_poisson(sampler: Sampler, rate: float, n: int, rng: Rng) -> list[SelftestFinding]:
    # Enough lots to see a rate that is 2 % off, and a record that never comes up.
    """Checks that a Poisson sampler draws every record by a coin of its own, of the rate that the event states."""
    records = min(n, _MOST_RECORDS)
    lots = int(min(max(200, _WANTED / rate, _HEADS / (records * rate)), _COINS / records))
    lots += lots % 2
    inside = np.zeros((lots, records), dtype=bool)
    for row, draw in zip(inside, sampler.draws(records, rng, 0), strict=False):
        row[draw.indices] = True
    # Coins that depend on each other show in sizes, in lots that follow and in records side by side.
    sizes, counts = inside.sum(axis=1), inside.sum(axis=0)
    followed = int((inside[0::2] & inside[1::2]).sum())
    company = int((inside[:, 0::2][:, : records // 2] & inside[:, 1::2][:, : records // 2]).sum())
    log_e_values = {
        "rate": e_values.log_e_of_count(int(sizes.sum()), lots * records, rate),
        "spread of sizes": e_values.log_e_of_p_value(_p_value_of_spread(sizes, records, rate)),
        "each record": e_values.log_e_of_p_value(_p_value_of_extremes(counts, lots, rate)),
        "lots that follow": e_values.log_e_of_count(followed, lots // 2 * records, rate * rate),
        "records beside each other": e_values.log_e_of_count(company, lots * (records // 2), rate * rate),
    }
    if rate == 1.0:
        log_e_values = {"rate": log_e_values["rate"]}
    return [
        SelftestFinding(f"sampler, {name}", f"{lots} lots of {records} records", log_e=log_e)
        for name, log_e in log_e_values.items()
    ]


def _check_fixed_size(sampler: Sampler, event: FixedSize, n: int, rng: Rng) -> list[SelftestFinding]:
    """Checks that a fixed-size sampler's lots have the stated size and that each record comes up equally often."""
    lots = int(min(max(200, _WANTED * n / event.batch_size), _HEADS / event.batch_size))
    counts, right = np.zeros(n, dtype=np.int64), event.dataset_size == n
    for draw in itertools.islice(sampler.draws(n, rng, 0), lots):
        right = right and len(draw.indices) == len(np.unique(draw.indices)) == event.batch_size
        counts[draw.indices] += 1
    return [
        SelftestFinding("sampler, size", f"{lots} lots of {event.batch_size} different records", holds=right),
        SelftestFinding(
            "sampler, each record",
            f"{lots} lots",
            log_e=e_values.log_e_of_p_value(_p_value_of_extremes(counts, lots, event.batch_size / n)),
        ),
    ]


def _check_passes(sampler: Sampler, n: int, rng: Rng) -> list[SelftestFinding]:
    """Checks that a sampler of passes has a record in at most one lot of a pass and that nobody is left out of two
    passes.
    """
    records = min(n, _MOST_RECORDS)
    covers: dict[int | None, list[Draw]] = {}
    for draw in sampler.draws(records, rng, 0):
        if draw.cover not in covers and len(covers) == 3:
            break
        covers.setdefault(draw.cover, []).append(draw)
    once = all(
        np.bincount(np.concatenate([d.indices for d in lots]), minlength=records).max() <= 1 for lots in covers.values()
    )
    seen = len(np.unique(np.concatenate([d.indices for lots in covers.values() for d in lots]))) == records
    return [SelftestFinding("sampler, passes", "each record at most once in a pass, nobody never", holds=once and seen)]


def _p_value_of_spread(sizes: NDArray[np.int64], n: int, rate: float) -> float:
    """Returns the two-sided p-value of the variance of the sizes of a Poisson sampler's lots.

    It is that of a sum of squares beside the binomial's, as χ² with its own fourth moment.
    """
    variance = n * rate * (1 - rate)
    if variance <= 0:
        return 1.0
    statistic = float(np.square(sizes - n * rate).sum() / variance)
    # Var of ((X − np)²/v) for a binomial: 2 + (1 − 6q(1 − q))/v; the χ² that has it has fewer degrees of freedom.
    factor = (2 + (1 - 6 * rate * (1 - rate)) / variance) / 2
    freedom = len(sizes) / factor
    below = float(chi2.cdf(statistic / factor, freedom))
    above = float(chi2.sf(statistic / factor, freedom))
    return max(min(1.0, 2 * min(below, above)), 1e-300)


def _p_value_of_extremes(counts: NDArray[np.int64], lots: int, rate: float) -> float:
    """Returns the p-value of the records that a sampler drew least and most often, for all records together."""
    least_often = float(binom.cdf(int(counts.min()), lots, rate))
    most_often = float(binom.sf(int(counts.max()) - 1, lots, rate))
    return min(1.0, 2 * len(counts) * min(least_often, most_often)) or math.ulp(0.0)

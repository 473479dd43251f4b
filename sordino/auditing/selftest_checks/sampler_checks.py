"""Sampler checks: lots have the distribution that their event takes for granted.

A sampler brings its own test: its method `check_draws` is given a `DrawChecks` and calls the check that belongs to it, or
returns findings of its own. What is compared is always the event that a draw is charged by, never what the sampler says
of itself.

    check_everybody      every record is in every lot
    check_coins          every record by its own coin: sizes, their spread, each record's count, lots that follow each other
    check_cyclic_coins   the same within the groups that take turns
    check_fixed_size     lots of one size, each record equally often
    check_largest_size   no lot is larger than the event says
    check_passes         every record in at most one lot of a pass
    check_fixed_order    the same disjoint lots in every pass

A user's sampler without this method is tested by the check that its event calls for, if one is known. Of samplers that ask
the records only what they say is known, and nothing is tested here.
"""

from __future__ import annotations

import itertools
import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, chi2

from sordino import validate
from sordino.auditing import e_values
from sordino.auditing.verdict import SelftestFinding
from sordino.events import CyclicPoisson, Event, FixedOrder, FixedSize, Gaussian, Poisson, TruncatedPoisson
from sordino.rng.streams import Rng
from sordino.sampling.sampler import Draw, Informed, Sampler

_MOST_RECORDS = 2000
_COINS = 60_000_000
_HEADS = 100_000
"""Records drawn, over all lots, at which a rate that is 2 % off is seen."""
_WANTED = 60
"""Times that each record should come up: one that never does is then seen."""
_LOTS = 200
"""Lots that are looked at where each of them must keep a rule."""
_PASSES, _MOST_LOTS = 3, 20_000
"""Passes over the data that are looked at, and the most lots that they may have."""


def check_sampler(sampler: Sampler | None, n: int, rng: Rng | None = None) -> list[SelftestFinding]:
    """Runs the sampler checks of a selftest on a few hundred lots, or more, and returns what was found."""
    if sampler is None:
        return [SelftestFinding("sampler", "none was given")]
    validate.sampler("sampler", sampler)
    if isinstance(sampler, Informed):
        return [SelftestFinding("sampler", f"{type(sampler).__name__} asks the records")]
    checks = DrawChecks(sampler, n, Rng.from_entropy() if rng is None else rng)
    # A sampler knows best how its lots should look; the checks compare that with what is charged.
    bring = getattr(sampler, "check_draws", None)
    return checks.check_by_event() if bring is None else list(bring(checks))


class DrawChecks:
    """The checks of draws that a sampler can choose from, for its own draws of `n` records.

    Args:
        sampler: whose draws are checked.
        n: records of the dataset.
        rng: the random stream of the draws.

    Examples:
        >>> import sordino as sd
        >>> found = sd.Full().check_draws(DrawChecks(sd.Full(), 100, Rng.from_seed(0)))
        >>> [finding.holds for finding in found]
        [True]

    """

    def __init__(self, sampler: Sampler, n: int, rng: Rng) -> None:
        self.sampler, self.n, self.rng = sampler, n, rng

    @cached_property
    def first(self) -> Draw:
        """The first draw, whose event says what is claimed of all of them."""
        return next(iter(self.sampler.draws(self.n, self.rng, 0)))

    def event_of_phase(self, steps: int = 1) -> Event:
        """Returns the event that a Gaussian release on a draw is charged by, in a phase of so many steps."""
        return self.first.amplify_in(steps)(Gaussian(1.0))

    def check_by_event(self) -> list[SelftestFinding]:
        """Runs the check that the event of a draw calls for, of a sampler that brings none."""
        event = self.event_of_phase()
        if isinstance(event, Poisson):
            return self.check_coins()
        if isinstance(event, FixedSize):
            return self.check_fixed_size()
        if isinstance(event, CyclicPoisson):
            return self.check_cyclic_coins()
        if isinstance(event, FixedOrder):
            return self.check_fixed_order()
        if self.first.cover is not None:
            return self.check_passes()
        # An event without amplification is true of any lots; only a full batch is more than that.
        has_everybody = len(np.unique(self.first.indices)) == self.n
        found = "every record is in every lot" if has_everybody else "what it amounts to is not known here"
        return [SelftestFinding("sampler", found, holds=True if has_everybody else None)]

    def check_everybody(self) -> list[SelftestFinding]:
        """Checks that a full-batch sampler puts every record in every lot."""
        lots = itertools.islice(self.sampler.draws(self.n, self.rng, 0), 3)
        holds = all(len(np.unique(draw.indices)) == self.n for draw in lots)
        return [SelftestFinding("sampler", "every record is in every lot", holds=holds)]

    def check_coins(self) -> list[SelftestFinding]:
        """Checks that a sampler draws every record by a coin of its own, of the rate that the event states."""
        event = self.event_of_phase()
        if not isinstance(event, Poisson):
            return [_charged_otherwise(event, "Poisson")]
        # Enough lots to see a rate that is 2 % off, and a record that never comes up.
        rate, records = event.rate, min(self.n, _MOST_RECORDS)
        lots = int(min(max(200, _WANTED / rate, _HEADS / (records * rate)), _COINS / records))
        lots += lots % 2
        inside = np.zeros((lots, records), dtype=bool)
        for row, draw in zip(inside, self.sampler.draws(records, self.rng, 0), strict=False):
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
        # At rate 1 nothing is random, and only the rate can be wrong.
        if rate == 1.0:
            log_e_values = {"rate": log_e_values["rate"]}
        return [
            SelftestFinding(f"sampler, {name}", f"{lots} lots of {records} records", log_e=log_e)
            for name, log_e in log_e_values.items()
        ]

    def check_cyclic_coins(self) -> list[SelftestFinding]:
        """Checks that a cyclic sampler draws a record in every so many steps only, and then by a coin of the rate that
        the event states.
        """
        event = self.event_of_phase()
        if not isinstance(event, CyclicPoisson):
            return [_charged_otherwise(event, "CyclicPoisson")]
        # A record's own steps come once in a cycle; enough cycles that a record which never comes up is seen.
        records, groups, rate = min(self.n, _MOST_RECORDS), event.groups, event.rate
        cycles = int(min(max(50, _WANTED / rate, _HEADS / (records * rate)), _COINS / (records * groups)))
        turn_of, counts = np.full(records, -1), np.zeros(records, dtype=np.int64)
        keeps_turn = True
        for k, draw in enumerate(itertools.islice(self.sampler.draws(records, self.rng, 0), cycles * groups)):
            turns = turn_of[draw.indices]
            keeps_turn = keeps_turn and bool(((turns == -1) | (turns == k % groups)).all())
            turn_of[draw.indices] = k % groups
            counts[draw.indices] += 1
        # Over whole cycles every record has flipped its coin equally often, whichever group it is in.
        about = f"{cycles} cycles of {groups} lots, {records} records"
        return [
            SelftestFinding("sampler, turns", "a record comes back after whole cycles only", holds=keeps_turn),
            SelftestFinding(
                "sampler, rate", about, log_e=e_values.log_e_of_count(int(counts.sum()), cycles * records, rate)
            ),
            SelftestFinding(
                "sampler, each record",
                about,
                log_e=e_values.log_e_of_p_value(_p_value_of_extremes(counts, cycles, rate)),
            ),
        ]

    def check_fixed_size(self) -> list[SelftestFinding]:
        """Checks that a sampler's lots have the size that the event states and that each record comes up equally often."""
        event, n = self.event_of_phase(), self.n
        if not isinstance(event, FixedSize):
            return [_charged_otherwise(event, "FixedSize")]
        lots = int(min(max(200, _WANTED * n / event.batch_size), _HEADS / event.batch_size))
        counts, right = np.zeros(n, dtype=np.int64), event.dataset_size == n
        # A record that is in a lot twice would count for two.
        for draw in itertools.islice(self.sampler.draws(n, self.rng, 0), lots):
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

    def check_largest_size(self) -> list[SelftestFinding]:
        """Checks that a truncating sampler draws no lot larger than its event states; how it was cut is not tested."""
        event = self.event_of_phase()
        if not isinstance(event, TruncatedPoisson):
            return [_charged_otherwise(event, "TruncatedPoisson")]
        lots = itertools.islice(self.sampler.draws(self.n, self.rng, 0), _LOTS)
        holds = all(len(draw.indices) <= event.max_batch for draw in lots)
        return [
            SelftestFinding("sampler, largest size", f"{_LOTS} lots of at most {event.max_batch} records", holds=holds),
            SelftestFinding("sampler, cut", "whether lots are cut at random is not tested"),
        ]

    def check_passes(self) -> list[SelftestFinding]:
        """Checks that a sampler puts a record in at most one lot of a pass and leaves nobody out of all passes."""
        records = min(self.n, _MOST_RECORDS)
        # Lots of one pass carry its number. A sampler whose passes never end is looked at for so many lots.
        passes: dict[int | None, list[Draw]] = {}
        for draw in itertools.islice(self.sampler.draws(records, self.rng, 0), _MOST_LOTS):
            if draw.cover not in passes and len(passes) == _PASSES:
                break
            passes.setdefault(draw.cover, []).append(draw)
        once = all(
            np.bincount(np.concatenate([d.indices for d in lots]), minlength=records).max() <= 1
            for lots in passes.values()
        )
        seen = len(np.unique(np.concatenate([d.indices for lots in passes.values() for d in lots]))) == records
        about = "each record at most once in a pass, nobody never"
        return [SelftestFinding("sampler, passes", about, holds=once and seen)]

    def check_fixed_order(self) -> list[SelftestFinding]:
        """Checks that a sampler of fixed order draws the same disjoint lots in every pass, as many as the event states."""
        event = self.event_of_phase()
        if not isinstance(event, FixedOrder):
            return [_charged_otherwise(event, "FixedOrder")]
        # Nothing is random, so two passes show everything.
        lots = [
            draw.indices for draw in itertools.islice(self.sampler.draws(self.n, self.rng, 0), 2 * event.separation)
        ]
        first, second = lots[: event.separation], lots[event.separation :]
        once = np.bincount(np.concatenate(first), minlength=self.n).max() <= 1
        repeats = all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))
        about = f"the same {event.separation} disjoint lots in every pass"
        return [SelftestFinding("sampler, order", about, holds=bool(once and repeats))]


def _charged_otherwise(event: Event, wanted: str) -> SelftestFinding:
    """Returns the finding that a sampler's draws are charged by another event than the check is about."""
    about = f"draws are charged as {type(event).__name__}, and tested as {wanted}"
    return SelftestFinding("sampler, charge", about, holds=False)


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

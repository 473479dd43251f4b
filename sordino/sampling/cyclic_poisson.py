"""Cyclic Poisson sampling: every record belongs to one of several groups, and only one group is drawn from at a time.

A record's group is its own secret coin, which lasts for a phase. Step t draws from group t mod `groups`, each record of it
with probability `rate`. So a record never comes back within `groups` steps, and its draws are still independent coins:
both are what correlated noise needs to be amplified (Choquette-Choo et al. 2023, arXiv:2306.08153).

Privacy: given its group, a record meets one Poisson draw in every cycle, and with at most as many bands as groups the
noise of different cycles is independent where it matters. A phase is charged as a whole, for the worst group. The group
must not follow from a record's place in the dataset: removing one record would move all others to other groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from sordino import events, validate
from sordino.former_names import former_method
from sordino.registry import Declaration, NamedSampler
from sordino.rng.streams import Rng
from sordino.sampling.poisson import flip_coins
from sordino.sampling.sampler import Draw, keep_unamplified

if TYPE_CHECKING:
    from sordino.auditing.selftest_checks.sampler_checks import DrawChecks
    from sordino.auditing.verdict import SelftestFinding


@dataclass(frozen=True)
class CyclicPoisson:
    """Draws from one of `groups` groups after the other, each record of it with probability `rate`.

    Args:
        rate: the probability within the group, above 0 and at most 1. A lot has rate × N / groups records on average.
        groups: how many; at least as many as the bands of the noise.

    Privacy:
        Amplified by sampling, about one record added or removed; a call of `draws` is charged as a whole.

    Examples:
        >>> import sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Correlated(3.0, sd.Banded(4)))
        >>> event = sd.dry_run(query, sd.CyclicPoisson(rate=0.1, groups=4), dataset_size=1000, steps=100)
        >>> event.groups, event.steps
        (4, 100)

    """

    rate: float
    groups: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", validate.rate("rate", self.rate))
        object.__setattr__(self, "groups", validate.count("groups", self.groups))

    @property
    def size_is_public(self) -> bool:
        """No: the neighbour has one record more or fewer."""
        return False

    def expected_size(self, n: int) -> float:
        """Returns rate × n / groups, the expected size of a lot."""
        return self.rate * n / self.groups

    expected = former_method("expected", "expected_size")

    def check_draws(self, checks: DrawChecks) -> list[SelftestFinding]:
        """Returns what a selftest finds of the draws: a record by its own coin, in the turns of its group."""
        return checks.check_cyclic_coins()

    def draws(self, n: int, rng: Rng, start: int) -> Iterator[Draw]:
        """Yields the cyclic Poisson draw of step k from group k mod `groups`, for k = start, start + 1, …"""
        # Every record's group is a coin of its own, which no other record changes.
        group = rng.child("groups").integers(n, self.groups)
        # Sorted by group, the members of one group are a slice.
        order = np.argsort(group, kind="stable").astype(np.int64)
        ends = np.searchsorted(group[order], np.arange(self.groups + 1))
        # A draw leaves the event as it is: the phase is charged as a whole, for the worst group.
        of_phase = partial(phase_event, self.rate, self.groups)
        k = start
        while True:
            # Each member then flips its coin, from the stream of this step.
            members = order[ends[k % self.groups] : ends[k % self.groups + 1]]
            drawn = members[flip_coins(len(members), self.rate, rng.child(k))]
            yield Draw(drawn, keep_unamplified, cover=0, of_phase=of_phase)
            k += 1


def phase_event(rate: float, groups: int, steps: int, event: events.Event) -> events.Event:
    """Returns the event of all steps of a phase, from what is released on each of them."""
    return events.CyclicPoisson(rate, groups, steps, event)


DECLARED = Declaration(
    (CyclicPoisson,),
    samplers=(
        NamedSampler(
            "cyclic-poisson",
            "each record is in one of 16 groups, which take turns, and in a lot of its group by its own coin",
            lambda rate, records, groups: CyclicPoisson(min(1.0, groups * rate), int(groups)),
            example="sd.CyclicPoisson(rate=0.4, groups=4)",
            parameters={"groups": 16.0},
        ),
    ),
)

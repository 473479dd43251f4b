"""Ledger checks: what is entered is what was done, and noise after a saved state is new.

executed     lots that were used and lots that were only drawn cost the same: the plan is what is released
counted      so many draws, so many releases, at the multiplier that was released and the sampler's rate
phases       two calls of draws cost what two calls cost
resumed      a loaded state goes on with noise that nobody has seen
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_map

from sordino.auditing.neighbouring_records import SelftestRecords
from sordino.auditing.selftest_subject import Pieces, Trial, flatten
from sordino.auditing.verdict import SelftestFinding
from sordino.events import Event, canonical, compose, event_counts
from sordino.lots.loading import MapStyle, count_records
from sordino.private import Private
from sordino.sampling.sampler import Informed, Sampler

_STEPS = 3


class CopiedDataset:
    """A dataset's records, copied as they are read: whoever trains on these has not drawn from the user's."""

    def __init__(self, dataset: MapStyle) -> None:
        self._dataset, self._n = dataset, count_records(dataset)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> Any:
        return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, self._dataset[index])


def check_ledger(pieces: Pieces, dataset: MapStyle, company: SelftestRecords) -> list[SelftestFinding]:
    """Runs all ledger checks of a selftest and returns the findings."""
    findings = [_check_resumed_noise(pieces, company)]
    if pieces.sampler is None:
        return [*findings, SelftestFinding("ledger", "no sampler was given")]
    # The user's dataset must not be known as drawn from, so copies of its records are used.
    copied = CopiedDataset(dataset)
    used, plan = pieces.private(), pieces.private()
    # A lot that was used and one that was only drawn must cost the same.
    _draw_lots(used, pieces, copied, pieces.sampler, backward=True)
    _draw_lots(plan, pieces, copied, pieces.sampler, backward=False)
    once = canonical(plan.event)
    same = canonical(used.event) == once
    findings.append(
        SelftestFinding("executed", "what is released costs what was planned" if same else "it does not", holds=same)
    )
    _draw_lots(plan, pieces, copied, pieces.sampler, backward=False)
    # Two calls of draws must cost what two calls cost.
    twice = canonical(plan.event) == canonical(compose([once, once]))
    findings.append(
        SelftestFinding("phases", "two phases cost two" if twice else "two phases do not cost two", holds=twice)
    )
    if not isinstance(pieces.sampler, Informed):
        findings.append(_check_counts(pieces, company, once))
    return findings


def _draw_lots(private: Private, pieces: Pieces, dataset: CopiedDataset, sampler: Sampler, *, backward: bool) -> None:
    for lot in private.draws(dataset, sampler, _STEPS, collate=pieces.collate):
        if backward:
            private.backward(lot)


def _check_counts(pieces: Pieces, company: SelftestRecords, event: Event) -> SelftestFinding:
    """Checks that the ledger has one entry for each draw, at the sampler's rate, with the multipliers that were
    released.
    """
    # What a release was asked for is seen by a tap; it is compared with what was entered.
    trial = Trial(pieces, company.records).run([[]], keep=False)
    seen = sorted(passed.noise.multiplier for passed in trial.releases[0])
    draws = [(part, count) for part, count in event_counts(event) if part.is_one_draw]
    if not draws:
        return SelftestFinding("counted", "lots of this sampler are not charged one by one")
    if trial.choices:
        return SelftestFinding("counted", "the query makes choices, which are not counted here")
    total = sum(count for _, count in draws)
    rate = getattr(pieces.sampler, "rate", None)
    right = total == _STEPS
    # Every entry has the multipliers seen, and of Poisson draws the sampler's rate.
    for part, _ in draws:
        noise = sorted(size for inner in part.inner_events() for size in _multipliers_of_event(inner))
        right = right and np.allclose(noise, seen, rtol=1e-12) if len(noise) == len(seen) else False
        charged_rate = getattr(part, "rate", rate)
        right = right and (rate is None or charged_rate == rate)
    words = f"{_STEPS} draws are {_STEPS} releases at the multiplier seen at the release, at the sampler's rate"
    return SelftestFinding("counted", words if right else f"not so: {words}", holds=right)


def _multipliers_of_event(event: Event) -> Iterator[float]:
    """Yields the noise multiplier of every release in an event of the ledger, which a ledger check compares with the
    noise.
    """
    for part, count in event_counts(event):
        if part.noise_multiplier is not None:
            yield from [part.noise_multiplier] * count


def _check_resumed_noise(pieces: Pieces, company: SelftestRecords) -> SelftestFinding:
    """Checks, as a part of the ledger checks, that a run which was saved and loaded continues with noise that nobody
    has seen.
    """
    # One lot, then a saved state that goes on in two runs.
    first = Trial(pieces, company.records).run([[]], noisy=True)
    state = first.private.state_dict()
    second = Trial(pieces, company.records)
    second.private.load_state_dict(state)
    # other lots than before, or it would go on with the rest of them
    after, again = (flatten(trial.run([[], []], noisy=True).written[-2]) for trial in (first, second))
    # Equal noise in both would show the difference of their sums.
    noisy = bool(first.releases[0]) and first.releases[0][0].noise.multiplier > 0
    fresh = not noisy or not np.array_equal(after, again)
    words = "a loaded state has noise of its own" if fresh else "a loaded state repeats noise that was used"
    return SelftestFinding("resumed", words, holds=fresh)

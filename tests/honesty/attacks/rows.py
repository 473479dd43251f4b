"""Functions that promise to treat each row on its own, and do not: weighers, rates of coins, vectors of statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sordino as sd
from tests.honesty.attacks.model import far
from tests.honesty.data import cross_entropy, network
from tests.honesty.script import Cases, Script

ROWS = Cases()


@dataclass(frozen=True)
class Own:
    """A user's clipping rule: a function of the lengths of a chunk, with the sensitivity of flat clipping to 1."""

    function: Callable[[Tensor], Tensor]

    def init(self) -> None:
        return None

    def rule(self, state: object, lot: Callable[[], Any]) -> Any:
        proven = sd.Flat(1.0).rule(None, lot)
        return replace(proven, weights=lambda norms: self.function(norms.total()).unsqueeze(1))

    def advance(self, state: object, tally: object, expected_batch: float, rng: object) -> tuple[tuple[()], object]:
        return (), state


def _weighed(seed: int, function: Callable[[Tensor], Tensor]) -> Script:
    query = sd.NoisySum(Own(function), sd.Gaussian(1.0))
    return Script(network(), cross_entropy, far(seed), query=query)


@ROWS.unmeasured
def a_weigher_that_divides_by_the_longest(seed: int) -> Script:
    return _weighed(seed, lambda r: (1.0 / r.max()).expand(len(r)) if len(r) else r)


@ROWS.unmeasured
def a_weigher_that_clips_at_the_median(seed: int) -> Script:
    """Within its bound for every row, and yet one row moves the weight of all."""
    return _weighed(seed, lambda r: (r.median().clamp(max=1.0) / r).clamp(max=1.0) if len(r) else r)


@ROWS.unmeasured
def a_weigher_that_drops_below_the_mean(seed: int) -> Script:
    return _weighed(seed, lambda r: (1.0 / r).clamp(max=1.0) * (r >= r.mean()))


@ROWS.unmeasured
def a_weigher_that_counts_rows(seed: int) -> Script:
    return _weighed(seed, lambda r: (1.0 / r).clamp(max=1.0) * (1.0 if len(r) % 2 else 0.5))


@ROWS.unmeasured
def a_weigher_that_goes_by_position(seed: int) -> Script:
    """Later rows count less; one row fewer moves all of them up."""
    return _weighed(seed, lambda r: (1.0 / r).clamp(max=1.0) * 0.9 ** torch.arange(len(r)))


@ROWS.unmeasured
def a_weigher_with_a_memory(seed: int) -> Script:
    """The bound follows the lengths seen, in a closure."""
    seen = [1.0]

    def function(r: Tensor) -> Tensor:
        if len(r):
            seen[0] = min(1.0, 0.9 * seen[0] + 0.1 * float(r.mean()))
        return (seen[0] / r).clamp(max=1.0)

    return _weighed(seed, function)


def _drawn(seed: int, rate: Callable[[np.ndarray], np.ndarray]) -> Script:
    return Script(network(), cross_entropy, far(seed), sampler=sd.ByLength(rate, most=0.3, refresh=10))


@ROWS.unmeasured
def coins_over_the_longest_record(seed: int) -> Script:
    return _drawn(seed, lambda lengths: 0.3 * lengths / lengths.max())


@ROWS.unmeasured
def coins_above_the_median_record(seed: int) -> Script:
    return _drawn(seed, lambda lengths: np.where(lengths > np.median(lengths), 0.3, 0.05))


@ROWS.unmeasured
def coins_that_sum_to_the_batch(seed: int) -> Script:
    return _drawn(seed, lambda lengths: 12 * lengths / lengths.sum())


@ROWS.unmeasured
def coins_by_rank(seed: int) -> Script:
    return _drawn(seed, lambda lengths: 0.3 * np.argsort(np.argsort(lengths)) / len(lengths))


class Asked(Script):
    """A statistic is asked in place of training; `physical_batch` rows of it at a time."""

    of: Callable[[Tensor], Tensor]

    def run(self, lots: int = 100, seed: int = 0) -> sd.Claim:
        from sordino.statistics import ClippedSum

        class Summed:
            def __init__(self, of: Callable[[Tensor], Tensor]) -> None:
                self.sums = [ClippedSum(1.0, sd.Gaussian(5.0), of)]

            def value(self, noisy: list[Tensor], records: Callable[[], float]) -> Tensor:
                return noisy[0] / records()

        ledger = sd.Ledger()
        sd.ask(Summed(self.of), self.dataset, ledger=ledger, expected_batch=64.0, physical_batch=16, seed=seed)
        return ledger.claim(1e-5)


def _asked(seed: int, of: Callable[[Tensor], Tensor]) -> Script:
    script = Asked(network(), cross_entropy, far(seed))
    script.of = of
    return script


@ROWS.unmeasured
def a_statistic_of_centred_rows(seed: int) -> Script:
    return _asked(seed, lambda x: x - x.mean(0))


@ROWS.unmeasured
def a_statistic_of_rows_over_the_largest(seed: int) -> Script:
    return _asked(seed, lambda x: x / x.abs().max().clamp(min=1e-9) if len(x) else x)


@ROWS.unmeasured
def a_statistic_of_sorted_rows(seed: int) -> Script:
    """Each column sorted on its own: the rows of the result are nobody's."""
    return _asked(seed, lambda x: x.sort(0).values * torch.linspace(-1, 1, len(x), dtype=x.dtype)[:, None])


@ROWS.unmeasured
def a_statistic_that_remembers(seed: int) -> Script:
    seen = [torch.zeros(6, dtype=torch.float64)]

    def of(x: Tensor) -> Tensor:
        centred = x - seen[0]
        if len(x):
            seen[0] = x.mean(0)
        return centred

    return _asked(seed, of)

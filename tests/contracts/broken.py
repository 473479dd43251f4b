"""Deliberately broken variants, each a bug that has happened somewhere. The hunter must catch every one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sordino as sd
from sordino.clipping.clipping_rule import Rule, Stateless, sum_clipped
from sordino.clipping.flat import shorten
from sordino.events import Event
from sordino.per_sample.protocol import Chunked, Norms, PerSample
from sordino.release.release import Release, release
from sordino.release.sealed import Sealed
from sordino.release.sensitivity import Sensitivity, Unproven
from sordino.rng.streams import Rng

C = 0.5


@dataclass(frozen=True)
class Broken(Stateless):
    """Promises a bound of C, whatever its weights do."""

    weights: Callable[[Norms], Tensor]

    def rule(self, state: Any, lot: Callable[[], Norms]) -> Rule:
        return Rule(self.weights, Sensitivity(l2=C))


def no_clip(norms: Norms) -> Tensor:
    return torch.ones_like(norms.total()).unsqueeze(1)


def batch_median_bound(norms: Norms) -> Tensor:
    r = norms.total()
    return shorten(r, r.median() if len(r) else C).unsqueeze(1)


def mean_over_the_actual_batch(norms: Norms) -> Tensor:
    return shorten(norms.total(), C).unsqueeze(1) * (4 / max(1, len(norms.squared)))


def bias_left_out_of_the_norm(norms: Norms) -> Tensor:
    weights = [i for i, name in enumerate(norms.names) if name.endswith("weight")]
    return shorten(norms.squared[:, weights].sum(dim=1).sqrt(), C).unsqueeze(1)


def common_factor_by_the_largest(norms: Norms) -> Tensor:
    r = norms.total()
    return (C / r.max().clamp(min=C)).expand(len(r)).unsqueeze(1) if len(r) else r.unsqueeze(1)


def clip_the_batch_gradient(norms: Norms) -> Tensor:
    together = norms.total().square().sum().sqrt()
    return shorten(together, C).expand(len(norms.squared)).unsqueeze(1)


def each_tensor_clipped_to_the_whole_bound(norms: Norms) -> Tensor:
    return shorten(norms.squared.sqrt(), C)


def squared_norm_taken_for_the_norm(norms: Norms) -> Tensor:
    return shorten(norms.squared.sum(dim=1), C).unsqueeze(1)


@dataclass(frozen=True)
class BoundAndNoiseOutOfStep:
    """The clip follows a growing schedule, the noise stays at the first bound."""

    def init(self) -> int:
        return 0

    def rule(self, state: int, lot: Callable[[], Norms]) -> Rule:
        return replace(sd.Flat(C * 2**state).rule(None, lot), sensitivity=Sensitivity(l2=C))

    def advance(
        self, state: int, tally: Sealed[Tensor] | None, expected_batch: float, rng: Rng
    ) -> tuple[Sequence[Event], int]:
        return (), state + 1


@dataclass(frozen=True)
class BoundFromTheRawCount(Stateless):
    """The bound follows the share of clipped samples without noise."""

    def init(self) -> float:
        return C

    def rule(self, state: float, lot: Callable[[], Norms]) -> Rule:
        return sd.AdaptiveQuantile(C, 0.5, 1.0).rule(state, lot)

    def advance(
        self, state: float, tally: Sealed[Tensor] | None, expected_batch: float, rng: Rng
    ) -> tuple[Sequence[Event], float]:
        assert tally is not None
        return (), state * math.exp(-0.2 * float(tally._value) / expected_batch)


@dataclass(frozen=True)
class MedianOfTheLot(Stateless):
    """Clips at the median of the lot, and says honestly that there is no proof of it."""

    at_least: float = 0.1

    def rule(self, state: Any, lot: Callable[[], Norms]) -> Rule:
        r = lot().total()
        bound = max(self.at_least, float(r.nan_to_num(nan=0.0, posinf=0.0).median()) if len(r) else 0.0)
        return Rule(sd.Flat(bound).rule(None, lot).weights, Unproven("its bound is the median of the lot", bound))


Sum = Callable[[PerSample, Rng], Release]


@dataclass(frozen=True)
class BrokenQuery:
    """A query that goes round the door in its own way."""

    ask: Callable[[PerSample, Rng], Release]

    def init(self) -> None:
        return None

    def __call__(self, grads: PerSample, state: None, expected_batch: float, rng: Rng) -> tuple[Release, None]:
        return self.ask(grads, rng), None


def _sum(grads: Any) -> dict[str, Tensor]:
    return sum_clipped(grads if isinstance(grads, Chunked) else (grads,), sd.Flat(C).rule(None, grads.norms)).total


def a_tensor_without_noise(grads: PerSample, rng: Rng) -> Release:
    total = _sum(grads)
    bare = {name: total.pop(name) for name in list(total) if name.endswith("bias")}
    noisy = release(Sealed(total), Sensitivity(l2=C), sd.Gaussian(1.0), rng)
    return Release({**noisy.value, **bare}, noisy.event)


def noise_per_chunk(grads: Any, rng: Rng) -> Release:
    out: dict[str, Tensor] = {}
    for part in grads if isinstance(grads, Chunked) else (grads,):
        noisy = release(Sealed(_sum(part)), Sensitivity(l2=C), sd.Gaussian(1.0), rng)
        out = {name: out.get(name, 0) + value for name, value in noisy.value.items()}
    return Release(out, noisy.event)


def skipped_empty_step(grads: Any, rng: Rng) -> Release:
    total = _sum(grads)
    if not len(grads.losses):
        return Release(total, sd.events.Gaussian(1.0))
    return release(Sealed(total), Sensitivity(l2=C), sd.Gaussian(1.0), rng)


def noise_scaled_by_the_lot(grads: Any, rng: Rng) -> Release:
    bound = C * max(1, len(grads.losses))
    return release(Sealed(_sum(grads)), Sensitivity(l2=bound), sd.Gaussian(1.0), rng)


BROKEN_RULES = [
    no_clip,
    batch_median_bound,
    mean_over_the_actual_batch,
    bias_left_out_of_the_norm,
    common_factor_by_the_largest,
    clip_the_batch_gradient,
    each_tensor_clipped_to_the_whole_bound,
    squared_norm_taken_for_the_norm,
]
BROKEN_ASKS = [a_tensor_without_noise, noise_per_chunk, skipped_empty_step, noise_scaled_by_the_lot]
BROKEN: dict[str, Callable[[], Any]] = {
    **{f.__name__: lambda f=f: sd.NoisySum(Broken(f), sd.Gaussian(1.0)) for f in BROKEN_RULES},
    **{f.__name__: lambda f=f: BrokenQuery(f) for f in BROKEN_ASKS},
    "bound_and_noise_out_of_step": lambda: sd.NoisySum(BoundAndNoiseOutOfStep(), sd.Gaussian(1.0)),
    "bound_from_the_raw_count": lambda: sd.NoisySum(BoundFromTheRawCount(), sd.Gaussian(1.0)),
}


def twice_as_likely_above_the_median(lengths: np.ndarray) -> np.ndarray:
    return np.where(lengths >= np.median(lengths), 0.8, 0.4)


def a_share_of_the_total_length(lengths: np.ndarray) -> np.ndarray:
    return 2 * lengths / max(lengths.sum(), 1e-30)


@dataclass(frozen=True)
class HalfTheSensitivity(sd.PrivateQuantile):
    """A private quantile that takes one record to count a half."""

    @property
    def sensitivity(self) -> float:
        return 0.5 * max(self.quantile, 1 - self.quantile)


def threshold_of_half_the_sensitivity() -> sd.Threshold:
    return sd.Threshold(HalfTheSensitivity(0.75, ceiling=5.0, epsilon=1.0), 0.2, 0.8)


BROKEN_SAMPLERS: dict[str, Callable[[], Any]] = {
    "compares_a_record_with_the_median": lambda: sd.ByLength(twice_as_likely_above_the_median, most=0.8),
    "divides_by_the_total": lambda: sd.ByLength(a_share_of_the_total_length, most=0.8),
    "releases_a_threshold_too_dear": threshold_of_half_the_sensitivity,
    "takes_the_longest": lambda: sd.Sorted.top_k(4),
}

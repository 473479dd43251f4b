"""The door: the only place where noise is added, and the only place where a choice is made by private scores.

    release(S, Δ, noise)     S + noise of scale multiplier × Δ, and the event that this is
    choose(u, Δ, ε)          an index, with probability ∝ exp(ε u / 2Δ) (McSherry & Talwar 2007), by Gumbel noise

A value brings its event (rule R3): nobody computes the event anywhere else.

Privacy: the declared sensitivity is the caller's proof obligation; the neighbour hunter tries to break it. Norms and sums
are rounded, so the scale is raised by `ROUNDING`, which is more than float32 loses on the norms of a release.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sordino import events, validate
from sordino.events import Event
from sordino.gradients.persample import Exact, Grads
from sordino.noise import Noise, Sensitivity
from sordino.rng import Rng
from sordino.sealed import Sealed, unseal

ROUNDING = 1e-5
"""Relative slack for norms that were rounded low: blockwise float32 sums of squares are good to 1e-7."""


@dataclass(frozen=True)
class Unproven:
    """No bound is known, and why; noise is added at `scale` all the same, and the event is NonPrivate."""

    reason: str
    scale: float


@dataclass(frozen=True)
class Release:
    """A value anyone may see, and what it cost."""

    value: Grads
    event: Event


class Tap(Protocol):
    """Sees what passes the door before noise, and may hand out another value instead."""

    def __call__(self, value: Grads, sensitivity: Sensitivity | Unproven, noise: Noise) -> Grads | None:
        """The value to hand out; None lets the door add its noise."""
        ...


_taps: list[Tap] = []


@contextmanager
def tapped(tap: Tap) -> Iterator[None]:
    """Watch the door, for the neighbour hunter and audits. What is released meanwhile has no guarantee."""
    _taps.append(tap)
    try:
        yield
    finally:
        _taps.remove(tap)


def release(
    value: Sealed[Grads],
    sensitivity: Sensitivity | Unproven,
    noise: Noise,
    rng: Rng,
    estimate: Exact = Exact(),  # noqa: B008  (a frozen constant)
) -> Release:
    """The value plus noise, and its event."""
    bare = unseal(value)
    if isinstance(sensitivity, Unproven):
        bound: float = sensitivity.scale
        event: Event = events.NonPrivate(sensitivity.reason)
    else:
        bound, event = noise.bound(sensitivity), noise.event(estimate)
    for tap in _taps:
        seen = tap(bare, sensitivity, noise)
        if seen is not None:
            return Release(
                {name: tensor.clone() for name, tensor in seen.items()}, events.NonPrivate("the door was tapped")
            )
    if _taps:
        event = events.NonPrivate("the door was tapped")
    return Release(_noised(bare, noise, bound, rng), event)


def _noised(value: Mapping[str, Tensor], noise: Noise, bound: float, rng: Rng) -> Grads:
    if noise.multiplier == 0:  # 0 × ∞ is not a scale; an infinite bound is allowed where no noise is asked for
        return dict(value)
    if not math.isfinite(bound):
        raise ValueError(f"bound={bound}: noise needs a finite bound; give one, or a multiplier of 0")
    added = noise.draw(value, noise.multiplier * bound * (1 + ROUNDING), rng)
    if added:
        torch._foreach_add_(list(added.values()), list(value.values()))
    return added


def choose(scores: Sealed[Tensor], sensitivity: float, epsilon: float, rng: Rng) -> tuple[int, Event]:
    """The index of a high score, ε-DP when one record moves each score by at most `sensitivity`."""
    epsilon = validate.positive("epsilon", epsilon)
    sensitivity = validate.positive("sensitivity", sensitivity)
    bare = unseal(scores).to(torch.float64)
    gumbel = -torch.from_numpy(rng.uniform(bare.numel())).log().neg().log()
    chosen = int(torch.argmax(bare * (epsilon / (2 * sensitivity)) + gumbel))
    return chosen, events.Exponential(epsilon)

"""Release: the only place that adds noise or makes a choice by private scores.

    release(S, Δ, noise)     S + noise of scale multiplier × Δ, and the event that this is
    choose(u, Δ, ε)          an index, with probability ∝ exp(ε u / 2Δ) (McSherry & Talwar 2007), by Gumbel noise
    choose_between(u, Δ, ε)  a number on a line, with density ∝ exp(ε u(x) / 2Δ), u a step function

A value brings its event (rule R3): nobody computes the event anywhere else.

Privacy: the declared sensitivity is the caller's proof obligation; the neighbour hunter tries to break it. Norms and sums
are rounded, so the scale is raised by what that may add to a record's reach (`rounding`). A sum over chunks comes in
float64 and is rounded to float32 after the noise, where rounding is free. A sum over ranks comes as whole numbers
(`exact_sums`): each rank adds the noise of its own coordinates, which are values of one draw that all have in common.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sordino import events, validate
from sordino.distributed.noise_division import Stretches
from sordino.events import Event
from sordino.kernels import matrices
from sordino.release.exact_sums import MOVED, OnGrid
from sordino.release.noise import Gaussian, Noise, dense
from sordino.release.sealed import Sealed, unseal
from sordino.release.sensitivity import Sensitivity, Unproven
from sordino.release.vectors import Grads, Summed, TwoPartSum, cleared_like, divide_, rounded, stretches
from sordino.rng.streams import Rng


@dataclass(frozen=True)
class Release:
    """A value anyone may see, and what it cost."""

    value: Grads
    event: Event
    divided_by: float = 1.0  # the public number that has been taken out of the value
    kept: Mapping[str, Sealed[Grads]] = field(default_factory=dict)  # what a query hands out besides, sealed


class Tap(Protocol):
    """Sees what is released before noise is added, and may hand out another value instead."""

    def __call__(self, value: Grads, sensitivity: Sensitivity | Unproven, noise: Noise) -> Grads | None:
        """Returns the value to hand out instead, or None to let `release` add its noise."""
        ...


TAPPED = "the door was tapped"
_LONGEST = 1 << 62
_STRETCH = 1 << 16
"""Coordinates that stay in the cache while noise is added to them."""
_taps: list[Tap] = []
_choice_taps: list[ChoiceTap] = []


@contextmanager
def tapped(tap: Tap, choices: ChoiceTap | None = None) -> Iterator[None]:
    """Watches releases, for the neighbour hunter and audits. What is released meanwhile has no guarantee."""
    _taps.append(tap)
    if choices is not None:
        _choice_taps.append(choices)
    try:
        yield
    finally:
        _taps.remove(tap)
        if choices is not None:
            _choice_taps.remove(choices)


def release(
    value: Sealed[Grads] | Sealed[Grads | TwoPartSum | Summed | OnGrid],
    sensitivity: Sensitivity | Unproven,
    noise: Noise,
    rng: Rng,
    divide_by: float = 1.0,
) -> Release:
    """Adds noise to a sealed value and returns it with its event.

    The sealed tensors are consumed: noise is added where they lie.

    What comes out is divided by a public number, if one is given, in the pass that adds the noise.
    """
    total, factors, slack = _opened(value), None, 0.0
    # The usual case of a distributed run: every rank adds the noise of its own coordinates.
    on_grid = total if isinstance(total, OnGrid) else None
    if on_grid is not None and noise.multiplier > 0 and not _taps:
        return _released_by_ranks(on_grid, sensitivity, noise, rng, divide_by)
    # Taps see the complete sum, in float64.
    if isinstance(total, OnGrid):
        total = total.summed()
    if isinstance(total, TwoPartSum) and (
        _taps or (isinstance(sensitivity, Sensitivity) and sensitivity.units is not None)
    ):
        total = total.widened()  # somebody looks at the sum itself
    bare = total.values if isinstance(total, Summed) else total.first if isinstance(total, TwoPartSum) else total
    # The scale follows from the declared sensitivity. Without a proof, noise is added all the same, and the event says
    # that there is no guarantee.
    if isinstance(sensitivity, Unproven):
        bound: float = sensitivity.scale
        event: Event = events.NonPrivate(sensitivity.reason)
    else:
        _check_dimension(bare, sensitivity)
        bound, event, slack = noise.bound(sensitivity), noise.event(sensitivity.estimate), sensitivity.rounding
        if sensitivity.units is not None:
            factors = sensitivity.units({name: tensor.numel() for name, tensor in bare.items()})
            bare = {name: tensor.mul_(factors[name]) for name, tensor in bare.items()}
    # A tap sees the bare sum, so whatever is released meanwhile counts as not private.
    for tap in _taps:
        seen = tap(bare, sensitivity, noise)
        if seen is not None:
            handed = _divided({name: tensor.clone() for name, tensor in seen.items()}, factors)
            handed = rounded(Summed(handed, total.narrow)) if isinstance(total, Summed) else handed
            divide_(handed, divide_by)
            return Release(handed, events.NonPrivate(TAPPED), divide_by)
    if _taps:
        event = events.NonPrivate(TAPPED)
    if on_grid is not None and noise.multiplier > 0:
        return replace(_released_by_ranks(on_grid, sensitivity, noise, rng, divide_by), event=event)
    # The scale is raised by what rounding may add to a record's reach.
    scale = _scale(noise, bound, lost=isinstance(sensitivity, Unproven)) * (1 + slack)
    whole = (
        Summed(bare, total.narrow) if isinstance(total, Summed) else total if isinstance(total, TwoPartSum) else bare
    )
    noised = _noised(whole, noise, scale, rng, divide_by)
    return Release(_divided(noised, factors), event, divide_by)


def _released_by_ranks(
    total: OnGrid, sensitivity: Sensitivity | Unproven, noise: Noise, rng: Rng, divide_by: float
) -> Release:
    """Releases a sum of whole numbers over the ranks; each rank adds the noise of its own coordinates."""
    size, step = total.size, total.grid.step
    event: Event
    # The scale is that of a single process, raised by what rounding to the grid may add.
    if isinstance(sensitivity, Unproven):
        scale, event = _scale(noise, sensitivity.scale, lost=True), events.NonPrivate(sensitivity.reason)
    else:
        _check_dimension(total.narrow, sensitivity)
        bound, event = noise.bound(sensitivity), noise.event(sensitivity.estimate)
        scale = _scale(noise, bound, lost=False) * (1 + sensitivity.rounding)
        scale += noise.multiplier * MOVED * step * noise.length_of_ones(size)  # rounding to the grid
    # All ranks share one draw of noise, and each generates the part of it that belongs to its coordinates.
    own = total.own_sums()
    drawn = _noise_at(noise, size, total.own, scale, rng, total.dtype).to(own.device)
    value = total.released(_on_grid_noised(own, drawn, step, divide_by))
    value = {name: tensor.to(total.narrow[name].dtype) for name, tensor in value.items()}
    return Release(_divided(value, total.grid.factors), event, divide_by)


def _on_grid_noised(own: Tensor, drawn: Tensor, step: float, divide_by: float) -> Tensor:
    """Adds noise, rounded to the grid, to whole numbers exactly; then converts steps and divides by a public number."""
    made = torch.empty_like(drawn)
    for out, sums, z in zip(made.split(_STRETCH), own.split(_STRETCH), drawn.split(_STRETCH), strict=True):
        noised = z.double().div_(step).round_().to(torch.int64).add_(sums)
        out.copy_(noised.double().mul_(step / divide_by))
    return made


def _noise_at(noise: Noise, total: int, own: Stretches, scale: float, rng: Rng, dtype: torch.dtype) -> Tensor:
    """Returns the noise at these stretches of one release of `total` coordinates; all ranks take part in one draw."""
    if isinstance(noise, Gaussian):
        return rng.normals_at(total, own, scale, dtype)
    whole = torch.zeros(total, dtype=dtype)
    noise.add_({"": whole}, scale, rng)
    return torch.cat([whole[start : start + count] for start, count in own])


def _opened(
    value: Sealed[Grads] | Sealed[Grads | TwoPartSum | Summed | OnGrid],
) -> Grads | TwoPartSum | Summed | OnGrid:
    total: Grads | TwoPartSum | Summed | OnGrid = unseal(value)  # type: ignore[misc]  # a sealed union of the four
    return total


def _divided(value: Grads, factors: Mapping[str, float] | None) -> Grads:
    """Divides by the public factors of the sensitivity's units, which were multiplied in before the noise."""
    return value if factors is None else {name: tensor.div_(factors[name]) for name, tensor in value.items()}


def _check_dimension(value: Mapping[str, Tensor], sensitivity: Sensitivity) -> None:
    """Raises ValueError if the sum has more coordinates than its L1 bound was proved for."""
    if sensitivity.dimension is None:
        return
    coordinates = sum(tensor.numel() for tensor in value.values())  # public: the shape of what is released
    if coordinates > sensitivity.dimension:
        raise ValueError(
            f"dimension={sensitivity.dimension}: the sum has {coordinates} coordinates, and the bound was proved for "
            "fewer; give the number of trainable parameters"
        )


def _scale(noise: Noise, bound: float, *, lost: bool) -> float:
    """Returns the scale of the noise; NaN where nothing bounds it, so that the value is lost to everyone."""
    if noise.multiplier == 0:  # 0 × ∞ is not a scale; an infinite bound is allowed where no noise is asked for
        return 0.0
    if lost and not math.isfinite(bound):  # of no use to anyone, and Private ends the run
        return math.nan
    if not math.isfinite(bound):
        raise ValueError(f"bound={bound}: noise needs a finite bound; give one, or a multiplier of 0")
    return noise.multiplier * bound


def _noised(value: Grads | TwoPartSum | Summed, noise: Noise, scale: float, rng: Rng, divide_by: float) -> Grads:
    """Adds noise of this scale and divides by a public number; an undefined scale makes all values NaN."""
    if isinstance(value, TwoPartSum | Summed) and scale > 0:
        return _noised_wide(value, noise, scale, rng, divide_by)
    summed = {name: dense(tensor) for name, tensor in rounded(value).items()}
    if math.isnan(scale):
        return {name: torch.full_like(tensor, math.nan) for name, tensor in summed.items()}
    if scale == 0:
        divide_(summed, divide_by)
    else:
        noise.add_(summed, scale, rng, 1 / divide_by)
    return summed


def _noised_wide(value: TwoPartSum | Summed, noise: Noise, scale: float, rng: Rng, divide_by: float) -> Grads:
    """Draws the noise where the result goes and adds the sum to it in float64, a stretch at a time."""
    # The result's own tensors are free: they receive the noise first.
    sums: tuple[Grads, ...]
    if isinstance(value, TwoPartSum):
        made, sums = cleared_like(value.first), (value.first, value.second)
    else:
        made, sums = {name: tensor.zero_() for name, tensor in value.narrow.items()}, (value.values,)
    made = {name: dense(tensor) for name, tensor in made.items()}
    noise.add_(made, scale, rng)
    # Sum and noise meet in float64 and are rounded once, after the noise, where rounding is free.
    compiled = matrices.functions()
    for out, first, *others in stretches(made, *sums):
        if others and compiled is not None and compiled.readable((out, first, *others), _LONGEST):
            compiled.joined(first, others[0], out, 1 / divide_by)
            continue
        total = first.double()
        for other in (*others, out):
            total = total + other
        out.copy_(total.mul_(1 / divide_by))
    return made


@dataclass(frozen=True)
class Steps:
    """A step function on a line: `heights[i]` from `edges[i]` to `edges[i + 1]`. The ends of the line are public."""

    edges: Tensor  # (m + 1,), ascending
    heights: Tensor  # (m,)


class ChoiceTap(Protocol):
    """Sees the scores of a choice, and may decide it."""

    def __call__(self, scores: Tensor | Steps, sensitivity: float, epsilon: float) -> float | None:
        """Returns what to choose, or None to let the exponential mechanism choose."""
        ...


def choose(scores: Sealed[Tensor], sensitivity: float, epsilon: float, rng: Rng) -> tuple[int, Event]:
    """Chooses the index of a high score, ε-DP when one record moves each score by at most `sensitivity`."""
    epsilon = validate.positive("epsilon", epsilon)
    sensitivity = validate.positive("sensitivity", sensitivity)
    bare = unseal(scores).to(torch.float64)
    decided = _decided(bare, sensitivity, epsilon)
    chosen = _by_weight(bare * (epsilon / (2 * sensitivity)), rng) if decided is None else int(decided)
    return chosen, _exponential(epsilon)


GRID = 2.0**-20
"""A number chosen on a line is rounded to this part of its length: its last bits would tell which interval it is from."""


def choose_between(utility: Sealed[Steps], sensitivity: float, epsilon: float, rng: Rng) -> tuple[float, Event]:
    """Chooses a number where the function is high, ε-DP when one record moves it by `sensitivity` at most."""
    epsilon = validate.positive("epsilon", epsilon)
    sensitivity = validate.positive("sensitivity", sensitivity)
    steps = unseal(utility)
    decided = _decided(steps, sensitivity, epsilon)
    if decided is not None:
        return float(decided), _exponential(epsilon)
    width = steps.edges.diff()  # an interval of width 0 has a weight of log 0 and is never chosen
    i = _by_weight(width.log() + steps.heights * (epsilon / (2 * sensitivity)), rng)
    # Within an interval all places are equally good; the last bits would tell the interval, so they are rounded away.
    place = float(steps.edges[i] + width[i] * float(rng.uniform(1)[0]))
    first, last = float(steps.edges[0]), float(steps.edges[-1])
    step = (last - first) * GRID
    return min(last, first + round((place - first) / step) * step), _exponential(epsilon)


def _by_weight(log_weights: Tensor, rng: Rng) -> int:
    """Returns an index with probability ∝ exp(log_weights): the largest after Gumbel noise."""
    # −ln E, E = −ln(1 − w) exponential: w in steps of 2⁻⁶⁴, so that large values, which decide, end late (noise_tail.py).
    w = (rng.words(log_weights.numel()).astype(np.float64) + 0.5) * 2.0**-64
    gumbel = -torch.from_numpy(-np.log1p(-np.minimum(w, 1 - 2.0**-53))).log()
    return int(torch.argmax(log_weights + gumbel))


def _decided(scores: Tensor | Steps, sensitivity: float, epsilon: float) -> float | None:
    """Returns what a tap decided, or None if no tap did."""
    for tap in _choice_taps:
        decided = tap(scores, sensitivity, epsilon)
        if decided is not None:
            return decided
    return None


def _exponential(epsilon: float) -> Event:
    return events.NonPrivate(TAPPED) if _taps or _choice_taps else events.Exponential(epsilon)

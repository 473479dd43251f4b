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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sordino import events, validate
from sordino.accelerations import accelerate
from sordino.distributed.noise_division import Stretches
from sordino.events import Event
from sordino.release.correlated_noise import Correlated
from sordino.release.exact_sums import ROUNDING_STEPS, OnGrid
from sordino.release.noise import Gaussian, Noise, make_dense
from sordino.release.sealed import Sealed, unseal
from sordino.release.sensitivity import Sensitivity, Unproven
from sordino.release.vectors import Grads, TwoPartSum, WideSum, divide_, iterate_together, to_own_dtype, zeros_like
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


TAPPED = "a tap saw what was released before its noise was added"
_STRETCH = 1 << 16
"""Coordinates that stay in the cache while noise is added to them."""
_taps: list[Tap] = []
_choice_taps: list[ChoiceTap] = []


@contextmanager
def tap_releases(tap: Tap, choices: ChoiceTap | None = None) -> Iterator[None]:
    """Watches what `release` and `choose` are given, for the neighbour hunter and audits. What is released meanwhile
    has no guarantee.
    """
    # Taps are a list: an audit may run inside another one.
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
    value: Sealed[Grads] | Sealed[Grads | TwoPartSum | WideSum | OnGrid],
    sensitivity: Sensitivity | Unproven,
    noise: Noise,
    rng: Rng,
    divide_by: float = 1.0,
) -> Release:
    """Releases a sealed value: adds noise to it and returns it with its event.

    The sealed tensors are consumed: noise is added where they lie.

    What comes out is divided by a public number, if one is given, in the pass that adds the noise.
    """
    total, factors, slack = _open_sealed(value), None, 0.0
    # The usual case of a distributed run: every rank adds the noise of its own coordinates.
    on_grid = total if isinstance(total, OnGrid) else None
    if on_grid is not None and noise.multiplier > 0 and not _taps:
        return _release_by_ranks(on_grid, sensitivity, noise, rng, divide_by)
    # Taps see the complete sum, in float64.
    if isinstance(total, OnGrid):
        total = total.gather_sum()
    if isinstance(total, TwoPartSum) and (
        _taps or (isinstance(sensitivity, Sensitivity) and sensitivity.units is not None)
    ):
        total = total.to_float64()  # somebody looks at the sum itself
    tensors = total.values if isinstance(total, WideSum) else total.first if isinstance(total, TwoPartSum) else total
    # Ours define it themselves; a user's subclass may override the name of 0.2.
    if "bound_for" not in vars(type(noise)):
        validate.noise("noise", noise)  # a user's own class, which may have been written for 0.2
    # The scale follows from the declared sensitivity. Without a proof, noise is added all the same, and the event says
    # that there is no guarantee.
    if isinstance(sensitivity, Unproven):
        bound: float = sensitivity.scale
        event: Event = events.NonPrivate(sensitivity.reason)
    else:
        _check_dimension(tensors, sensitivity)
        bound, event, slack = noise.bound_for(sensitivity), noise.event(sensitivity.estimate), sensitivity.rounding
        if sensitivity.units is not None:
            factors = sensitivity.units({name: tensor.numel() for name, tensor in tensors.items()})
            tensors = {name: tensor.mul_(factors[name]) for name, tensor in tensors.items()}
    # A tap sees the bare sum, so whatever is released meanwhile counts as not private.
    for tap in _taps:
        replacement = tap(tensors, sensitivity, noise)
        if replacement is not None:
            handed_out = _divide_by_factors({name: tensor.clone() for name, tensor in replacement.items()}, factors)
            handed_out = to_own_dtype(WideSum(handed_out, total.narrow)) if isinstance(total, WideSum) else handed_out
            divide_(handed_out, divide_by)
            return Release(handed_out, events.NonPrivate(TAPPED), divide_by)
    if _taps:
        event = events.NonPrivate(TAPPED)
    if on_grid is not None and noise.multiplier > 0:
        return replace(_release_by_ranks(on_grid, sensitivity, noise, rng, divide_by), event=event)
    # The scale is raised by what rounding may add to a record's reach.
    scale = _noise_scale(noise, bound, is_unproven=isinstance(sensitivity, Unproven)) * (1 + slack)
    to_noise = (
        WideSum(tensors, total.narrow)
        if isinstance(total, WideSum)
        else total
        if isinstance(total, TwoPartSum)
        else tensors
    )
    noised = _add_noise(to_noise, noise, scale, rng, divide_by)
    return Release(_divide_by_factors(noised, factors), event, divide_by)


def _release_by_ranks(
    total: OnGrid, sensitivity: Sensitivity | Unproven, noise: Noise, rng: Rng, divide_by: float
) -> Release:
    """Releases a sum of whole numbers over the ranks; each rank adds the noise of its own coordinates."""
    size, step = total.size, total.grid.step
    event: Event
    # The scale is that of a single process, raised by what rounding to the grid may add.
    if isinstance(sensitivity, Unproven):
        scale, event = _noise_scale(noise, sensitivity.scale, is_unproven=True), events.NonPrivate(sensitivity.reason)
    else:
        _check_dimension(total.narrow, sensitivity)
        bound, event = noise.bound_for(sensitivity), noise.event(sensitivity.estimate)
        scale = _noise_scale(noise, bound, is_unproven=False) * (1 + sensitivity.rounding)
        scale += noise.multiplier * ROUNDING_STEPS * step * noise.length_of_ones(size)  # rounding to the grid
    # All ranks share one draw of noise, and each generates the part of it that belongs to its coordinates.
    own_sums = total.reduce_to_own()
    drawn = _draw_noise_at(noise, size, total.own_stretches, scale, rng, total.dtype).to(own_sums.device)
    value = total.assemble_release(_add_noise_on_grid(own_sums, drawn, step, divide_by))
    value = {name: tensor.to(total.narrow[name].dtype) for name, tensor in value.items()}
    return Release(_divide_by_factors(value, total.grid.factors), event, divide_by)


def _add_noise_on_grid(own_sums: Tensor, own_noise: Tensor, step: float, divide_by: float) -> Tensor:
    """Adds the noise of a release, rounded to the grid, to whole numbers exactly; then converts steps and divides by a
    public number.
    """
    made = torch.empty_like(own_noise)
    for out, sums, z in zip(made.split(_STRETCH), own_sums.split(_STRETCH), own_noise.split(_STRETCH), strict=True):
        noised = z.double().div_(step).round_().to(torch.int64).add_(sums)
        out.copy_(noised.double().mul_(step / divide_by))
    return made


def _draw_noise_at(
    noise: Noise, total: int, own_stretches: Stretches, scale: float, rng: Rng, dtype: torch.dtype
) -> Tensor:
    """Returns the noise at these stretches of one release of `total` coordinates; all ranks take part in one draw."""
    # Correlated and Gaussian noise can be made at any coordinates of the draw.
    if isinstance(noise, Correlated):
        return noise.values_at(total, own_stretches, scale, rng, dtype)
    if isinstance(noise, Gaussian):
        return rng.normals_at(total, own_stretches, scale, dtype)
    # Other noise is made for all coordinates on every rank, and each keeps its own part.
    all_noise = torch.zeros(total, dtype=dtype)
    noise.add_({"": all_noise}, scale, rng)
    return torch.cat([all_noise[start : start + count] for start, count in own_stretches])


def _open_sealed(
    value: Sealed[Grads] | Sealed[Grads | TwoPartSum | WideSum | OnGrid],
) -> Grads | TwoPartSum | WideSum | OnGrid:
    """Returns the sum in a sealed value that `release` is about to add noise to."""
    total: Grads | TwoPartSum | WideSum | OnGrid = unseal(value)  # type: ignore[misc]  # a sealed union of the four
    return total


def _divide_by_factors(value: Grads, factors: Mapping[str, float] | None) -> Grads:
    """Divides by the public factors of the sensitivity's units, which were multiplied in before the noise."""
    return value if factors is None else {name: tensor.div_(factors[name]) for name, tensor in value.items()}


def _check_dimension(value: Mapping[str, Tensor], sensitivity: Sensitivity) -> None:
    """Raises ValueError if the sum that `release` is given has more coordinates than its L1 bound was proved for."""
    # Only L1 bounds depend on the number of coordinates.
    if sensitivity.dimension is None:
        return
    coordinates = sum(tensor.numel() for tensor in value.values())  # public: the shape of what is released
    if coordinates > sensitivity.dimension:
        raise ValueError(
            f"dimension={sensitivity.dimension}: the sum has {coordinates} coordinates, and the bound was proved for "
            "fewer; give the number of trainable parameters"
        )


def _noise_scale(noise: Noise, bound: float, *, is_unproven: bool) -> float:
    """Returns the scale of the noise that a release adds; NaN where nothing bounds the sensitivity, so that the value
    is lost to everyone.
    """
    if noise.multiplier == 0:  # 0 × ∞ is not a scale; an infinite bound is allowed where no noise is asked for
        return 0.0
    if is_unproven and not math.isfinite(bound):  # of no use to anyone, and Private ends the run
        return math.nan
    if not math.isfinite(bound):
        raise ValueError(f"bound={bound}: noise needs a finite bound; give one, or a multiplier of 0")
    return noise.multiplier * bound


def _add_noise(value: Grads | TwoPartSum | WideSum, noise: Noise, scale: float, rng: Rng, divide_by: float) -> Grads:
    """Adds a release's noise of this scale and divides by a public number; an undefined scale makes all values NaN."""
    # Sums in two parts or in float64 take their noise before they are rounded to the released type; rounding is then
    # post-processing.
    if isinstance(value, TwoPartSum | WideSum) and scale > 0:
        return _add_noise_in_float64(value, noise, scale, rng, divide_by)
    summed = {name: make_dense(tensor) for name, tensor in to_own_dtype(value).items()}
    if math.isnan(scale):
        return {name: torch.full_like(tensor, math.nan) for name, tensor in summed.items()}
    if scale == 0:
        divide_(summed, divide_by)
    else:
        noise.add_(summed, scale, rng, 1 / divide_by)
    return summed


def _add_noise_in_float64(value: TwoPartSum | WideSum, noise: Noise, scale: float, rng: Rng, divide_by: float) -> Grads:
    """Draws the noise of a release where the result goes and adds the sum to it in float64, a stretch at a time."""
    # The result's own tensors are free: they receive the noise first.
    sums: tuple[Grads, ...]
    if isinstance(value, TwoPartSum):
        released, sums = zeros_like(value.first), (value.first, value.second)
    else:
        released, sums = {name: tensor.zero_() for name, tensor in value.narrow.items()}, (value.values,)
    released = {name: make_dense(tensor) for name, tensor in released.items()}
    noise.add_(released, scale, rng)
    # Sum and noise meet in float64 and are rounded once, after the noise, where rounding is free.
    add_in_float64(iterate_together(released, *sums), 1 / divide_by)
    return released


@accelerate
def add_in_float64(rows: Iterable[Sequence[Tensor]], factor: float) -> None:
    """Sets out = (Σ others + out) · factor for each row (out, *others) of a release, in float64 and rounded once."""
    for out, first, *others in rows:
        total = first.double()
        for other in (*others, out):
            total = total + other
        out.copy_(total.mul_(factor))


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
    """Releases the choice of an index with a high score, ε-DP when one record moves each score by at most
    `sensitivity`.
    """
    # Gumbel noise on scores is the exponential mechanism: index i with probability ∝ exp(ε u_i / 2Δ).
    epsilon = validate.positive("epsilon", epsilon)
    sensitivity = validate.positive("sensitivity", sensitivity)
    bare = unseal(scores).to(torch.float64)
    choice = _ask_choice_taps(bare, sensitivity, epsilon)
    chosen = _choose_by_weight(bare * (epsilon / (2 * sensitivity)), rng) if choice is None else int(choice)
    return chosen, _choice_event(epsilon)


GRID = 2.0**-20
"""A number chosen on a line is rounded to this part of its length: its last bits would tell which interval it is from."""


def choose_between(utility: Sealed[Steps], sensitivity: float, epsilon: float, rng: Rng) -> tuple[float, Event]:
    """Releases the choice of a number where the function is high, ε-DP when one record moves it by `sensitivity` at
    most.
    """
    epsilon = validate.positive("epsilon", epsilon)
    sensitivity = validate.positive("sensitivity", sensitivity)
    # A tap, by which an audit sees the scores, may choose in place of the mechanism; the event is not private then.
    steps = unseal(utility)
    choice = _ask_choice_taps(steps, sensitivity, epsilon)
    if choice is not None:
        return float(choice), _choice_event(epsilon)
    # The exponential mechanism over intervals: weight = width · exp(ε u / 2Δ), in logarithms so that no weight
    # overflows.
    width = steps.edges.diff()  # an interval of width 0 has a weight of log 0 and is never chosen
    i = _choose_by_weight(width.log() + steps.heights * (epsilon / (2 * sensitivity)), rng)
    # Within an interval all places are equally good; the last bits would tell the interval, so they are rounded away.
    place = float(steps.edges[i] + width[i] * float(rng.uniform(1)[0]))
    first, last = float(steps.edges[0]), float(steps.edges[-1])
    step = (last - first) * GRID
    return min(last, first + round((place - first) / step) * step), _choice_event(epsilon)


def _choose_by_weight(log_weights: Tensor, rng: Rng) -> int:
    """Returns the index that a release chooses with probability ∝ exp(log_weights): the largest after Gumbel noise."""
    # −ln E, E = −ln(1 − w) exponential: w in steps of 2⁻⁶⁴, so that large values, which decide, end late (noise_tail.py).
    w = (rng.words(log_weights.numel()).astype(np.float64) + 0.5) * 2.0**-64
    gumbel = -torch.from_numpy(-np.log1p(-np.minimum(w, 1 - 2.0**-53))).log()
    return int(torch.argmax(log_weights + gumbel))


def _ask_choice_taps(scores: Tensor | Steps, sensitivity: float, epsilon: float) -> float | None:
    """Returns what a tap of `tap_releases` decided in place of the private choice that is released, or None if no tap
    did.
    """
    for tap in _choice_taps:
        choice = tap(scores, sensitivity, epsilon)
        if choice is not None:
            return choice
    return None


def _choice_event(epsilon: float) -> Event:
    return events.NonPrivate(TAPPED) if _taps or _choice_taps else events.Exponential(epsilon)

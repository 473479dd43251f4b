"""The noise that `release` adds: Gaussian for an L2 bound, Laplace for an L1 bound.

Both are named by their multiplier: standard deviation (Gaussian) or scale (Laplace) over the sensitivity. Noise is
drawn in float32 or better, once, over all tensors of a release as one vector.

Privacy: Gaussian(σ) on a sum whose L2 norm one record moves by ≤ C, at standard deviation σC, is the Gaussian mechanism
(Dwork et al. 2006; exact curve in Balle & Wang 2018). Laplace at scale bC on an L1 bound C is (1/b)-DP.
A multiplier of 0 adds nothing, and the event says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sordino import events, validate
from sordino.events import Event
from sordino.gradients.persample import Exact, Grads, accumulation_dtype
from sordino.rng import Rng


@dataclass(frozen=True)
class Sensitivity:
    """How far one record can move a sum: in L2, and in L1 where a weigher bounds that too."""

    l2: float
    l1: float | None = None


class Noise(Protocol):
    """A distribution of noise and the event that adding it amounts to."""

    @property
    def multiplier(self) -> float:
        """The noise's scale over the sensitivity."""
        ...

    def bound(self, sensitivity: Sensitivity) -> float:
        """The sensitivity in the norm this noise needs; TypeError when it is not bounded."""
        ...

    def draw(self, like: Mapping[str, Tensor], scale: float, rng: Rng) -> Grads:
        """Noise of this scale in the shapes of `like`."""
        ...

    def event(self, estimate: Exact) -> Event:
        """What was done to the data, given how the norms were obtained."""
        ...


@dataclass(frozen=True)
class Gaussian:
    """N(0, (multiplier × L2 sensitivity)²) on every coordinate."""

    multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "multiplier", validate.non_negative("multiplier", self.multiplier))

    def bound(self, sensitivity: Sensitivity) -> float:
        """The L2 sensitivity."""
        return sensitivity.l2

    def draw(self, like: Mapping[str, Tensor], scale: float, rng: Rng) -> Grads:
        """One vector of normal values, cut to the shapes of `like`."""
        dtype = _drawn_in(like)
        return _cut(rng.normal(_total(like), dtype).mul_(scale), like)

    def event(self, estimate: Exact) -> Event:
        """Gaussian(multiplier)."""
        return events.Gaussian(self.multiplier) if self.multiplier else _no_noise()


@dataclass(frozen=True)
class Laplace:
    """Lap(multiplier × L1 sensitivity) on every coordinate."""

    multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "multiplier", validate.non_negative("multiplier", self.multiplier))

    def bound(self, sensitivity: Sensitivity) -> float:
        """The L1 sensitivity."""
        if sensitivity.l1 is None:
            raise TypeError(
                "Laplace noise needs an L1 bound on a record's contribution, and this weigher promises only an L2 bound: "
                "use Gaussian noise, or a weigher that bounds the L1 norm"
            )
        return sensitivity.l1

    def draw(self, like: Mapping[str, Tensor], scale: float, rng: Rng) -> Grads:
        """One vector of Laplace values, cut to the shapes of `like`."""
        return _cut(rng.laplace(_total(like)).mul_(scale).to(_drawn_in(like)), like)

    def event(self, estimate: Exact) -> Event:
        """Laplace(scale = multiplier)."""
        return events.Laplace(self.multiplier) if self.multiplier else _no_noise()


def _no_noise() -> Event:
    return events.NonPrivate("the noise multiplier is 0: sums of private gradients were released as they are")


def _total(like: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in like.values())


def _drawn_in(like: Mapping[str, Tensor]) -> torch.dtype:
    dtype = torch.float32
    for tensor in like.values():
        dtype = torch.promote_types(dtype, accumulation_dtype(tensor.dtype))
    return dtype


def _cut(flat: Tensor, like: Mapping[str, Tensor]) -> Grads:
    pieces = flat.split([tensor.numel() for tensor in like.values()])
    return {
        name: piece.view(tensor.shape).to(device=tensor.device, dtype=accumulation_dtype(tensor.dtype))
        for (name, tensor), piece in zip(like.items(), pieces, strict=True)
    }

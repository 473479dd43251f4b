"""Gaussian noise that is correlated between steps: later noise cancels a part of earlier noise.

The model is made of the sum of all released gradients, and so is its noise. With a strategy matrix C (`Banded`,
`InverseBanded`, `Buffered`), step t of a phase gets

    w_t = (C⁻¹ Z)_t,    Z independent N(0, 1) in every step and coordinate

times multiplier × bound. C G + σ Z is released, read through C⁻¹ (Denisov et al. 2022, arXiv:2202.08312). How w_t is made:

    Banded          w_t = z_t − Σ_{k=1}^{b−1} c_k w_{t−k}           keeps the last b − 1 noise vectors
    Buffered        w_t = z_t − Σ_i ω_i s_i,  s_i ← θ_i s_i + w_t   keeps one vector per buffer
    InverseBanded   w_t = Σ_{k=0}^{b−1} a_k z_{t−k}                 keeps nothing: past z are made again from the key

Vectors that are kept are as secret as the key and are in no checkpoint: a resumed phase makes them again.

Privacy: the whole phase is one release of C G + σ Z, or with `CyclicPoisson` one for every turn of a record's group. The
sampler says which, and the ledger charges the phase before its first release. Draws for which no theorem is known,
plain Poisson above all, are refused. Adaptively chosen gradients are covered, because the noise is Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from sordino import events, validate
from sordino.events import Event
from sordino.matrix_factorization.strategies import Banded, Buffered, InverseBanded, Strategy
from sordino.refusal import Refusal
from sordino.release.noise import dtype_of_noise, event_without_noise
from sordino.release.sensitivity import EXACT, Estimate, FromProjections, Sensitivity
from sordino.rng.phase_noise import PhaseNoise
from sordino.rng.streams import Rng

_BLOCK = 1 << 15
"""Coordinates of which all kept vectors stay in the cache while they are combined."""
_ROUNDINGS = 2.0**-22
"""What rounding to float32 may take from the noise for every vector that is combined, relative to it."""


@dataclass(frozen=True)
class Correlated:
    """Gaussian noise with a part of which later steps cancel what earlier steps added.

    Args:
        multiplier: σ, the standard deviation of the independent noise over the bound. `sd.calibrate` finds it from an ε.
        strategy: `Banded`, `InverseBanded` or `Buffered`.

    Privacy:
        Charged by phases: a call of `draws` is charged as a whole before its first release. Draw with `CyclicPoisson`,
        with at least as many groups as bands, or in a `FixedOrder`.

    Examples:
        >>> import sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Correlated(3.0, sd.Banded(16)))
        >>> sd.dry_run(query, sd.CyclicPoisson(rate=0.1, groups=16), dataset_size=1000, steps=512).steps
        512

    """

    multiplier: float
    strategy: Strategy

    def __post_init__(self) -> None:
        """Validates the multiplier and the strategy."""
        object.__setattr__(self, "multiplier", validate.non_negative("multiplier", self.multiplier))
        if not isinstance(self.strategy, Strategy):
            raise TypeError(f"strategy={self.strategy!r}: must be a strategy, such as Banded(16)")

    def bound_for(self, sensitivity: Sensitivity) -> float:
        """Returns the L2 sensitivity, raised by what rounding to float32 may take from the noise."""
        return sensitivity.l2 * (1 + _ROUNDINGS * self.strategy.vectors)

    def add_(self, value: Mapping[str, Tensor], scale: float, rng: Rng, factor: float = 1.0) -> None:
        """Adds the correlated noise of the step that was drawn last, as one vector over all tensors.

        A coordinate has the same place in that vector at every step, whatever the layout of its tensor in memory is.
        """
        # Empty tensors have no coordinates and take no noise.
        tensors = [tensor for tensor in value.values() if tensor.numel()]
        if not tensors:
            return
        # All tensors together are one vector, so a phase's noise does not depend on how parameters are cut into
        # tensors.
        total, dtype = sum(tensor.numel() for tensor in tensors), dtype_of_noise(tensors)
        noise = self.values_at(total, [(0, total)], scale, rng, dtype)
        for tensor, own in zip(tensors, noise.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.add_(own.view(tensor.shape).to(tensor)).mul_(factor)

    def values_at(
        self, total: int, stretches: Sequence[tuple[int, int]], scale: float, rng: Rng, dtype: torch.dtype
    ) -> Tensor:
        """Returns the correlated noise of the step that was drawn last at these stretches of one release of `total`
        coordinates.

        The values at a coordinate do not depend on which other coordinates are asked for, so ranks may divide them.
        """
        # The noise of a step is a combination of the noise of earlier steps, so there must be a phase that those belong
        # to.
        phase = rng.phase
        if phase is None:
            raise Refusal(
                "correlated noise belongs to the steps of a phase, and no phase has begun.\n"
                "Draw lots by private.draws(…) with CyclicPoisson or FixedOrder."
            )
        # The phase refuses a step whose scale, size or strategy differs from its first: the factorisation was charged
        # for equal steps.
        step = phase.take_step(scale, f"{total} coordinates in {dtype}, {self.strategy}")
        # A combination that was begun for these coordinates goes on; otherwise it is made anew from the phase's own
        # streams.
        kept = phase.kept
        if not isinstance(kept, _Combination) or not kept.is_at(stretches):
            kept = phase.kept = _combination(self.strategy, phase, total, stretches, dtype)
        return kept.noise_of(step) * scale

    @property
    def as_event(self) -> Event:
        """What one step with it is, to stand in `events.CyclicPoisson` or `events.FixedOrder`."""
        return self.event(EXACT)

    def event(self, estimate: Estimate) -> Event:
        """Returns `events.Correlated` for a release with correlated noise; raises TypeError for estimated norms, for
        which there is no theorem.
        """
        # Estimated norms make the sensitivity random, and for that no theorem covers correlated steps.
        if isinstance(estimate, FromProjections):
            raise TypeError(
                "correlated noise with estimated norms has no theorem here: use Gaussian noise, or exact norms"
            )
        return (
            events.Correlated(self.multiplier, self.strategy.describe()) if self.multiplier else event_without_noise()
        )

    def length_of_ones(self, coordinates: int) -> float:
        """Returns √d."""
        return math.sqrt(coordinates)


def find_correlated_noise(thing: Any) -> Correlated | None:
    """Returns the correlated noise that a query has, in its own fields or in those of what it is made of."""
    if isinstance(thing, Correlated):
        return thing
    if not is_dataclass(thing):
        return None
    # A query may hold its noise inside another query; the first one found is used.
    found = (find_correlated_noise(getattr(thing, each.name, None)) for each in fields(thing))
    return next((noise for noise in found if noise is not None), None)


class _Combination:
    """Makes the noise of one step after another at some coordinates; steps that were left out are made on the way."""

    def __init__(
        self,
        strategy: Strategy,
        phase: PhaseNoise,
        total: int,
        stretches: Sequence[tuple[int, int]],
        dtype: torch.dtype,
    ) -> None:
        self._where = (total, tuple(stretches), dtype)
        self._phase = phase
        self._next = 0
        self._size = sum(count for _, count in stretches)
        self._dtype = dtype

    def is_at(self, stretches: Sequence[tuple[int, int]]) -> bool:
        """Returns whether the noise is made here at these coordinates."""
        return self._where[1] == tuple(stretches)

    def noise_of(self, step: int) -> Tensor:
        """Returns the correlated noise w_t of a step, after making that of every step before it that was not made yet."""
        noise = torch.zeros(0, dtype=self._dtype)
        for now in range(self._next, step + 1):
            noise = self.advance(now)
        self._next = step + 1
        return noise

    def independent(self, step: int) -> Tensor:
        """Returns z_t at the coordinates."""
        total, stretches, dtype = self._where
        return self._phase.vector(step, total, stretches, dtype)

    def advance(self, step: int) -> Tensor:
        """Returns w_t for the next step, and keeps what later steps need of it."""
        raise NotImplementedError


class _BandedCombination(_Combination):
    """w_t = z_t − Σ c_k w_{t−k}: keeps the last b − 1 noise vectors in a ring."""

    def __init__(self, strategy: Strategy, phase: PhaseNoise, *where: object) -> None:
        super().__init__(strategy, phase, *where)  # type: ignore[arg-type]
        self._coefficients = [float(c) for c in strategy.encoder(phase.steps)[1:]]
        self._ring = torch.zeros(len(self._coefficients), self._size, dtype=self._dtype)

    def advance(self, step: int) -> Tensor:
        """Returns the correlated noise w_t of a banded strategy and puts it in the place of the oldest vector of the
        ring.
        """
        noise, held = self.independent(step), len(self._coefficients)
        if not held:
            return noise
        # The last vectors of the ring are those that C combines with this step; before the first step there are none.
        used = [(c, self._ring[(step - k) % held]) for k, c in enumerate(self._coefficients, 1) if k <= step]
        subtract_multiples_(noise, used)
        # The new vector takes the place of the oldest one, which no later step needs.
        self._ring[step % held] = noise
        return noise


class _BufferedCombination(_Combination):
    """w_t = z_t − Σ ω_i s_i, s_i ← θ_i s_i + w_t: keeps one vector per buffer."""

    def __init__(self, strategy: Buffered, phase: PhaseNoise, *where: object) -> None:
        super().__init__(strategy, phase, *where)  # type: ignore[arg-type]
        self._decays, self._weights = strategy.decays, strategy.weights
        self._buffers = torch.zeros(len(self._decays), self._size, dtype=self._dtype)

    def advance(self, step: int) -> Tensor:
        """Returns the correlated noise w_t of a strategy with buffers and adds it to every buffer after that has
        decayed.
        """
        noise = self.independent(step)
        subtract_multiples_(noise, list(zip(self._weights, self._buffers, strict=True)))
        for decay, buffer in zip(self._decays, self._buffers, strict=True):
            buffer.mul_(decay).add_(noise)
        return noise


class _InverseBandedCombination(_Combination):
    """w_t = Σ a_k z_{t−k}: makes the last b independent vectors again at every step and keeps nothing."""

    def __init__(self, strategy: Strategy, phase: PhaseNoise, *where: object) -> None:
        super().__init__(strategy, phase, *where)  # type: ignore[arg-type]
        self._coefficients = [float(a) for a in strategy.decoder(phase.steps)]

    def noise_of(self, step: int) -> Tensor:
        """Returns w_t; steps that were left out need not be made."""
        return self.advance(step)

    def advance(self, step: int) -> Tensor:
        """Returns the correlated noise w_t of an inverse-banded strategy from the independent vectors of this step and
        those before it.
        """
        noise = self.independent(step)
        for k, a in enumerate(self._coefficients[1 : step + 1], 1):
            subtract_multiples_(noise, [(-a, self.independent(step - k))])
        return noise


def _combination(strategy: Strategy, phase: PhaseNoise, *where: object) -> _Combination:
    """Returns what combines independent vectors to the correlated noise of a strategy."""
    if isinstance(strategy, Buffered):
        return _BufferedCombination(strategy, phase, *where)
    if isinstance(strategy, InverseBanded):
        return _InverseBandedCombination(strategy, phase, *where)
    if isinstance(strategy, Banded):
        return _BandedCombination(strategy, phase, *where)
    raise TypeError(f"strategy={strategy!r}: must be Banded, InverseBanded or Buffered")


def subtract_multiples_(value: Tensor, multiples: Sequence[tuple[float, Tensor]]) -> None:
    """Subtracts c · v for every (c, v), a block of coordinates at a time, so that correlated noise cancels earlier
    noise.

    A product is rounded before it is subtracted, at every coordinate alike, so that the bits do not depend on where a
    coordinate lies in its vector: ranks hold different parts of it.
    """
    # A block at a time: product and subtraction stay in the cache for models of any size.
    product = torch.empty(min(_BLOCK, len(value)), dtype=value.dtype)
    for start in range(0, len(value), _BLOCK):
        block = value[start : start + _BLOCK]
        room = product[: len(block)]
        for c, vector in multiples:
            block.sub_(torch.mul(vector[start : start + _BLOCK], c, out=room))

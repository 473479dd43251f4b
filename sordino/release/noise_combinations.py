"""How independent noise vectors are combined to correlated noise: one class for each strategy, in torch.

    BandedCombination          w_t = z_t − Σ_{k=1}^{b−1} c_k w_{t−k}           keeps the last b − 1 noise vectors
    BufferedCombination        w_t = z_t − Σ_i ω_i s_i,  s_i ← θ_i s_i + w_t   keeps one vector per buffer
    InverseBandedCombination   w_t = Σ_{k=0}^{b−1} a_k z_{t−k}                 keeps nothing: past z are made again

These are slow and plain. `compiled_combinations.py` gives the same bits faster, and is compared with them before use.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sordino.matrix_factorization.strategies import Banded, Buffered, InverseBanded, Strategy
from sordino.rng.phase_noise import PhaseNoise

_BLOCK = 1 << 15
"""Coordinates of which all kept vectors stay in the cache while they are combined."""


class Combination:
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
        """Returns the combination of noise vectors that is the correlated noise w_t of a step, after making that of
        every step before it that was not made yet.
        """
        noise = torch.zeros(0, dtype=self._dtype)
        for now in range(self._next, step + 1):
            noise = self.advance(now)
        self._next = step + 1
        return noise

    def add_noise_(self, tensors: Sequence[Tensor], step: int, scale: float, factor: float) -> None:
        """Adds scale × w_t, the combination of noise vectors, to tensors laid end to end, and multiplies the sums by a
        factor.
        """
        noise = self.noise_of(step) * scale
        for tensor, own in zip(tensors, noise.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.add_(own.view(tensor.shape).to(tensor)).mul_(factor)

    def independent(self, step: int) -> Tensor:
        """Returns z_t at the coordinates."""
        total, stretches, dtype = self._where
        return self._phase.vector(step, total, stretches, dtype)

    def advance(self, step: int) -> Tensor:
        """Returns w_t for the next step, and keeps what later steps need of it."""
        raise NotImplementedError


class BandedCombination(Combination):
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


class BufferedCombination(Combination):
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


class InverseBandedCombination(Combination):
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


def subtract_multiples_(value: Tensor, multiples: Sequence[tuple[float, Tensor]]) -> None:
    """Subtracts c · v for every (c, v) of a combination of noise vectors, a block of coordinates at a time, so that
    correlated noise cancels earlier noise.

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


def create_plain_combination(strategy: Strategy, phase: PhaseNoise, *where: object) -> Combination:
    """Returns what combines independent vectors to the correlated noise of a strategy."""
    if isinstance(strategy, Buffered):
        return BufferedCombination(strategy, phase, *where)
    if isinstance(strategy, InverseBanded):
        return InverseBandedCombination(strategy, phase, *where)
    if isinstance(strategy, Banded):
        return BandedCombination(strategy, phase, *where)
    raise TypeError(f"strategy={strategy!r}: must be Banded, InverseBanded or Buffered")

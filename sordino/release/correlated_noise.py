"""Gaussian noise that is correlated between steps: later noise cancels a part of earlier noise.

The model is made of the sum of all released gradients, and so is its noise. With a strategy matrix C (`Banded`,
`InverseBanded`, `Buffered`), step t of a phase gets

    w_t = (C⁻¹ Z)_t,    Z independent N(0, 1) in every step and coordinate

times multiplier × bound. C G + σ Z is released, read through C⁻¹ (Denisov et al. 2022, arXiv:2202.08312). How w_t is made:

    Banded          w_t = z_t − Σ_{k=1}^{b−1} c_k w_{t−k}           needs the last b − 1 noise vectors
    Buffered        w_t = z_t − Σ_i ω_i s_i,  s_i ← θ_i s_i + w_t   needs one vector per buffer
    InverseBanded   w_t = Σ_{k=0}^{b−1} a_k z_{t−k}                 needs past z, which are made again from the key

Vectors that are kept are as secret as the key and are in no checkpoint: a resumed phase makes them again.

Privacy: the whole phase is one release of C G + σ Z, or with `CyclicPoisson` one for every turn of a record's group. The
sampler says which, and the ledger charges the phase before its first release. Draws for which no theorem is known,
plain Poisson above all, are refused. Adaptively chosen gradients are covered, because the noise is Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from sordino import events, validate
from sordino.events import Event
from sordino.matrix_factorization.strategies import Strategy
from sordino.refusal import Refusal
from sordino.release.compiled_combinations import create_compiled_combination
from sordino.release.noise import dtype_of_noise, event_without_noise
from sordino.release.noise_combinations import Combination, create_plain_combination
from sordino.release.sensitivity import EXACT, Estimate, FromProjections, Sensitivity
from sordino.rng.streams import Rng

_ROUNDINGS = 2.0**-22
"""What rounding to float32 may take from the noise for every vector that is combined, relative to it."""


@dataclass(frozen=True)
class Correlated:
    """Gaussian noise with a part of which later steps cancel what earlier steps added.

    Args:
        multiplier: σ, the standard deviation of the independent noise over the bound. `sd.calibrate` finds it from an ε.
        strategy: `Banded`, `InverseBanded` or `Buffered`.
        kept_vectors: how many vectors of the size of all parameters may be kept in memory between steps. With fewer than
            the default, more noise is made again from the key, which takes time; 0 keeps nothing. The noise has the same
            bits. By default `Banded` keeps one fewer than bands, `InverseBanded` twice as many, and `Buffered` four more
            than buffers. Without the compiled kernel, a strategy keeps what it needs, whatever is said here.

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
    kept_vectors: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Validates the multiplier and the strategy."""
        object.__setattr__(self, "multiplier", validate.non_negative("multiplier", self.multiplier))
        if not isinstance(self.strategy, Strategy):
            raise TypeError(f"strategy={self.strategy!r}: must be a strategy, such as Banded(16)")
        if self.kept_vectors is not None:
            object.__setattr__(self, "kept_vectors", validate.count("kept_vectors", self.kept_vectors, least=0))

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
        total = sum(tensor.numel() for tensor in tensors)
        made, step = self._take_step(total, [(0, total)], scale, rng, dtype_of_noise(tensors))
        made.add_noise_(tensors, step, scale, factor)

    def values_at(
        self, total: int, stretches: Sequence[tuple[int, int]], scale: float, rng: Rng, dtype: torch.dtype
    ) -> Tensor:
        """Returns the correlated noise of the step that was drawn last at these stretches of one release of `total`
        coordinates.

        The values at a coordinate do not depend on which other coordinates are asked for, so ranks may divide them.
        """
        made, step = self._take_step(total, stretches, scale, rng, dtype)
        return made.noise_of(step) * scale

    def _take_step(
        self, total: int, stretches: Sequence[tuple[int, int]], scale: float, rng: Rng, dtype: torch.dtype
    ) -> tuple[Combination, int]:
        """Returns what makes the correlated noise of the phase at these coordinates, and the step that is released now."""
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
        if not isinstance(kept, Combination) or not kept.is_at(stretches):
            kept = create_compiled_combination(self.strategy, phase, total, stretches, dtype, self.kept_vectors)
            kept = kept or create_plain_combination(self.strategy, phase, total, stretches, dtype)
            phase.kept = kept
        return kept, step

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

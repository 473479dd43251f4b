"""Recomputes the parts of a step by other means: the draw, the sum and the noise.

sum      Σ_i min(1, C / ‖g_i‖) g_i: autograd for one record at a time, norms and sum in float64; a gradient that is
    not finite adds nothing
noise    (released × L − sum) − σ C (1 + slack) z, z by numpy from the run's key, whatever kernel trained
correlated noise
    the same with w_t = Σ_{k ≤ t} d_k z_{t−k} in place of z, where d is the first column of C⁻¹: all independent vectors
    of the phase are made again from its first step on, and summed in float64; nothing of earlier steps is kept
phase    every lot of a phase that was charged as a whole, drawn again from the key: no record comes back too early
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.app.runs.run_device import device_of
from sordino.clipping.flat import Flat
from sordino.lots.loading import Loader
from sordino.matrix_factorization.strategies import Strategy
from sordino.per_sample import batch_structure as batches
from sordino.queries.noisy_sum import NoisySum
from sordino.release.noise import Gaussian, Noise
from sordino.release.sensitivity import Sensitivity, Unproven
from sordino.release.vectors import Grads
from sordino.rng.streams import Rng
from sordino.sampling.sampler import Informed

if TYPE_CHECKING:
    from sordino.app.runs.training_loop import Training


_ROUNDING_OF_VECTOR = 2.0**-22
"""By how much correlated noise is raised for every vector that is combined, relative to it."""
_NOTHING = 1e-12
"""Coefficients of C⁻¹ below this are rounding of the division, where C⁻¹ has few bands."""


@dataclass(frozen=True, eq=False)
class RecordedRelease:
    """What came to the release, the sensitivity promised for it, and the noise to be added."""

    value: Grads
    sensitivity: Sensitivity | Unproven
    noise: Noise


@dataclass(frozen=True)
class PhaseStep:
    """A step of a phase with correlated noise, as the run's settings and its place in the phase say."""

    strategy: Strategy
    phase_number: int
    step: int
    """Counted from 0 at the beginning of the phase."""

    def make_noise(self, noise_stream: Rng, size: int) -> Tensor:
        """Recomputes the noise, a part of an audited step: w_t = (C⁻¹ Z)_t in float64, from the run's noise stream and
        nothing that the run has kept.
        """
        stream = noise_stream.child("phase", self.phase_number)
        column = self._invert_encoder()
        total = torch.zeros(size, dtype=torch.float64)
        for lag, factor in enumerate(column):
            # Strategies whose inverse is banded end here; what is left of the division is rounding.
            if abs(factor) < _NOTHING:
                continue
            stream.counter = self.step - lag
            blocks = [block.clone() for block in stream.normal_blocks(size, 1.0)]
            total.add_(torch.cat(blocks).double(), alpha=float(factor))
        return total

    def _invert_encoder(self) -> NDArray[np.float64]:
        """Returns the first column of C⁻¹, by which the noise of an audited step is recomputed, by division of power
        series: d_0 = 1, d_t = −Σ_k c_k d_{t−k}.
        """
        given = np.zeros(self.step + 1)
        coefficients = self.strategy.encoder(self.step + 1)[: self.step + 1]
        given[: len(coefficients)] = coefficients
        column = np.zeros(self.step + 1)
        column[0] = 1.0
        for t in range(1, self.step + 1):
            column[t] = -float(given[1 : t + 1] @ column[t - 1 :: -1][:t])
        return column


def find_early_return(lots: Iterator[NDArray[np.int64]], separation: int) -> tuple[int, int] | None:
    """Returns the first two audited steps, fewer than `separation` apart, whose lots share a record; None if there are
    none.

    >>> find_early_return(iter([np.array([0, 1]), np.array([2]), np.array([1])]), 3)
    (0, 2)
    """
    last: dict[int, int] = {}
    for step, records in enumerate(lots):
        for record in records.tolist():
            if step - last.get(record, step - separation) < separation:
                return last[record], step
            last[record] = step
    return None


def redraw_phase(training: Training, steps: int) -> Iterator[NDArray[np.int64]]:
    """Yields the records of the first `steps` lots of the phase that an audited step belongs to, drawn from the key."""
    inside = training.private.open_for_audit()
    assert inside.draw_stream is not None, "a lot was drawn"
    draws = training.job.sampler.draws(training.job.data.drawn, inside.draw_stream, 0)
    return (draw.indices for draw in itertools.islice(draws, steps))


def redraw_lot(training: Training, number: int) -> NDArray[np.int64] | None:
    """Recomputes the draw, a part of an audited step: returns the records of lot `number`, drawn from the run's key;
    None if the sampler looked at the records.
    """
    # A sampler that asked the records cannot be redrawn from the key alone.
    sampler = training.job.sampler
    if isinstance(sampler, Informed):
        return None
    inside = training.private.open_for_audit()
    assert inside.draw_stream is not None, "a lot was drawn"
    n = len(training.job.data.train)
    return next(itertools.islice(sampler.draws(n, inside.draw_stream, inside.draw_position - 1), 1)).indices


def flat_bound(training: Training) -> float | None:
    """Returns the bound with which the sum, a part of an audited step, is recomputed: the configuration's if each
    gradient is clipped to it and nothing else is done, else None.
    """
    # Only flat clipping has a weight that the audit can compute by itself.
    query = training.job.create_query()
    plain = isinstance(query, NoisySum) and isinstance(query.clipping, Flat)
    return training.job.settings.recipe.bound if plain else None


def measure_sum_error(training: Training, indices: NDArray[np.int64], release: RecordedRelease) -> float | None:
    """Returns the distance of the sum, a part of an audited step, from the oracle's recomputed one, in bounds; None if
    the clipping rule is not `Flat`.
    """
    bound, model = flat_bound(training), training.model
    if bound is None or training.job.create_penalty() is not None:
        return None
    # In float64, so that the oracle's own rounding does not count.
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = [torch.zeros(p.shape, dtype=torch.float64, device=p.device) for p in parameters]
    load = Loader(training.job.data.train, None)
    # One record at a time, so that nothing of the batch engine is used.
    for i in indices:
        record = batches.move_to(load(np.array([i])), device_of(model))
        loss = batches.call_loss(training.job.problem.loss_fn, model, record).sum()
        grads = [g.double() for g in torch.autograd.grad(loss, parameters)]
        norm = float(torch.stack([g.square().sum() for g in grads]).sum().sqrt())
        if np.isfinite(norm):
            for parameter_sum, g in zip(total, grads, strict=True):
                parameter_sum.add_(g, alpha=min(1.0, bound / norm) if norm else 1.0)
    # The distance over all parameters together, in units of the bound.
    squared_error = sum(
        (float((release.value[name].double() - into).square().sum()) for name, into in zip(names, total, strict=True)),
        0.0,
    )
    return float(np.sqrt(squared_error)) / bound


def measure_noise_error(
    release: RecordedRelease,
    released_gradients: Mapping[str, Tensor],
    stream: Rng,
    *,
    multiplier: float,
    bound: float | None,
    expected_batch: float,
    phase_step: PhaseStep | None = None,
) -> float:
    """Returns the distance of the noise, a part of an audited step, from what the run's settings and key give, relative
    to its length.

    The multiplier and, if the clipping rule is `Flat`, the bound are those of the configuration, not what the release
    was given. So is the strategy of correlated noise, in `phase_step`.
    """
    assert isinstance(release.sensitivity, Sensitivity)
    # The scale follows from the configuration.
    effective_bound = release.noise.bound_for(release.sensitivity) if bound is None else bound
    scale = multiplier * effective_bound * (1 + release.sensitivity.rounding)
    # The values follow from the key.
    sizes = [value.numel() for value in release.value.values()]
    if phase_step is not None:
        # Correlated noise is raised by what rounding may take from each vector that is combined.
        scale *= 1 + phase_step.strategy.vectors * _ROUNDING_OF_VECTOR
        values = phase_step.make_noise(stream, sum(sizes))
    elif isinstance(release.noise, Gaussian):
        blocks = [block.clone() for block in stream.normal_blocks(sum(sizes), 1.0)]
        values = torch.cat(blocks).double()
    else:
        values = stream.laplace(sum(sizes)).double()
    units: Any = release.sensitivity.units
    factors = {} if units is None else units({name: value.numel() for name, value in release.value.items()})
    # What was added is the written gradient, undone by the public factors, minus the sum.
    squared_error = squared_length = 0.0
    for (name, value), piece in zip(release.value.items(), values.split(sizes), strict=True):
        expected_noise = torch.empty_like(value, dtype=torch.float64)
        if phase_step is not None:
            # A coordinate has the same place at every step of a phase, whatever the layout in memory is.
            expected_noise.copy_(piece.view(value.shape))
        else:
            expected_noise.as_strided((expected_noise.numel(),), (1,)).copy_(piece)  # in the order of memory
        observed_noise = released_gradients[name].double() * expected_batch * factors.get(name, 1.0) - value.double()
        squared_error += float((observed_noise - scale * expected_noise).square().sum())
        squared_length += float((scale * expected_noise).square().sum())
    return float(np.sqrt(squared_error / squared_length))

"""Recomputes the parts of a step by other means: the draw, the sum and the noise.

sum      Σ_i min(1, C / ‖g_i‖) g_i: autograd for one record at a time, norms and sum in float64; a gradient that is
    not finite adds nothing
noise    (released × L − sum) − σ C (1 + slack) z, z by numpy from the run's key, whatever kernel trained
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.app.runs.run_device import device_of
from sordino.clipping.flat import Flat
from sordino.lots.loading import Loader
from sordino.per_sample import batch_structure as batches
from sordino.queries.noisy_sum import NoisySum
from sordino.release.noise import Gaussian, Noise
from sordino.release.sensitivity import Sensitivity, Unproven
from sordino.release.vectors import Grads
from sordino.rng.streams import Rng
from sordino.sampling.sampler import Informed

if TYPE_CHECKING:
    from sordino.app.runs.training_loop import Training


@dataclass(frozen=True, eq=False)
class RecordedRelease:
    """What came to the release, the sensitivity promised for it, and the noise to be added."""

    value: Grads
    sensitivity: Sensitivity | Unproven
    noise: Noise


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
    plain = isinstance(query, NoisySum) and isinstance(query.weigher, Flat)
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
) -> float:
    """Returns the distance of the noise, a part of an audited step, from what the run's settings and key give, relative
    to its length.

    The multiplier and, if the clipping rule is `Flat`, the bound are those of the configuration, not what the release
    was given.
    """
    assert isinstance(release.sensitivity, Sensitivity)
    # The scale follows from the configuration.
    effective_bound = release.noise.bound_for(release.sensitivity) if bound is None else bound
    scale = multiplier * effective_bound * (1 + release.sensitivity.rounding)
    # The values follow from the key.
    sizes = [value.numel() for value in release.value.values()]
    if isinstance(release.noise, Gaussian):
        blocks = [block.clone() for block in stream.normal_blocks(sum(sizes), 1.0)]
        values = torch.cat(blocks).double()
    else:
        values = stream.laplace(sum(sizes)).double()
    units: Any = release.sensitivity.units
    factors = {} if units is None else units({name: value.numel() for name, value in release.value.items()})
    # What was added is the written gradient, undone by the public factors, minus the sum.
    squared_error = squared_length = 0.0
    for (name, value), piece in zip(release.value.items(), values.split(sizes), strict=True):
        expected_noise = torch.empty_like(value, dtype=torch.float64)  # in the order of memory
        expected_noise.as_strided((expected_noise.numel(),), (1,)).copy_(piece)
        observed_noise = released_gradients[name].double() * expected_batch * factors.get(name, 1.0) - value.double()
        squared_error += float((observed_noise - scale * expected_noise).square().sum())
        squared_length += float((scale * expected_noise).square().sum())
    return float(np.sqrt(squared_error / squared_length))

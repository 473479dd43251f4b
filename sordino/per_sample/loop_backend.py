"""The loop backend: one sample at a time through autograd, the oracle of every other backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sordino.per_sample.batch_structure import batch_size, take_rows
from sordino.per_sample.batch_structure import call_loss as losses_of
from sordino.per_sample.materialised import Materialised
from sordino.per_sample.model_checks import require_one_loss
from sordino.per_sample.model_inventory import find_spectral_vectors, keep_vectors
from sordino.per_sample.protocol import LossFn, trainable_parameters
from sordino.release.vectors import Grads


@dataclass(frozen=True)
class Loop:
    """Computes gradients by a backward pass per sample: slow, and obviously right.

    Examples:
        >>> import torch, sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> private = sd.Private(torch.nn.Linear(3, 1), lambda m, x: m(x).square().sum(1), query, backend=Loop())
        >>> private.steps
        0

    """

    def per_sample(self, model: nn.Module, loss_fn: LossFn, batch: Any) -> Materialised:
        """Runs a loop over the samples, each as a batch of one, so what a sample's gradient is needs no definition but
        autograd's.
        """
        parameters = trainable_parameters(model)
        rows: dict[str, list[Tensor]] = {name: [] for name in parameters}
        losses, vectors = [], find_spectral_vectors(model.modules())
        # One record at a time, through the user's own loss and plain autograd.
        for i in range(batch_size(batch)):
            with keep_vectors(vectors), torch.enable_grad():
                loss = require_one_loss(losses_of(loss_fn, model, take_rows(batch, slice(i, i + 1))))
            # A parameter that this record does not use has a gradient of zero.
            grads = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            for (name, p), grad in zip(parameters.items(), grads, strict=True):
                rows[name].append(torch.zeros_like(p) if grad is None else grad.to_dense())
            losses.append(loss.detach())
        stacked: Grads = {
            name: torch.stack(rows[name]) if rows[name] else p.new_zeros((0, *p.shape)).detach()
            for name, p in parameters.items()
        }
        return Materialised(stacked, torch.stack(losses) if losses else torch.zeros(0))

    def sample_bytes(self, model: nn.Module) -> int:
        """Returns the bytes of one gradient."""
        return sum(p.numel() * p.element_size() for p in trainable_parameters(model).values())

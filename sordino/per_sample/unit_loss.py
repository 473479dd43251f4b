"""Computes the loss of a privacy unit: the mean over its records.

A unit is a sample whose tensors have K rows, some of which only fill up.

    ℓ_u = Σ_{i ∈ u} ℓ_i / |u|,    so its gradient is the mean of those of its records

The model sees all rows of all units as one batch of U·K records; the backends see U losses, and with them the gradients
of U samples. Layers then have several rows for each sample, as they do for the tokens of a text.

Privacy: the mean is taken before anything is weighted, so a clipping rule that bounds ‖g_u‖ bounds what the whole unit
adds to a sum, however many records it has. K is public, so no shape tells how many a unit has.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sordino.per_sample.batch_structure import call_loss as losses_of
from sordino.per_sample.batch_structure import map_tensors
from sordino.per_sample.protocol import LossFn
from sordino.refusal import Refusal


class UnitBatch(NamedTuple):
    """The records of U units, K rows for each."""

    records: Any  # a batch whose tensors are (U, K, …)
    taken: Tensor  # (U, K), False where a row only fills up


def compute_unit_losses(loss_fn: LossFn, model: nn.Module, records: Any, taken: Tensor) -> Tensor:
    """Returns one loss per privacy unit, shape (U,): the mean of `loss_fn` over the unit's records that are taken.

    >>> two = UnitBatch((torch.tensor([[1.0, 3.0], [5.0, 5.0]]),), torch.tensor([[True, True], [True, False]]))
    >>> compute_unit_losses(lambda m, x: 2 * x, nn.Identity(), *two)
    tensor([ 4., 10.])
    """
    losses = losses_of(loss_fn, model, map_tensors(lambda leaf: leaf.flatten(0, 1), records))
    if not isinstance(losses, Tensor) or losses.dim() != 1 or losses.numel() != taken.numel():
        raise Refusal(
            "loss_fn returned something else than one loss per record.\n"
            "The loss of a unit is the mean over its own records.\n"
            "Use reduction='none', shape (B,)."
        )
    # Rows that only fill up have no loss; the mean is over the others.
    each = torch.where(taken, losses.view(taken.shape), 0)  # (U, K)
    return each.sum(dim=1) / taken.sum(dim=1).clamp(min=1)  # a unit has a record; what a test makes up may have none

"""Refusals before anything is drawn: models and losses whose samples cannot be told apart.

DP-SGD bounds what one record contributes. That needs a loss per record which depends on that record alone, and a
forward pass that stores nothing about the records. Both are checked here, on the structure and by a probe.
"""

from __future__ import annotations

from torch import Tensor

from sordino.refusal import Refusal

_ONE_PER_SAMPLE = (
    "need one loss per sample, shape (B,); use reduction='none' and reduce only over the sample's own axes"
)


def one_loss(losses: Tensor) -> Tensor:
    """The loss of a batch of one, as a scalar."""
    if not isinstance(losses, Tensor):
        raise Refusal(f"loss_fn returned a {type(losses).__name__}: {_ONE_PER_SAMPLE}")
    if losses.dim() == 0:
        raise Refusal(f"loss_fn returned a scalar: {_ONE_PER_SAMPLE}")
    if losses.shape != (1,):
        raise Refusal(f"loss_fn returned shape {tuple(losses.shape)} for one sample: {_ONE_PER_SAMPLE}")
    return losses[0]

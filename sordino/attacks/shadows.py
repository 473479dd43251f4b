"""Shadow heads: softmax regressions on frozen features, each trained on half of the records.

All heads are one matrix, trained together by gradient descent with momentum; a head sees its own half through a mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

_STEPS = 100
_MOMENTUM = 0.9
_MOST_FEATURES = 256
"""Principal directions that are kept: beyond, heads cost much and say little more."""


@dataclass(frozen=True, eq=False)
class Shadows:
    """What the heads say of every record, and who had which."""

    logits: NDArray[np.float64]  # (S, N, classes)
    inside: NDArray[np.bool_]  # (S, N)


def collect_head_inputs(model: nn.Module, x: Tensor) -> Tensor:
    """Returns what the last linear layer of a model sees of each record: its frozen features, on which shadow heads are
    trained.
    """
    # The last linear layer is taken for the head; everything in front of it is frozen.
    heads = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not heads:
        raise ValueError("the model has no linear layer to put a shadow's in place of; use the loss threshold alone")
    seen: list[Tensor] = []
    handle = heads[-1].register_forward_pre_hook(lambda _, given: seen.append(given[0].detach().float()))
    try:
        with torch.no_grad():
            for chunk in x.split(1000):
                model(chunk)
    finally:
        handle.remove()
    return torch.cat(seen).flatten(1)


def train_shadow_heads(features: Tensor, labels: Tensor, classes: int, shadows: int, seed: int) -> Shadows:
    """Trains `shadows` shadow heads for membership attacks, each on a random half of the records."""
    generator = torch.Generator().manual_seed(seed)
    x = _compress_features(features)
    n, d = x.shape
    # Each head's half is a row of coins; the mask gives every head the mean over its own half.
    inside = torch.rand(shadows, n, generator=generator) < 0.5
    weight = torch.zeros(d, shadows * classes)
    moment = torch.zeros_like(weight)
    target = nn.functional.one_hot(labels, classes).float()
    mask = (inside.float() / inside.sum(dim=1, keepdim=True).clamp(min=1)).t().unsqueeze(2)  # (N, S, 1)
    rate = 4.0 / float(x.square().sum(dim=1).mean())
    # Gradient descent with momentum on all heads at once: one product of matrices a step.
    for _ in range(_STEPS):
        p = torch.softmax((x @ weight).view(n, shadows, classes), dim=2)
        slope = ((p - target.unsqueeze(1)) * mask).view(n, shadows * classes)
        moment = _MOMENTUM * moment + x.t() @ slope
        weight -= rate * moment
    logits = (x @ weight).view(n, shadows, classes).permute(1, 0, 2)
    return Shadows(logits.double().numpy(), inside.numpy())


def _compress_features(features: Tensor) -> Tensor:
    """Returns features for shadow heads: centred, on their first principal directions, of unit size on average, with a
    constant.
    """
    # Fewer features make hundreds of heads affordable.
    x = features - features.mean(dim=0)
    if x.shape[1] > _MOST_FEATURES:
        _, _, directions = torch.svd_lowrank(x, q=_MOST_FEATURES, niter=2)
        x = x @ directions
    x = x / x.square().sum(dim=1).mean().sqrt().clamp(min=1e-12)
    return torch.cat([x, torch.ones(len(x), 1)], dim=1)

"""Exposure: how high a planted secret ranks among all candidates.

The measure is that of Carlini et al. (2019, arXiv:1802.08232):

    exposure = log₂ |R| − log₂ rank            rank: how many of the candidates R have a loss no larger than the secret's

log₂ |R| says that the network gives the secret away; about 1 that it knows nothing of it.

Privacy: a risk report about one kind of secret. For ε-DP with one record per secret, exposure beyond ε/ln 2 is rare.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sordino.per_sample.protocol import LossFn


def exposure(secret: float, candidates: Sequence[float] | Tensor) -> float:
    """Returns the exposure of a secret from its loss and the losses of all candidates, the secret among them.

    >>> exposure(0.5, [0.5, 1.0, 1.5, 2.0])
    2.0
    """
    losses = torch.as_tensor(candidates, dtype=torch.float64)
    if not len(losses):
        raise ValueError("no candidates: need all that the secret might have been, itself among them")
    # The rank of the secret among all candidates; equal losses count against it.
    rank = int((losses <= secret).sum())
    if not rank:
        raise ValueError("the secret is not among the candidates")
    return math.log2(len(losses)) - math.log2(rank)


@torch.no_grad()
def losses_of_candidates(model: nn.Module, loss_fn: LossFn, *columns: Tensor) -> Tensor:
    """Returns the loss of each candidate for a planted secret, from which exposure is computed, row by row, in
    evaluation mode.
    """
    # Dropout would blur the ranking.
    training = model.training
    model.eval()
    try:
        parts = [loss_fn(model, *rows).double() for rows in zip(*(c.split(500) for c in columns), strict=True)]
        return torch.cat(parts)
    finally:
        model.train(training)

"""A small network for points in the plane and other short vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

_WIDTH = 64


def mlp(shape: Sequence[int], classes: int) -> nn.Module:
    """Two hidden layers of 64 with tanh, whose bounded outputs suit clipped gradients (Papernot et al. 2021)."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), _WIDTH),
        nn.Tanh(),
        nn.Linear(_WIDTH, _WIDTH),
        nn.Tanh(),
        nn.Linear(_WIDTH, classes),
    )

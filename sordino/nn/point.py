"""A point: parameters and nothing else, to see what a method does with a few numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Point(nn.Module):
    """Holds θ, which begins at 0; a record x gives θ − x."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(numbers))

    def forward(self, x: Tensor) -> Tensor:
        """Returns where the point is, seen from each record."""
        return self.theta - x.flatten(1)


def point(shape: Sequence[int], outputs: int) -> nn.Module:
    """Returns a point with as many parameters as a record has numbers.

    Args:
        shape: of one record.
        outputs: as many numbers as a record has.

    Returns:
        The model, freshly made.

    Examples:
        >>> model = point((3,), 3)
        >>> sum(p.numel() for p in model.parameters())
        3

    """
    numbers = math.prod(shape)
    if numbers != outputs:
        raise ValueError(
            f"{outputs} outputs: a point in {numbers} numbers has as many; use data of points, such as cloud"
        )
    return Point(numbers)

"""A small network for points in the plane and other short vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import nn

_WIDTHS = (64, 64)


def mlp(shape: Sequence[int], classes: int, widths: Sequence[int] = _WIDTHS) -> nn.Module:
    """Returns two hidden layers of 64 with tanh, whose bounded outputs suit clipped gradients (Papernot et al. 2021).

    Args:
        shape: of one record.
        classes: outputs.
        widths: of its hidden layers.

    Returns:
        The model, freshly made.

    Examples:
        >>> model = mlp((20,), 2)
        >>> sum(p.numel() for p in model.parameters())
        5634

    """
    return make_layers(shape, classes, widths, nn.Tanh)


def make_layers(
    shape: Sequence[int], classes: int, widths: Sequence[int], activation: Callable[[], nn.Module]
) -> nn.Sequential:
    """Returns linear layers of these widths with an activation after each, and a linear layer to the classes."""
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = math.prod(shape)
    for width in widths:
        layers += [nn.Linear(inputs, width), activation()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, classes))

"""A small network for points in the plane and other short vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import nn

from sordino import validate

_WIDTHS = (64, 64)
_MOST = 2**31 - 1
"""The largest size of a dimension. Memory ends long before."""


def mlp(shape: Sequence[int], classes: int, widths: Sequence[int] = _WIDTHS) -> nn.Module:
    """Returns an MLP of two hidden layers of 64 with tanh, whose bounded outputs suit clipped gradients (Papernot et
    al. 2021).

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


def check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of one record; refuses what is not a sequence of positive whole numbers."""
    sizes = validate.sequence("shape", shape, "the shape of one record, such as (20,) or (1, 28, 28)")
    return tuple(validate.count("shape", size, most=_MOST) for size in sizes)


def count_classes(classes: int) -> int:
    """Returns the number of outputs; refuses what is not a positive whole number."""
    return validate.count("classes", classes, most=_MOST)


def make_layers(
    shape: Sequence[int], classes: int, widths: Sequence[int], activation: Callable[[], nn.Module]
) -> nn.Sequential:
    """Returns the layers of an MLP: linear layers of these widths with an activation after each, and a linear layer to
    the classes.
    """
    # Records of any shape are flattened first.
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = math.prod(check_shape(shape))
    classes = count_classes(classes)
    for width in validate.sequence("widths", widths, "the widths of the hidden layers"):
        validate.count("widths", width, most=_MOST)
        layers += [nn.Linear(inputs, width), activation()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, classes))

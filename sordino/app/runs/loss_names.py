"""The losses of recipes by name; each gives one number per record, never a mean.

    cross-entropy    of classes
    squared          ½‖f(x) − y‖², of numbers
    absolute         Σ|f(x) − y|, of numbers; its gradient has a kink
    hill, valley     functions of the two numbers f(x) alone, for the model `point`, whose f(x) is θ − x: landscapes to look
                     at paths in. hill has one between the start, 0, and its minimum, near (4, 0); valley is twenty times
                     as steep across as along, with its minimum at (4, 1)

**Privacy:** nothing here looks at two records at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class NamedLoss:
    """A loss that recipes refer to by its name."""

    losses_of: Callable[[nn.Module, Tensor, Tensor], Tensor]
    """`losses_of(model, x, y)` gives one loss per record, shape (B,)."""
    classifies: bool
    """Whether y are classes: then there is an accuracy too."""


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Returns the cross-entropy of each record, shape (B,)."""
    return F.cross_entropy(model(x), y, reduction="none")


def squared_error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Returns ½‖f(x) − y‖² of each record."""
    error: Tensor = model(x) - y
    return 0.5 * error.square().flatten(1).sum(1)


def absolute_error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Returns Σ|f(x) − y| of each record."""
    error: Tensor = model(x) - y
    return error.abs().flatten(1).sum(1)


def hill_landscape(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Returns a shallow bowl around (4, 0) with a hill at (2, 0.2), evaluated at f(x).

    >>> import torch
    >>> at = torch.tensor([[0.0, 0.0], [2.0, 0.2], [4.0, 0.0]])
    >>> [round(value, 2) for value in hill_landscape(nn.Identity(), at, at).tolist()]
    [1.66, 1.8, 0.06]
    """
    at: Tensor = model(x)
    bowl = 0.1 * ((at[:, 0] - 4).square() + at[:, 1].square())
    return bowl + 1.4 * (-((at[:, 0] - 2).square() + (at[:, 1] - 0.2).square()) / (2 * 0.8**2)).exp()


def valley_landscape(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Returns ½((u − 4)² + 20 (v − 1)²) at (u, v) = f(x)."""
    at: Tensor = model(x)
    return 0.5 * ((at[:, 0] - 4).square() + 20 * (at[:, 1] - 1).square())


LOSSES: Mapping[str, NamedLoss] = {
    "cross-entropy": NamedLoss(cross_entropy, classifies=True),
    "squared": NamedLoss(squared_error, classifies=False),
    "absolute": NamedLoss(absolute_error, classifies=False),
    "hill": NamedLoss(hill_landscape, classifies=False),
    "valley": NamedLoss(valley_landscape, classifies=False),
}


def loss_by_name(name: str, targets: Tensor) -> NamedLoss:
    """Returns the loss of this name and refuses one that does not fit the targets."""
    if name not in LOSSES:
        raise ValueError(f"loss={name!r}: there is {', '.join(LOSSES)}")
    loss, classes = LOSSES[name], not targets.is_floating_point()
    if loss.classifies != classes:
        kind = "classes" if classes else "numbers"
        fit = ", ".join(other for other, one in LOSSES.items() if one.classifies == classes)
        raise ValueError(f"loss={name!r}: these records have {kind}; need one of {fit}")
    return loss

"""Loads common ImageNet checkpoints into a network with GroupNorm, and lists what was not loaded.

Convolutions and the scale and shift of every norm are copied; BatchNorm's running means and variances have no
counterpart; a classifier for another number of classes starts anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Loaded:
    """Lists what became of a checkpoint.

    Args:
        loaded: tensors that were taken.
        statistics: of batch norm, which have no place here.
        another_shape: tensors that do not fit.
        missing: tensors of the model that the file lacks.
        unknown: tensors of the file that the model lacks.

    Examples:
        >>> Loaded(("conv.weight",), (), (), (), ()).loaded
        ('conv.weight',)

    """

    loaded: tuple[str, ...]
    statistics: tuple[str, ...]
    """BatchNorm's statistics, which GroupNorm does not have."""
    another_shape: tuple[str, ...]
    """Tensors that are in both, but not alike: left as the model had them."""
    missing: tuple[str, ...]
    """Tensors of the model that are not in the checkpoint."""
    unknown: tuple[str, ...]
    """Tensors of the checkpoint that are not in the model."""

    def __str__(self) -> str:
        """Returns the list as one sentence."""
        parts = [f"loaded {len(self.loaded)} tensors"]
        if self.statistics:
            parts.append(f"{len(self.statistics)} statistics of BatchNorm dropped: GroupNorm has none")
        for names, why in (
            (self.another_shape, "of another shape, left as they were"),
            (self.missing, "not in the checkpoint, left as they were"),
            (self.unknown, "not in the model, ignored"),
        ):
            if names:
                parts.append(f"{why}: {', '.join(names)}")
        return "; ".join(parts)


@torch.no_grad()
def load_imagenet(model: nn.Module, weights: Mapping[str, Tensor]) -> Loaded:
    """Loads an ImageNet checkpoint: copies what fits by name and shape; a checkpoint with no tensor that fits is
    refused.

    >>> from sordino.nn import resnet18, load_imagenet
    >>> print(load_imagenet(resnet18(), resnet18(classes=1000).state_dict()))
    loaded 60 tensors; of another shape, left as they were: fc.weight, fc.bias
    """
    own = model.state_dict(keep_vars=True)
    # Names that a DataParallel wrapper prefixed are accepted too.
    given = {name.removeprefix("module."): tensor for name, tensor in weights.items()}
    # Statistics of BatchNorm have no place in GroupNorm; everything else that was not loaded is listed.
    statistics = tuple(name for name in given if name.rpartition(".")[2] in _STATISTICS and name not in own)
    # Name and shape must both agree: a classifier for other classes has the name, but its rows mean something else.
    fits = tuple(name for name in given if name in own and own[name].shape == given[name].shape)
    if not fits:
        raise ValueError("no tensor of the checkpoint fits the model by name and shape: it is of another network")
    for name in fits:
        own[name].copy_(given[name])
    return Loaded(
        fits,
        statistics,
        tuple(name for name in given if name in own and own[name].shape != given[name].shape),
        tuple(name for name in own if name not in given),
        tuple(name for name in given if name not in own and name not in statistics),
    )

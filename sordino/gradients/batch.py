"""Batches as nested tuples, lists and dicts of tensors that share their first dimension."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from sordino.refusal import Refusal


def arguments(batch: Any) -> tuple[Any, ...]:
    """What follows the model in `loss_fn(model, *batch)`: a tuple or list is spread, anything else is one argument."""
    return tuple(batch) if isinstance(batch, tuple | list) else (batch,)


def tensors(batch: Any) -> list[Tensor]:
    """Every tensor of a batch; anything that is not a tensor is refused, by its kind and not by its content."""
    plain = isinstance(batch, tuple | list) and all(isinstance(leaf, Tensor) for leaf in batch)
    leaves = list(batch) if plain else tree_flatten(batch)[0]  # the common case, without a tree
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise Refusal(
                f"a batch holds a {type(leaf).__name__}: need tensors only; "
                "drop it in the dataset, or turn it into a tensor in `collate`"
            )
    if not leaves:
        raise Refusal("a batch holds no tensor: need at least one; look at what the dataset returns")
    return leaves


def size(batch: Any) -> int:
    """The number of samples B. Private under Poisson sampling: never printed, never in a message."""
    return rows_of(tensors(batch))


def rows_of(leaves: list[Tensor]) -> int:
    """The number of samples in the tensors of one batch."""
    if any(leaf.dim() == 0 for leaf in leaves):
        raise Refusal(
            "an input has no batch dimension (it is a scalar): need every tensor to have one row per sample; "
            "expand it, or let loss_fn make it"
        )
    sizes = {leaf.shape[0] for leaf in leaves}
    if len(sizes) > 1:
        shared = sorted({tuple(leaf.shape[1:]) for leaf in leaves if leaf.shape[0] == 1})
        which = f" (such as one of shape (1, {', '.join(map(str, shared[0]))}))" if shared else ""
        raise Refusal(
            f"an input has no batch dimension{which}: the tensors of a batch disagree about the number of samples; "
            "need one row per sample in each; expand what is shared, as in position_ids.expand(len(x), -1), "
            "or let loss_fn make it"
        )
    return sizes.pop()


def take(batch: Any, index: Any) -> Any:
    """The rows `index` of every tensor."""
    return tree_map(lambda leaf: leaf[index], batch)


def to(batch: Any, device: torch.device) -> Any:
    """The batch on a device; itself if it is there."""
    if type(batch) is tuple and all(isinstance(leaf, Tensor) and leaf.device == device for leaf in batch):
        return batch
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, batch)

"""Handles batches: nested tuples, lists and mappings of tensors that share their first dimension.

    (x, y)                     loss_fn(model, x, y)
    {"x": …, "y": …}           loss_fn(model, x, y) if those are its names, else loss_fn(model, batch)

None stays None. A mapping of another library, such as Hugging Face's `BatchEncoding`, is turned into a dict when it is
loaded. Every call of a loss gets a dict of its own: `batch.pop("labels")` is common, and the batch is needed again.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only

from sordino.refusal import Refusal

_UNCOMPILED: AbstractContextManager[Any] = nullcontext()
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def to_plain_containers(batch: Any) -> Any:
    """Returns the structure of a batch with every mapping as a dict of its own, and every list and tuple as it was."""
    # Hugging Face and others have mappings of their own, which torch's trees do not open.
    if isinstance(batch, Mapping):
        return {name: to_plain_containers(value) for name, value in batch.items()}
    if type(batch) in (tuple, list) and not all(isinstance(leaf, Tensor) for leaf in batch):
        return type(batch)(to_plain_containers(value) for value in batch)
    return batch


def columns(batch: Any) -> tuple[Any, ...]:
    """Returns the columns of a batch's structure in order: of a tuple or list, of a dict, or the batch itself as the
    only one.
    """
    if isinstance(batch, dict):
        return tuple(batch.values())
    return tuple(batch) if isinstance(batch, tuple | list) else (batch,)


def run_uncompiled() -> AbstractContextManager[Any]:
    """Returns the context in which a loss is called on a batch of any structure: compiled modules run by their own
    code, and nothing is compiled.
    """
    # Importing the compiler takes seconds, and without it nothing can be compiled.
    if "torch._dynamo" not in sys.modules:
        return _UNCOMPILED
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def call_loss(loss_fn: Callable[..., Any], model: Any, batch: Any) -> Any:
    """Calls the loss on a batch by the batch's structure: a tuple or list is spread, a dict by name where the loss
    names its keys.
    """
    # A compiled model hides its layers, so whatever was compiled runs by its own code here.
    with run_uncompiled():
        # Tuples and lists are spread into arguments, as torch users expect.
        if isinstance(batch, tuple | list):
            return loss_fn(model, *batch)
        if not isinstance(batch, dict):
            return loss_fn(model, batch)
        own_batch = to_plain_containers(batch)
        return loss_fn(model, **own_batch) if _takes_names(loss_fn, own_batch) else loss_fn(model, own_batch)


def _takes_names(loss_fn: Callable[..., Any], batch: dict[Any, Any]) -> bool:
    """Returns whether the loss takes a batch whose structure is a dict by names; a loss that takes neither names nor
    one dict is refused.
    """
    try:
        _, *taken = inspect.signature(loss_fn).parameters.values()
    except ValueError:  # no signature, as some callables written in C have none, or no parameter at all
        return False
    # By names: the loss has a parameter for every key, and a key for every parameter that needs one.
    named = {p.name for p in taken if p.kind in _BY_NAME}
    any_name = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken)
    needed = [p for p in taken if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if all(p.name in batch and p.kind in _BY_NAME for p in needed) and (any_name or named >= batch.keys()):
        return True
    # As a whole: at most one parameter is needed, and it is not one of the keys.
    positional = [p for p in taken if p.kind is not p.KEYWORD_ONLY and p.kind is not p.VAR_KEYWORD]
    if len(needed) <= 1 and positional and positional[0].name not in batch:
        return False
    names = ", ".join(p.name for p in taken)
    raise Refusal(
        f"a batch has the keys {', '.join(map(str, batch))} and the loss takes (model, {names}).\n"
        "A dict is given to the loss by names, or as one argument.\n"
        "Use the same names, write loss_fn(model, batch), add **others, or drop what is not used in the dataset."
    )


def map_tensors(change: Callable[[Tensor], Any], batch: Any) -> Any:
    """Returns the batch with every tensor changed; what is None stays None."""
    return tree_map_only(Tensor, change, batch)


def list_tensors(batch: Any) -> list[Tensor]:
    """Returns every tensor in the structure of a batch; anything else but None is refused, by its kind and not by its
    content.
    """
    bare = isinstance(batch, tuple | list) and all(isinstance(leaf, Tensor) for leaf in batch)
    if bare:  # the common case, without a tree
        leaves: list[Any] = list(batch)
    else:
        leaves = [leaf for leaf in tree_flatten(batch)[0] if leaf is not None]
    # The kind is named and never the content, which is private.
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise Refusal(
                f"a batch holds a {type(leaf).__name__}.\n"
                "Batches consist of tensors only.\n"
                "Drop it in the dataset, or turn it into a tensor in `collate`."
            )
    if not leaves:
        raise Refusal(
            "a batch holds no tensor.\nThere is nothing to compute a loss of.\nLook at what the dataset returns."
        )
    return leaves


def batch_size(batch: Any) -> int:
    """Returns the number of samples B, which is private under Poisson sampling: never printed, never in a message."""
    return count_rows(list_tensors(batch))


def count_rows(leaves: list[Tensor]) -> int:
    """Returns the number of samples in the tensors of one batch's structure, and refuses tensors that disagree about
    it.
    """
    # A scalar would be shared by all records of the batch, and one record could reach the others through it.
    if any(leaf.dim() == 0 for leaf in leaves):
        raise Refusal(
            "an input has no batch dimension (it is a scalar).\n"
            "Every tensor needs one row per sample, or a record could reach others through it.\n"
            "Expand it, or let loss_fn make it."
        )
    sizes = {leaf.shape[0] for leaf in leaves}
    if len(sizes) > 1:
        # A tensor with one row is usually something shared, such as position ids; the message names its shape.
        shared = sorted({tuple(leaf.shape[1:]) for leaf in leaves if leaf.shape[0] == 1})
        which = f" (such as one of shape (1, {', '.join(map(str, shared[0]))}))" if shared else ""
        raise Refusal(
            f"an input has no batch dimension{which}: the tensors of a batch disagree about the number of samples.\n"
            "Every tensor needs one row per sample.\n"
            "Expand what is shared, as in position_ids.expand(len(x), -1), or let loss_fn make it."
        )
    return sizes.pop()


def take_rows(batch: Any, index: Any) -> Any:
    """Returns the rows `index` of every tensor."""
    return map_tensors(lambda leaf: leaf[index], batch)


def move_to(batch: Any, device: torch.device) -> Any:
    """Returns the batch, with the same structure, on a device; itself if it is there."""
    if type(batch) is tuple and all(isinstance(leaf, Tensor) and leaf.device == device for leaf in batch):
        return batch
    move = partial(_move_without_waiting, device=device) if device.type != "cpu" else partial(Tensor.to, device=device)
    return map_tensors(move, to_plain_containers(batch))


def _move_without_waiting(leaf: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor of a batch's structure on an accelerator, copied from pinned memory so that the host does not
    wait for the copy.

    PyTorch keeps pinned memory until what is copied from it has arrived.
    """
    # Copying from pinned memory does not make the host wait.
    if leaf.is_cpu and not leaf.is_pinned():
        try:
            leaf = leaf.pin_memory()
        except RuntimeError:  # a device for which PyTorch has no pinned memory
            return leaf.to(device)
    return leaf.to(device, non_blocking=True)

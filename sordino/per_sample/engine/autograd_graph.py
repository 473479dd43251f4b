"""Walks autograd's graph to find what the losses depend on.

Layers run on detached parameters, so a trainable parameter that is still in the graph was used in a way nobody recorded
(`F.linear(x, model.fc.weight)`, a penalty on the parameters inside the loss). Such a use must never be dropped
silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import graph as autograd
from torch.autograd.graph import GradientEdge

from sordino.per_sample.model_checks import require_one_loss
from sordino.per_sample.recording.sample_layout import UnseenCall
from sordino.refusal import Refusal

_run: Callable[..., Any] | None = getattr(autograd, "_engine_run_backward", None)  # not promised to stay there
_LEAF, _REENTRANT = "AccumulateGrad", "CheckpointFunctionBackward"


def require_loss_per_sample(losses: Tensor, b: int) -> Tensor:
    """Returns the losses at the root of the autograd graph with shape (B,), and refuses a loss that is anything else."""
    # One sample, or a loss that was reduced by hand, must be one number.
    if b == 1 or not isinstance(losses, Tensor) or losses.dim() == 0:
        return require_one_loss(losses).unsqueeze(0)
    if losses.shape != (b,):
        raise Refusal(
            f"loss_fn returned {losses.dim()} dimension(s) that are not one loss per sample.\n"
            "Each record is clipped by its own loss's gradient.\n"
            "Return shape (B,): use reduction='none' and reduce only over the sample's own axes."
        )
    return losses


def compute_gradients_at(losses: Tensor, edges: tuple[GradientEdge, ...], upstream: Tensor) -> tuple[Tensor, ...]:
    """Returns the gradients of the losses at edges of the autograd graph, like `torch.autograd.grad(losses, edges,
    upstream)`.

    It calls autograd's engine directly where torch offers that, because `torch.autograd.grad` repeats checks at a
    price.
    """
    if _run is None:
        return torch.autograd.grad(losses, edges, upstream)
    gradients: tuple[Tensor, ...] = _run((losses,), (upstream,), False, False, edges, False, accumulate_grad=False)
    return gradients


def find_reachable_nodes(losses: Tensor) -> set[Any]:
    """Returns every node of the autograd graph that the losses depend on."""
    # Depth first, each node once: graphs of deep models have many paths.
    seen: set[Any] = set()
    stack = [losses.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            stack += [n for n, _ in node.next_functions]
    return seen


def find_unrecorded_parameters(nodes: set[Any], columns: Mapping[int, int]) -> set[int]:
    """Returns the identities of the trainable parameters that are used outside the recorded layers."""
    return {id(node.variable) for node in nodes if type(node).__name__ == _LEAF and id(node.variable) in columns}


def require_recorded_uses(losses: Tensor, columns: Mapping[int, int], names: tuple[str, ...]) -> set[Any]:
    """Returns every node of the autograd graph the losses depend on, and raises if a trainable parameter is used
    outside the recorded layers.
    """
    nodes = find_reachable_nodes(losses)
    # Ask each kind of node once: there are a few kinds, and there may be many nodes.
    for kind in {type(node) for node in nodes}:  # a few, where there may be many nodes
        name = kind.__name__
        if name == _LEAF:
            _refuse_unrecorded(nodes, columns, names)
        elif name == _REENTRANT:
            refuse_reentrant(nodes)
    return nodes


def _refuse_unrecorded(nodes: set[Any], columns: Mapping[int, int], names: tuple[str, ...]) -> None:
    """Raises `Unseen` for the first trainable parameter that is still a leaf of the autograd graph."""
    for node in nodes:
        if type(node).__name__ == _LEAF and id(node.variable) in columns:
            raise UnseenCall(
                f"parameter '{names[columns[id(node.variable)]]}' is used outside its layer, or its layer's input "
                "has no "
                "batch dimension; need uses whose gradient can be told apart by sample; call the module that owns it "
                "on "
                "inputs with one row per sample (expand position ids to (B, T)), leave penalties on parameters out of "
                "loss_fn (they are public: use weight decay), or use Loop(): backend=sordino.per_sample.Loop()"
            )


def refuse_reentrant(nodes: set[Any]) -> None:
    """Raises if the autograd graph hides layers in a reentrant checkpoint."""
    for node in nodes:
        if type(node).__name__ == _REENTRANT:
            raise Refusal(
                "torch.utils.checkpoint with use_reentrant=True hides its layers from autograd.\n"
                "Per-sample gradients are taken at these layers.\n"
                "Pass use_reentrant=False."
            )

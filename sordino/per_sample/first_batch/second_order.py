"""Refuses losses that differentiate through recorded layers, such as gradient penalties.

The gradient of a gradient (`torch.autograd.grad(…, create_graph=True)`) uses a layer's weight a second time, in the
backward pass, where no rule sees it. The engine would leave that use out, so such losses are refused by name. A penalty
that goes through no layer is exact.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from sordino.per_sample.recording.tape import ShapesTape
from sordino.refusal import Refusal


class SecondOrder(TorchFunctionMode):
    """Watches for gradients that are taken with a graph, in a pass for shapes."""

    def __init__(self, tape: ShapesTape) -> None:
        """Watches the pass of one tape."""
        super().__init__()
        self._tape = tape

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raises for a gradient taken with a graph through a recorded layer; lets everything else pass."""
        kwargs = kwargs or {}
        # Only gradients that are differentiated again matter, and only if they pass through a recorded layer.
        if func is torch.autograd.grad and kwargs.get("create_graph"):
            outputs, inputs = _list_tensors(args[0]), _list_tensors(args[1])
            if _nodes_between(outputs, inputs) & self._tape.places:
                raise Refusal(
                    "the loss differentiates the model with create_graph=True (a gradient penalty).\n"
                    "The weights are used a second time where the fast engine cannot see it.\n"
                    "Pass backend=sordino.per_sample.Loop() to Private, which computes the whole gradient one record "
                    "at a time."
                )
        return func(*args, **kwargs)


def _list_tensors(given: Any) -> list[Tensor]:
    return [given] if isinstance(given, Tensor) else [t for t in given if isinstance(t, Tensor)]


def _nodes_between(outputs: list[Tensor], inputs: list[Tensor]) -> set[Any]:
    """Returns the nodes that a loss's own backward pass from the outputs to the inputs runs through, to find
    second-order losses.
    """
    # Walk the graph depth first and note for every node whether it leads to one of the inputs.
    ends = {get_gradient_edge(t).node for t in inputs if t.requires_grad}
    reaches: dict[Any, bool] = dict.fromkeys(ends, True)
    stack = [(t.grad_fn, False) for t in outputs if t.grad_fn is not None]
    while stack:
        node, done = stack.pop()
        below = [n for n, _ in node.next_functions if n is not None]
        # The second visit of a node comes after all nodes below it, so their answers are known.
        if done:
            reaches[node] = any(reaches.get(n, False) for n in below)
        elif node not in reaches:
            reaches[node] = False
            stack.append((node, True))
            stack += [(n, False) for n in below if n not in reaches]
    return {node for node, found in reaches.items() if found} - ends

"""Runs a Sequential of small Linear layers and activations as one layer, forward and back.

    h_0 = x    h_k = φ(W_k h_{k-1} + b_k)    y = W_n h_{n-1} + b_n
    g_n = ∂/∂y    g_k = (g_{k+1} W_{k+1}) · φ'(h_k)    and the gradient of W_k for sample i is g_k,i h_{k-1,i}ᵀ

φ is ReLU, Tanh or Sigmoid. In a small network autograd's graph, and the tape's entry for each layer, take longer than
the products. Here one entry stands for all of them, and the pass back is the few products above. Both are what autograd
would call.

It is tried on every pass, and where anything is unusual (a hook, a forward of one's own, another layer, another layout,
a layer used twice) the layers run one by one by their own rules. What lies between the layers never leaves here, so
nobody can change it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from sordino.per_sample.formulas.gradient_part import GradientRows, Part, Squares
from sordino.per_sample.formulas.matrix_product import Matmul, multiply_rows
from sordino.per_sample.layers.linear import run_linear
from sordino.per_sample.recording.layer_accelerations import FasterRule
from sordino.per_sample.recording.sample_layout import OUTSIDE
from sordino.per_sample.recording.tape import Tape
from sordino.refusal import Refusal

_SMALL = 1 << 20
"""Elements of a weight up to which a call costs more than its work."""


def _unwrap_operator(operation: Any) -> Any:
    """Returns what an operator calls, without the call around it."""
    return getattr(operation, "_op", operation)


_threshold_backward = _unwrap_operator(torch.ops.aten.threshold_backward.default)
_tanh_backward = _unwrap_operator(torch.ops.aten.tanh_backward.default)
_sigmoid_backward = _unwrap_operator(torch.ops.aten.sigmoid_backward.default)

_Between = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]
"""φ, in place, and g · φ' by the value of φ."""
_NOTHING: _Between = (lambda h: h, lambda g, h: g)
_BETWEEN: dict[type[nn.Module], _Between] = {
    nn.ReLU: (torch.relu_, lambda g, h: _threshold_backward(g, h, 0)),
    nn.Tanh: (torch.tanh_, _tanh_backward),
    nn.Sigmoid: (torch.sigmoid_, _sigmoid_backward),
}


def may_be_chain(module: nn.Module) -> bool:
    """Returns whether a module may be a chain; whether it is one is asked on every pass."""
    return type(module) is nn.Sequential and sum(type(m) is nn.Linear for m in module) > 1


class _Link:
    """One Linear layer, and the activation that follows it."""

    __slots__ = ("between", "bias", "version", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias, self.version = weight, bias, weight._version
        self.between = _NOTHING


def _find_links(tape: Tape, module: nn.Module) -> tuple[list[_Link], bool] | None:
    """Returns the layers of a linear chain, and whether a Flatten is before them; None where something is unusual."""
    links: list[_Link] = []
    flat, seen = False, set[int]()
    for child in module._modules.values():
        # A hook may look at or change what lies between the layers.
        kind = type(child)
        if child is None or child._forward_hooks or child._forward_pre_hooks:
            return None
        if child._backward_hooks or child._backward_pre_hooks:
            return None
        # A Linear layer must be small and have one row per sample; an activation must follow one.
        if kind is nn.Linear:
            weight, bias = child._parameters["weight"], child._parameters["bias"]
            if weight is None or weight.numel() > _SMALL or not tape.has_one_row_per_sample(child, run_linear):
                return None
            link = _Link(weight, bias)
            links.append(link)
            seen.add(id(weight))
            seen.add(id(link if bias is None else bias))
        # A module whose forward was replaced by hand does something that is not known here.
        elif "forward" in child.__dict__:
            return None
        elif kind in _BETWEEN:
            if not links or links[-1].between is not _NOTHING:
                return None
            links[-1].between = _BETWEEN[kind]
        # A Flatten may stand in front of the first layer, and nowhere else.
        elif kind is not nn.Flatten or links or flat or child.start_dim != 1 or child.end_dim != -1:
            return None
        else:
            flat = True
    if len(links) < 2 or links[-1].between is not _NOTHING or len(seen) < 2 * len(links):  # a parameter used twice
        return None
    return links, flat


def _is_usual_pass(tape: Tape, x: Any) -> bool:
    """Returns whether the input and the tape are such that the layers of a linear chain may run as one."""
    # A chain skips what happens between its layers, so nobody may be watching there.
    return (
        type(x) is Tensor
        and tape.holds_inputs
        and not tape.outputs
        and not x.requires_grad
        # Weights are read again on the way back, outside autograd. Who gathers them layer by layer, or runs layers again
        # from a checkpoint, reroutes what autograd keeps.
        and torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        and not torch._C._is_any_autocast_enabled()
        and not (hooks._global_forward_hooks or hooks._global_forward_pre_hooks)
        and not (hooks._global_backward_hooks or hooks._global_backward_pre_hooks)
    )


def _have_same_type(x: Tensor, links: list[_Link]) -> bool:
    """Returns whether input and layers of a linear chain have one type and device; in half precision the layers' own
    rules know where to round.
    """
    if x.dtype is not torch.float32 and x.dtype is not torch.float64:
        return False
    return all([link.weight.dtype is x.dtype and link.weight.is_cpu is x.is_cpu for link in links])  # noqa: C419


def _run_layers_one_by_one(tape: Tape, x: Any) -> Tensor:
    """Runs the layers of a linear chain one by one, each by its own rule."""
    outer, tape.index = tape.index, OUTSIDE  # what comes between the layers is in no rule
    try:
        y: Tensor = tape.original(x)
    finally:
        tape.index = outer
    return y


def run_chain(tape: Tape, module: nn.Sequential, x: Tensor) -> Tensor:
    """Runs all layers of a linear chain as one entry of the tape, or one by one."""
    # A forward of the module's own, such as the autocast that accelerate puts around one, is run as it is.
    is_own = getattr(tape.original, "__func__", None) is not nn.Sequential.forward
    found = _find_links(tape, module) if not is_own and _is_usual_pass(tape, x) else None
    if found is None:
        return _run_layers_one_by_one(tape, x)
    links, flat = found
    # Every sample must have exactly one row in one type, or the layers run one by one.
    last = links[-1]
    h = x.flatten(1) if flat else x
    if h.dim() != 2 or h.shape[0] != tape.size or not _have_same_type(h, links):
        return _run_layers_one_by_one(tape, x)
    # All layers but the last run without autograd; their outputs are kept for the gradients.
    inputs, held = [h], 0
    torch._C._set_grad_enabled(False)
    try:
        for link in links[:-1]:
            h = link.between[0](multiply_rows("mapped", h, link.weight.t(), link.bias, tape.workspace))
            inputs.append(h)
            held += h.nbytes
    finally:
        torch._C._set_grad_enabled(True)
    # The last layer is in the graph, and its output is what the tape records.
    y = torch._C._nn.linear(h, tape.leaf(last.weight), None if last.bias is None else last.bias.detach())
    return tape.record(y, tuple(inputs), partial(_make_chain_parts, tape, tape.name, links), rows=1, more=held)


def _make_chain_parts(
    tape: Tape, name: str, links: list[_Link], inputs: tuple[Tensor, ...], g: Tensor
) -> dict[Tensor, Part | Tensor]:
    """Returns the parts of all layers of a linear chain, going back from the last, and refuses weights that were
    changed since.
    """
    found: dict[Tensor, Part | Tensor] = {}
    # The chain rule by hand, from the last layer to the first: each layer's part needs its input and the gradient at
    # its output.
    wanted = tape.trainable
    for k in range(len(links) - 1, -1, -1):
        link, a = links[k], inputs[k]
        squares = Squares(g)
        if id(link.weight) in wanted:
            found[link.weight] = Matmul(a, g, None, squares, workspace=tape.workspace)
        if link.bias is not None and id(link.bias) in wanted:
            found[link.bias] = GradientRows(g, squares)
        # The weight is read again on the way back, so it must be what the forward pass used.
        if k:
            if link.weight._version != link.version:
                raise Refusal(
                    f"layers '{name}': a weight was changed in place after it had been used.\n"
                    "Gradients need the value that the layers computed with.\n"
                    "Change parameters outside loss_fn."
                )
            g = links[k - 1].between[1](multiply_rows("mapped back", g, link.weight, None, tape.workspace), a)
    return found


LINEAR_CHAIN = FasterRule(may_be_chain, run_chain)

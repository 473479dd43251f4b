"""Rule for the experts of a mixture as transformers has them, with stacked weights.

For every token there are the experts it goes to. Rows sorted by expert are no longer where their samples are, so the
code of such a layer cannot be followed. This rule does the sorting itself, stably, and so knows whose each row is
(`formulas/grouped_product.py`). It stands for classes whose `forward` transformers dispatches by
`experts_implementation`, of which there are more than a hundred; those with biases, transposed weights or a norm of
their own are run one sample at a time, as other leaves are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sordino.per_sample.formulas.gradient_part import Part, lift_precision
from sordino.per_sample.formulas.grouped_product import Grouped, Routes
from sordino.per_sample.layers.layer_registry import rule_for_family
from sordino.per_sample.recording.tape import Tape

_DISPATCHED = "transformers.integrations.moe"
_SAME = ("eager", "grouped_mm", "batched_mm")
"""Implementations that compute the same."""


def is_known_expert_layer(module: nn.Module) -> bool:
    """Returns whether a module is a layer of experts whose forward pass the rule knows."""
    forward = getattr(type(module), "forward", None)
    if getattr(forward, "__globals__", {}).get("__name__") != _DISPATCHED:
        return False
    layer: Any = module
    plain = not (layer.has_bias or layer.is_transposed or layer.has_post_expert_norm or layer._is_expert_parallel)
    stacked = {"down_proj", "gate_up_proj" if layer.has_gate else "up_proj"}
    known = getattr(layer.config, "_experts_implementation", None) in _SAME
    return plain and known and set(layer._parameters) == stacked


@rule_for_family(is_known_expert_layer)
def run_experts(
    tape: Tape, module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Runs the rule of a mixture's experts: sorts tokens by expert, runs each expert's two maps and activation, weights
    the results and puts them back.
    """
    tape.batch_dim(hidden_states, only=0)
    layer: Any = module
    many, size, tokens = top_k_index.shape[-1], tape.size, len(hidden_states)
    first = layer.gate_up_proj if layer.has_gate else layer.up_proj
    # Sort stably, and count the rows of every expert and sample.
    expert, order = top_k_index.reshape(-1).sort(stable=True)
    token = order.div(many, rounding_mode="floor")
    owners = token.div(max(1, tokens // size), rounding_mode="floor")
    counts = torch.bincount(expert * size + owners, minlength=len(first) * size).view(len(first), size)
    routes = Routes(counts.tolist(), owners)
    # Two maps for each expert, with the activation between them.
    y = _record_expert_map(tape, hidden_states[token], first, routes)
    y = layer._apply_gate(y) if layer.has_gate else layer.act_fn(y)
    y = _record_expert_map(tape, y, layer.down_proj, routes) * top_k_weights.reshape(-1)[order].unsqueeze(1)
    # Put the rows back in the order of the tokens, and add up the experts of each.
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    return y[back].view(tokens, many, -1).sum(1).to(hidden_states.dtype)


def _record_expert_map(tape: Tape, x: Tensor, weight: Tensor, routes: Routes) -> Tensor:
    """Computes W_e x of every row by its expert's matrix and records it."""
    w = tape.leaf(weight, x)
    y = torch.cat([F.linear(x[rows], w[e]) for e, rows in enumerate(routes.by_matrix)])

    def parts(saved: tuple[Tensor, ...], g: Tensor) -> dict[Tensor, Part | Tensor]:
        return {weight: Grouped(lift_precision(saved[0], g), lift_precision(g), routes)}

    return tape.record(y, (x,), parts, rows=1) if tape.wants(weight) else y

"""Rule for nn.MultiheadAttention, spelled out in linear maps with ordinary autograd between them.

The three input projections are row blocks of one weight when query, key and value have equal width.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn

from sordino.per_sample.formulas.compound_parts import Block
from sordino.per_sample.formulas.gradient_part import GradientRows, lift_precision
from sordino.per_sample.layers.layer_registry import rule
from sordino.per_sample.layers.linear import record_affine
from sordino.per_sample.recording.tape import Tape
from sordino.refusal import Refusal


def _to_additive_mask(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """Returns an attention mask to be added to the scores; a boolean one says where not to look."""
    if mask is None or mask.dtype != torch.bool:
        return None if mask is None else mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -torch.inf)


def _project_inputs(tape: Tape, m: nn.MultiheadAttention, q: Tensor, k: Tensor, v: Tensor, dim: int) -> list[Tensor]:
    """Returns the projections of an attention layer's query, key and value, recorded as linear maps."""
    bias, e = m.in_proj_bias, m.embed_dim
    # Three weights, whose biases are blocks of one parameter.
    if m.in_proj_weight is None:
        weights = (m.q_proj_weight, m.k_proj_weight, m.v_proj_weight)
        projections = []
        for i, (x, weight) in enumerate(zip((q, k, v), weights, strict=True)):
            y = record_affine(tape, x, weight, None, dim)
            if bias is not None:
                y = y + _record_bias_copies(tape, bias, (i * e, (i + 1) * e), y, dim)
            projections.append(y)
        return projections
    # One weight: in self-attention a single map, otherwise one block of it for each input.
    if q is k and k is v:
        return list(record_affine(tape, q, m.in_proj_weight, bias, dim).chunk(3, dim=-1))
    return [
        record_affine(tape, x, m.in_proj_weight, bias, dim, block=(i * e, (i + 1) * e)) for i, x in enumerate((q, k, v))
    ]


def _record_bias_copies(tape: Tape, bias: Tensor, block: tuple[int, int], like: Tensor, dim: int) -> Tensor:
    """Returns one recorded copy per sample of a stretch of an attention layer's bias, shaped to be added to `like`."""
    shape = [1] * like.dim()
    shape[dim], shape[-1] = tape.size, block[1] - block[0]
    copies = tape.leaf(bias)[slice(*block)].view(*[1] * (like.dim() - 1), -1).expand(shape)
    return tape.record(
        copies.contiguous(),
        (),
        lambda _, g: {bias: Block(GradientRows(lift_precision(g).reshape(tape.size, -1)), *block, bias.shape)},
        rows=1,
    )


def _append_learned(tape: Tape, p: Tensor, x: Tensor) -> Tensor:
    """Returns x (B, S, E) of an attention layer with a learned key or value (1, 1, E) after each sample's own."""
    copies = tape.leaf(p).expand(x.shape[0], 1, -1).contiguous()
    copies = tape.record(copies, (), lambda _, g: {p: g.reshape(-1, 1, 1, g.shape[-1])}, rows=1)
    return torch.cat([x, copies], 1)


@rule(nn.MultiheadAttention)
def run_attention(
    tape: Tape,
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Runs the rule of nn.MultiheadAttention: computes softmax(QKᵀ/√d) V over heads."""
    # The samples must be where `batch_first` says; anything else would mix them.
    dim = 0 if module.batch_first else 1
    tape.batch_dim(query, only=dim, several=False)
    if query.dim() != 3:
        raise Refusal(
            f"layer '{tape.name}': its input has no batch dimension.\n"
            "Samples are told apart by it, as (B, T, E) or (T, B, E).\n"
            "Unsqueeze the input."
        )
    heads, size, lengths = module.num_heads, tape.size, 1 - dim
    if key.shape[dim] != size or value.shape[dim] != size:
        raise Refusal(
            f"layer '{tape.name}': key and value do not have one row per sample.\n"
            "What all samples share would couple them.\n"
            "Expand them."
        )
    # Project the inputs, add learned and zero keys, and split the heads.
    q, k, v = _project_inputs(tape, module, query, key, value, dim)
    if dim:
        q, k, v = (t.transpose(0, 1) for t in (q, k, v))  # (B, T, E)
    if module.bias_k is not None and module.bias_v is not None:
        k, v = _append_learned(tape, module.bias_k, k), _append_learned(tape, module.bias_v, v)
    if module.add_zero_attn:
        k, v = (torch.cat([t, t.new_zeros(size, 1, t.shape[2])], 1) for t in (k, v))
    q, k, v = (t.reshape(size, t.shape[1], heads, -1).transpose(1, 2) for t in (q, k, v))  # (B, heads, T, E/heads)
    added = k.shape[2] - key.shape[lengths]

    # Bring both masks into the shape of the scores; keys that were added are never masked.
    mask = _to_additive_mask(attn_mask, q)
    if mask is not None:
        mask = mask.view(size, heads, *mask.shape[1:]) if mask.dim() == 3 else mask
        mask = nn.functional.pad(mask, (0, added))
    padded = _to_additive_mask(key_padding_mask, q)
    if padded is not None:
        padded = nn.functional.pad(padded, (0, added)).view(size, 1, 1, -1)
        mask = padded if mask is None else mask + padded
    # Attention itself, by torch's fused function unless its weights are asked for.
    dropout = module.dropout if module.training else 0.0
    weights: Tensor | None = None
    if need_weights:
        scores = q @ k.transpose(2, 3) / sqrt(q.shape[3])
        weights = (scores if mask is None else scores + mask).softmax(-1)
        weights = nn.functional.dropout(weights, dropout) if dropout else weights
        y = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        y = nn.functional.scaled_dot_product_attention(q, k, v, mask, dropout)
    y = y.transpose(1, 2).flatten(2)  # (B, T, E)
    if dim:
        y = y.transpose(0, 1)
    out = module.out_proj
    return record_affine(tape, y, out.weight, out.bias, dim), weights

"""nn.Embedding and nn.EmbeddingBag."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sordino.gradients.formulas.lookup import Lookup
from sordino.gradients.formulas.part import Part, lift
from sordino.gradients.layers.registry import rule
from sordino.refusal import Refusal

if TYPE_CHECKING:
    from sordino.gradients.captured.tape import Tape


def _check(tape: Tape, module: nn.Embedding | nn.EmbeddingBag) -> None:
    kind = type(module).__name__
    if module.max_norm is not None:
        raise Refusal(
            f"layer '{tape.name}': {kind}(max_norm=…) rewrites its weight from the records it sees, outside the noise; "
            "need a layer that only reads it; drop max_norm"
        )
    if module.scale_grad_by_freq:
        raise Refusal(
            f"layer '{tape.name}': {kind}(scale_grad_by_freq=True) divides one record's gradient by the ids of others; "
            "need a gradient of its own for every record; drop scale_grad_by_freq"
        )


def _look_up(tape: Tape, weight: Tensor, padding: int | None, ids: Tensor) -> Tensor:
    dim, size = tape.batch_dim(ids), tape.size
    y = nn.functional.embedding(ids, tape.leaf(weight))
    moved = ids.movedim(dim, 0) if dim else ids

    def parts(saved: tuple[Tensor, ...], g: Tensor) -> dict[Tensor, Part | Tensor]:
        where = saved[0].reshape(size, -1)  # (B, T)
        rows = lift(g)
        rows = (rows.movedim(dim, 0) if dim else rows).reshape(size, where.shape[1], -1)  # (B, T, d)
        if padding is not None:
            rows = rows.masked_fill((where == padding).unsqueeze(2), 0)
        return {weight: Lookup(where, rows, weight.shape[0])}

    return tape.record(y, (moved,), parts, rows=1)


@rule(nn.Embedding)
def embedding(tape: Tape, module: nn.Embedding, input: Tensor) -> Tensor:
    """A table."""
    _check(tape, module)
    return _look_up(tape, module.weight, module.padding_idx, input)


@rule(nn.EmbeddingBag)
def embedding_bag(
    tape: Tape,
    module: nn.EmbeddingBag,
    input: Tensor,
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
) -> Tensor:
    """A table and a reduction over each sample's bag; ids equal to padding_idx take no part."""
    _check(tape, module)
    if offsets is not None or input.dim() != 2:
        raise Refusal(
            f"layer '{tape.name}': EmbeddingBag with offsets has no batch dimension; need ids of shape (B, L); "
            "pad the bags to one length with padding_idx"
        )
    looked_up = _look_up(tape, module.weight, module.padding_idx, input)  # (B, L, d)
    counted = torch.ones_like(input, dtype=torch.bool)
    if module.padding_idx is not None:
        counted = input != module.padding_idx
    if module.mode == "max":
        low = looked_up.masked_fill(~counted.unsqueeze(2), -torch.inf).max(dim=1).values
        return low.masked_fill(~counted.any(1, keepdim=True), 0)
    share = counted.to(looked_up.dtype)
    if per_sample_weights is not None:
        share = share * per_sample_weights
    y = (looked_up * share.unsqueeze(2)).sum(1)
    if module.mode == "mean":
        y = y / counted.sum(1, keepdim=True).clamp(min=1)
    return y

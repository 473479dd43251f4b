"""Rules for nn.Embedding and nn.EmbeddingBag."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sordino.per_sample.formulas.gradient_part import Part, lift_precision
from sordino.per_sample.formulas.lookup import Lookup
from sordino.per_sample.layers.layer_registry import rule
from sordino.per_sample.recording.tape import Tape
from sordino.refusal import Refusal


def _refuse_coupling_options(tape: Tape, module: nn.Embedding | nn.EmbeddingBag) -> None:
    """Refuses options of an embedding layer by which the table's gradient or weight depends on other records."""
    # By either option the table or a record's gradient would depend on the ids of other records.
    kind = type(module).__name__
    if module.max_norm is not None:
        raise Refusal(
            f"layer '{tape.name}': {kind}(max_norm=…) rewrites its weight from the records it sees.\n"
            "That is a change of the model outside the noise.\n"
            "Drop max_norm."
        )
    if module.scale_grad_by_freq:
        raise Refusal(
            f"layer '{tape.name}': {kind}(scale_grad_by_freq=True) divides one record's gradient by the ids of "
            "others.\n"
            "Every record needs a gradient of its own.\n"
            "Drop scale_grad_by_freq."
        )


def record_lookup(tape: Tape, weight: Tensor, padding: int | None, ids: Tensor, dim: int) -> Tensor:
    """Looks rows of an embedding table up and records it; `dim` counts the samples."""
    size = tape.size
    # The lookup itself is torch's; the gradient is rebuilt from ids and output gradients.
    y = nn.functional.embedding(ids, tape.leaf(weight))
    moved = ids.movedim(dim, 0) if dim else ids

    def parts(saved: tuple[Tensor, ...], g: Tensor) -> dict[Tensor, Part | Tensor]:
        """Returns the part of an embedding table, in which padding has no gradient."""
        where = saved[0].reshape(size, -1)  # (B, T)
        rows = lift_precision(g)
        rows = (rows.movedim(dim, 0) if dim else rows).reshape(size, where.shape[1], -1)  # (B, T, d)
        if padding is not None:
            rows = rows.masked_fill((where == padding).unsqueeze(2), 0)
        return {weight: Lookup(where, rows, weight.shape[0])}

    return tape.record(y, (moved,), parts, rows=1)


@rule(nn.Embedding)
def run_embedding(tape: Tape, module: nn.Embedding, input: Tensor) -> Tensor:
    """Looks up a table."""
    _refuse_coupling_options(tape, module)
    return record_lookup(tape, module.weight, module.padding_idx, input, tape.batch_dim(input))


def _pad_bags(
    ids: Tensor, offsets: Tensor, weights: Tensor | None, *, last: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns the one long list of ids of an embedding bag layer as (bags, L), which of them are there, and their
    weights in the same shape.
    """
    # Bags of different lengths become rows of the longest, with a mask over what is not there.
    begin = offsets[:-1] if last else offsets
    end = offsets[1:] if last else torch.cat([offsets[1:], offsets.new_tensor([len(ids)])])
    longest = int((end - begin).max()) if len(begin) else 0
    places = begin[:, None] + torch.arange(max(1, longest), device=ids.device)  # (bags, L)
    real = places < end[:, None]
    places = places.clamp(max=max(0, len(ids) - 1))
    if not len(ids):
        ids, weights = ids.new_zeros(1), None
    return ids[places], real, None if weights is None else weights[places]


@rule(nn.EmbeddingBag)
def run_embedding_bag(
    tape: Tape,
    module: nn.EmbeddingBag,
    input: Tensor,
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
) -> Tensor:
    """Runs the rule of nn.EmbeddingBag: looks up a table and reduces over each sample's bag; ids equal to padding_idx
    take no part.
    """
    _refuse_coupling_options(tape, module)
    # Bring the ids into one row per bag, and find which dimension counts the samples.
    real = None
    if offsets is not None:  # one long list of ids, and where each bag begins
        tape.batch_dim(offsets[:-1] if module.include_last_offset else offsets, only=0)
        input, real, per_sample_weights = _pad_bags(input, offsets, per_sample_weights, last=module.include_last_offset)
    elif input.dim() == 2:
        tape.batch_dim(input, only=0)
    else:
        raise Refusal(
            f"layer '{tape.name}': EmbeddingBag on one list of ids has no batch dimension.\n"
            "It must be known where each record's bag begins.\n"
            "Give ids of shape (B, L), or offsets."
        )
    # Look the rows up, and leave padding out of the reduction.
    vectors = record_lookup(tape, module.weight, module.padding_idx, input, 0)  # (B, L, d)
    counted = torch.ones_like(input, dtype=torch.bool) if real is None else real
    if module.padding_idx is not None:
        counted = counted & (input != module.padding_idx)
    if module.mode == "max":
        low = vectors.masked_fill(~counted.unsqueeze(2), -torch.inf).max(dim=1).values
        return low.masked_fill(~counted.any(1, keepdim=True), 0)
    # Sum and mean: every id counts with its share, and padding with none.
    share = counted.to(vectors.dtype)
    if per_sample_weights is not None:
        share = share * per_sample_weights
    y = (vectors * share.unsqueeze(2)).sum(1)
    if module.mode == "mean":
        y = y / counted.sum(1, keepdim=True).clamp(min=1)
    return y

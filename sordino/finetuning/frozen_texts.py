"""What a frozen encoder makes of texts, computed once and kept: its vectors, and the inputs of its last layer.

Privacy: the encoder is public and every row is computed from its own text alone. What is kept is the private texts in
another form: it is as private as they are, and stays in memory.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sordino.finetuning.last_layer import ADAPTED_NAMES, FirstTokenLayer, is_bert_shaped, scale_to_width
from sordino.refusal import Refusal

AT_ONCE = 64
"""Texts that the frozen encoder reads at once."""
_SHAPE = 16
"""Batches are padded to multiples of so many tokens."""
_RANDOM_TEXTS_OF = 32
"""Words in each of the public texts of random words."""
_TIMES = 2
"""How often each word of the vocabulary is in the texts of random words."""
_MOST_WORDS = 30_000
_MOST_DIRECTIONS = 16


@dataclass(frozen=True)
class FrozenTexts:
    """Texts as a frozen encoder sees them, one row for each text."""

    vectors: Tensor
    """The mean of each text's token vectors, scaled to length √width, (N, width)."""
    columns: tuple[Tensor, ...] = ()
    """What `AdaptedVectors` takes: inputs of the last layer, its outputs, the mask, its first output. Empty if the
    encoder's last layer is not BERT-shaped, or was not asked for."""

    def __len__(self) -> int:
        return len(self.vectors)


def find_last_layer(encoder: nn.Module) -> nn.Module | None:
    """Returns the last layer of an encoder that is to be frozen up to it: the last module of its longest list of
    modules of one class.
    """
    lists = [
        module
        for module in encoder.modules()
        if isinstance(module, nn.ModuleList) and len(module) and len({type(one) for one in module}) == 1
    ]
    return max(lists, key=len)[-1] if lists else None


def find_adaptable_layer(encoder: nn.Module) -> nn.Module | None:
    """Returns the encoder's last layer if adapters can be trained in it at the first token; None if they cannot."""
    layer = find_last_layer(encoder)
    return layer if layer is not None and is_bert_shaped(layer) else None


def read_texts(
    encoder: nn.Module, tokenizer: Any, texts: Sequence[str], *, length: int, with_last_layer: bool
) -> FrozenTexts:
    """Runs the frozen encoder over texts and returns what is kept of them.

    Args:
        encoder: gives `last_hidden_state`; it is used in evaluation mode and without gradients.
        tokenizer: turns texts into `input_ids` and `attention_mask`.
        texts: are cut to
        length: so many tokens.
        with_last_layer: whether inputs and outputs of the last layer are kept for all tokens, 4 bytes for each number.

    """
    encoding = tokenizer(list(texts), truncation=True, padding=True, max_length=length, return_tensors="pt")
    return read_tokens(encoder, encoding["input_ids"], encoding["attention_mask"], with_last_layer=with_last_layer)


@torch.no_grad()
def read_tokens(encoder: nn.Module, ids: Tensor, mask: Tensor, *, with_last_layer: bool) -> FrozenTexts:
    """Runs the frozen encoder over token numbers, texts of like length together, and returns what is kept of them."""
    layer = find_adaptable_layer(encoder) if with_last_layer else None
    # Dropout would make the vectors random; the encoder gets its mode back at the end.
    was_training = encoder.training
    encoder.eval()
    device = next(encoder.parameters()).device
    seen: list[Tensor] = []
    hook = None if layer is None else layer.register_forward_pre_hook(_keep_input(seen), with_kwargs=True)
    frozen_layer = None if layer is None else FirstTokenLayer(layer, {})
    try:
        vectors: Tensor | None = None
        kept: list[Tensor] = []
        # Texts of like length are read together, which needs less padding. The order tells nothing: rows are put back.
        for rows in mask.sum(1).argsort().split(AT_ONCE):
            # Few different shapes: the memory of each is used again.
            longest = min(mask.shape[1], -(-int(mask[rows].sum(1).max()) // _SHAPE) * _SHAPE)
            ids_here, mask_here = ids[rows, :longest].to(device), mask[rows, :longest].to(device)
            with torch.autocast("cpu", torch.bfloat16, enabled=_has_fast_bfloat16(device)):
                outputs = _last_hidden_state(encoder, ids_here, mask_here).float()
            # Padding is left out of the mean, and a text without tokens is divided by 1, not by 0.
            mean = (outputs * mask_here.unsqueeze(2)).sum(1) / mask_here.sum(1, keepdim=True).clamp(min=1)
            if vectors is None:
                vectors = torch.zeros(len(ids), outputs.shape[2])
                if layer is not None:
                    whole = (*ids.shape, outputs.shape[2])
                    kept = [torch.zeros(whole, dtype=torch.half), torch.zeros(whole, dtype=torch.half)]
                    kept += [mask.bool(), torch.zeros(len(ids), outputs.shape[2])]
            # Rows go back to the places of their texts, whatever the order in which they were read.
            vectors[rows] = mean.cpu()
            if frozen_layer is not None:
                # Half precision is kept, and the first output is computed from what is kept, so that the change by
                # training is exactly 0 before the first step.
                inputs = seen.pop().half()
                kept[0][rows, :longest], kept[1][rows, :longest] = inputs.cpu(), outputs.half().cpu()
                kept[3][rows] = frozen_layer(inputs.float(), mask_here.bool()).cpu()
    finally:
        encoder.train(was_training)
        # A hook that stays would keep the inputs of every later call in memory.
        if hook is not None:
            hook.remove()
    if vectors is None:
        raise ValueError("no texts: need at least one")
    return FrozenTexts(scale_to_width(vectors), tuple(kept))


def _keep_input(seen: list[Tensor]) -> Any:
    """Returns a forward hook that appends what the frozen encoder hands to a layer to `seen`."""

    def keep(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        seen.append(given[0] if given else named["hidden_states"])

    return keep


def _last_hidden_state(encoder: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Returns the token vectors that a frozen encoder makes of texts, or raises Refusal if the model gives none."""
    result = encoder(input_ids=ids, attention_mask=mask)
    hidden = getattr(result, "last_hidden_state", None)
    if not isinstance(hidden, Tensor) or hidden.dim() != 3:
        raise Refusal(
            f"the encoder returned a {type(result).__name__} without last_hidden_state.\n"
            "Texts are read as the mean of their token vectors.\n"
            "Give an encoder such as transformers.AutoModel.from_pretrained(…)."
        )
    return hidden


def _has_fast_bfloat16(device: torch.device) -> bool:
    """Returns whether products in bfloat16 are faster than in float32 on a CPU: whether it has instructions for them."""
    return device.type == "cpu" and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@torch.no_grad()
def find_directions(encoder: nn.Module, tokenizer: Any, rank: int, length: int) -> dict[str, Tensor]:
    """Returns A for each adapter of the last layer, (rank, inputs), from what the frozen encoder makes of texts of
    random words, which are nobody's data.

    These are the directions along which the layer's inputs at the first token differ most. For the queries, which are
    all of one token that is much the same in every text, it is the direction of their mean, and rank 1.
    """
    layer = find_adaptable_layer(encoder)
    assert layer is not None, "asked before"
    # Texts of random words of the tokenizer's vocabulary: a fixed seed, so that A is the same in every run.
    words = sorted(word for word in tokenizer.get_vocab() if word.isascii() and word.isalpha() and len(word) > 2)
    generator = random.Random(0)
    words = generator.sample(words, min(len(words), _MOST_WORDS))
    shuffled = [word for _ in range(_TIMES) for word in generator.sample(words, len(words))]
    texts = [" ".join(shuffled[i : i + _RANDOM_TEXTS_OF]) for i in range(0, len(shuffled), _RANDOM_TEXTS_OF)]
    read = read_texts(encoder, tokenizer, texts, length=min(length, 48), with_last_layer=True)
    # The inputs of every linear map, seen by hooks.
    at_first = FirstTokenLayer(layer, {}).eval()
    seen: dict[str, list[Tensor]] = {name: [] for name in ADAPTED_NAMES}
    hooks = [
        at_first.get_submodule(name).register_forward_pre_hook(
            lambda _, given, name=name: seen[name].append(given[0].flatten(0, -2).float())
        )
        for name in ADAPTED_NAMES
    ]
    try:
        for inputs, mask in zip(read.columns[0].split(256), read.columns[2].split(256), strict=True):
            at_first(inputs.float(), mask)
    finally:
        # Some of these maps are the encoder's own modules. A hook that stayed would go with them into the layer that is
        # trained, and keep the activations and graphs of every later batch.
        for hook in hooks:
            hook.remove()
    directions = {}
    for name, parts in seen.items():
        rows = torch.cat(parts)
        mean = rows.mean(0)
        # Queries hardly differ between texts: their mean says nearly all of them, and centring would take it away.
        if name == "query":
            directions[name] = nn.functional.normalize(mean, dim=0)[None]
            continue
        centred = rows - mean
        # `eigh` sorts eigenvalues upwards; flipped, the directions of the largest differences come first.
        along = torch.linalg.eigh(centred.T @ centred).eigenvectors.T.flip(0)
        directions[name] = along[: min(rank, _MOST_DIRECTIONS)].contiguous()
    return directions

"""The last layer of a BERT-shaped encoder at a text's first token, and a weighted mean of its tokens, both trainable.

The frozen encoder's vector of a text is the mean of its token vectors. Training changes that vector in two places:

    first token    the last layer is computed again for the first token ([CLS]), which looks at all others by its
                   attention; by how much that token's vector has changed is added to the mean
    mean           a linear score of each token, by its place and its vector, weighs the mean (softmax)

Before training both changes are 0, so a text's vector is the frozen encoder's. A pass costs one query and one feed-forward
pass for each text, and everything below the last layer is computed once (`frozen_texts.py`).

Adapters are LoRA-FA (Zhang et al. 2023, arXiv:2308.03303): W x + B A x, where B begins at 0 and is trained, and A is fixed
and public. Only B adds noise to a step: half of what LoRA would train.

Privacy: each record's vector is computed from that record alone; nothing is counted over the batch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

PLACES = 3
"""How many functions of a token's place the score of a token may use."""
_MASKED = -1e9
"""The score of padding: its weight underflows to 0."""

BERT_PARTS = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)
"""The modules of a layer of BERT, RoBERTa, ELECTRA, MiniLM and others of their shape."""


def is_bert_shaped(layer: nn.Module) -> bool:
    """Returns whether an encoder's last layer has the parts of a BERT layer, whatever its class is called."""
    modules = dict(layer.named_modules())
    has_heads = hasattr(modules.get("attention.self"), "num_attention_heads")
    return has_heads and all(isinstance(modules.get(name), nn.Linear | nn.LayerNorm) for name in BERT_PARTS)


class AdaptedLinear(nn.Module):
    """A frozen linear layer and a LoRA-FA adapter beside it: W x + B A x."""

    down: Tensor

    def __init__(self, frozen: nn.Linear, down: Tensor) -> None:
        super().__init__()
        self.frozen = frozen
        self.register_buffer("down", down)  # A, (rank, inputs), public
        self.up = nn.Linear(len(down), frozen.out_features, bias=False)  # B
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, inputs) to (B, outputs)."""
        adapted: Tensor = self.frozen(x) + self.up(x @ self.down.T)
        return adapted


class LinearByHead(nn.Module):
    """A linear map in parts, one for each attention head; `transposed` applies the transposed weight."""

    def __init__(self, weight: Tensor, heads: int, *, transposed: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().unflatten(0, (heads, -1)).clone())
        self._equation = "bho,hoi->bhi" if transposed else "bhi,hoi->bho"

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, heads, inputs) to (B, heads, outputs)."""
        return torch.einsum(self._equation, x, self.weight)


class WeightedMean(nn.Module):
    """A weighted mean of tokens: softmax of a linear score, 0 at first, of a token's place and of its vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.by_vector, self.by_place = nn.Linear(width, 1, bias=False), nn.Linear(PLACES, 1, bias=False)
        nn.init.zeros_(self.by_vector.weight)
        nn.init.zeros_(self.by_place.weight)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Maps the last layer's token vectors (B, T, width) and their mask (B, T) to their weighted mean (B, width);
        padding has no weight.
        """
        place = torch.arange(tokens.shape[1], device=tokens.device)
        places = torch.stack([torch.exp(-place / 8), torch.exp(-place / 32), place / 64 - 1], 1)  # (T, PLACES)
        scores = self.by_vector(tokens) + self.by_place(places.to(tokens.dtype).expand(len(tokens), -1, -1))
        weights = scores.squeeze(2).masked_fill(~mask, _MASKED).softmax(1)  # (B, T)
        mean: Tensor = (weights.unsqueeze(1) @ tokens).squeeze(1)
        return mean


class FirstTokenLayer(nn.Module):
    """A BERT-shaped layer computed for the first token alone, with an adapter in each linear map that has a direction.

    Args:
        layer: the encoder's last layer; it stays as it is, and frozen.
        directions: A of each adapter by name, (rank, inputs); a name without one has no adapter.

    """

    value_down: Tensor

    def __init__(self, layer: Any, directions: Mapping[str, Tensor]) -> None:
        super().__init__()

        def adapt(name: str, linear: nn.Linear) -> nn.Module:
            return AdaptedLinear(linear, directions[name]) if name in directions else linear

        attention, output = layer.attention.self, layer.attention.output
        self.heads = int(attention.num_attention_heads)
        self.query = adapt("query", attention.query)
        # query · key is computed as (query times the key's weight) · input, so that no key is made for any token. The
        # key's bias adds the same to all scores of a query, which the softmax ignores.
        self.key = LinearByHead(attention.key.weight, self.heads, transposed=True)
        self.value = LinearByHead(attention.value.weight, self.heads)
        self.register_buffer("value_bias", attention.value.bias.detach().clone())
        self.value_up = None
        if "value" in directions:
            self.register_buffer("value_down", directions["value"])
            zeros = torch.zeros(attention.value.out_features, len(directions["value"]))
            self.value_up = LinearByHead(zeros, self.heads)
        self.mixed, self.mixed_norm = adapt("mixed", output.dense), output.LayerNorm
        self.wider = adapt("wider", layer.intermediate.dense)
        self.activation = getattr(layer.intermediate, "intermediate_act_fn", nn.functional.gelu)
        self.narrower, self.norm = adapt("narrower", layer.output.dense), layer.output.LayerNorm

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Runs the last layer at the first token: maps its inputs (B, T, width) and the mask (B, T) to (B, width)."""
        first = inputs[:, 0]
        # Attention of the first token to all tokens.
        queries = self.query(first).unflatten(1, (self.heads, -1))
        scores = self.key(queries) @ inputs.transpose(1, 2) / float(queries.shape[2]) ** 0.5  # (B, heads, T)
        weights = scores.masked_fill(~mask.unsqueeze(1), _MASKED).softmax(2)
        seen = weights @ inputs  # (B, heads, width)
        values = self.value(seen)
        if self.value_up is not None:
            values = values + self.value_up(seen @ self.value_down.T)
        # The rest of the layer: output projection and feed-forward block, each with its residual and norm.
        middle = self.mixed_norm(self.mixed(values.flatten(1) + self.value_bias) + first)
        made: Tensor = self.norm(self.narrower(self.activation(self.wider(middle))) + middle)
        return made


ADAPTED_NAMES = ("query", "value", "mixed", "wider", "narrower")
"""The linear maps of a `FirstTokenLayer` that can have an adapter."""


class AdaptedVectors(nn.Module):
    """The vectors of texts as training changes them: first token and weights of the mean."""

    def __init__(self, layer: nn.Module, width: int, directions: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.layer = FirstTokenLayer(copy.deepcopy(layer), directions)  # the user's encoder stays as it is
        self.mean = WeightedMean(width)

    def forward(self, inputs: Tensor, tokens: Tensor, mask: Tensor, first: Tensor) -> Tensor:
        """Returns the vectors of texts, (B, width), from the last layer with its adapters.

        Args:
            inputs: what the last layer is given, (B, T, width).
            tokens: what the frozen last layer makes of it, (B, T, width).
            mask: which tokens are there, (B, T).
            first: the frozen layer's output at the first token, computed as this module does, (B, width).

        """
        kind = self.mean.by_vector.weight.dtype
        inputs, tokens = inputs.to(kind), tokens.to(kind)
        return scale_to_width(self.mean(tokens, mask) + self.layer(inputs, mask) - first)


def scale_to_width(vectors: Tensor) -> Tensor:
    """Returns vectors scaled to length √width, so that their coordinates are of size 1."""
    scaled: Tensor = nn.functional.normalize(vectors, dim=1) * float(vectors.shape[1]) ** 0.5
    return scaled

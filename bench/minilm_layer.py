"""MiniLM's last layer at a text's first token, trained by adapters or as a whole.

The frozen encoder's vector of a text is the mean of the last layer's over its tokens. Training changes the last layer where
it is computed for the first token ([CLS]), which looks at all the others by its attention: by how much that token's vector
has changed is added to the mean. So before training a text's vector is the frozen encoder's, and a pass takes half a
millisecond: one query and one feed-forward pass a text. Where `Pool` is trained too, it weighs the tokens of the mean.

Adapters are LoRA-FA (Zhang et al. 2023): W x + B A x, where B begins at 0 and is trained, and A is fixed
(`directions` of minilm_kept.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sordino.app.data import minilm

HEADS = 12
SIZE = minilm.WIDTH // HEADS
"""Of a head."""
PLACES = 3
"""Functions of a token's place."""


class Adapted(nn.Module):
    """A frozen linear layer and B A x."""

    down: Tensor

    def __init__(self, frozen: nn.Linear, down: Tensor) -> None:
        super().__init__()
        self.frozen = frozen
        self.register_buffer("down", down)  # A, (rank, inputs)
        self.up = nn.Linear(len(down), frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, inputs) to (B, outputs)."""
        made: Tensor = self.frozen(x) + self.up(x @ self.down.T)
        return made


class ByHead(nn.Module):
    """A linear layer in parts, one for each head; `back` is by the transposed weight."""

    def __init__(self, weight: Tensor, back: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().unflatten(0, (HEADS, SIZE)).clone())
        self.rule = "bho,hoi->bhi" if back else "bhi,hoi->bho"

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, HEADS, inputs) to (B, HEADS, outputs)."""
        return torch.einsum(self.rule, x, self.weight)


class Pool(nn.Module):
    """A weighted mean of tokens: softmax of a linear score, 0 at first, of a token's place and of its vector."""

    def __init__(self) -> None:
        super().__init__()
        self.by_vector, self.by_place = nn.Linear(minilm.WIDTH, 1, bias=False), nn.Linear(PLACES, 1, bias=False)
        nn.init.zeros_(self.by_vector.weight)
        nn.init.zeros_(self.by_place.weight)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Maps (B, T, width) and (B, T) to (B, width); padding has no weight."""
        place = torch.arange(tokens.shape[1], device=tokens.device)
        places = torch.stack([torch.exp(-place / 8), torch.exp(-place / 32), place / 64 - 1], 1)  # (T, PLACES)
        scores = self.by_vector(tokens) + self.by_place(places.to(tokens.dtype).expand(len(tokens), -1, -1))
        weights = scores.squeeze(2).masked_fill(~mask, -1e9).softmax(1)  # (B, T)
        pooled: Tensor = (weights.unsqueeze(1) @ tokens).squeeze(1)
        return pooled


class LastLayer(nn.Module):
    """The sixth layer at the first token, and a linear layer on the text's vector."""

    down: Tensor

    def __init__(self, layer: Any, classes: int, downs: dict[str, Tensor]) -> None:
        super().__init__()

        def adapted(name: str, linear: nn.Linear) -> nn.Module:
            return Adapted(linear, downs[name]) if name in downs else linear

        attention, output = layer.attention.self, layer.attention.output
        self.pool = Pool()
        self.query = adapted("query", attention.query)
        self.key, self.value = ByHead(attention.key.weight, back=True), ByHead(attention.value.weight)
        self.value_up = None
        if "value" in downs:
            self.register_buffer("down", downs["value"])
            self.value_up = ByHead(torch.zeros(minilm.WIDTH, len(downs["value"])))
        self.register_buffer("shift", attention.value.bias.detach().clone())  # a bias of `mixed` too would do its work
        self.mixed, self.mixed_norm = adapted("mixed", output.dense), output.LayerNorm
        self.wider, self.narrower = adapted("wider", layer.intermediate.dense), adapted("narrower", layer.output.dense)
        self.norm = layer.output.LayerNorm
        self.head = nn.Linear(minilm.WIDTH, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def first(self, given: Tensor, mask: Tensor) -> Tensor:
        """Returns the layer's output at the first token: (B, T, width) and (B, T) to (B, width)."""
        given = given.to(self.norm.weight.dtype)
        with torch.autocast("cpu", torch.bfloat16):  # products; float64, in which the engine may look again, it lets be
            at = given[:, 0]
            toward = self.key(
                self.query(at).unflatten(1, (HEADS, SIZE))
            )  # query · key = this · what the key is made of
            scores = toward @ given.transpose(1, 2) / SIZE**0.5  # (B, HEADS, T)
            looked = scores.masked_fill(~mask.unsqueeze(1), -1e9).softmax(2) @ given  # (B, HEADS, width)
            values = self.value(looked)
            if self.value_up is not None:
                values = values + self.value_up(looked @ self.down.T)
            at = self.mixed_norm(self.mixed(values.flatten(1) + self.shift) + at)
            made: Tensor = self.norm(self.narrower(nn.functional.gelu(self.wider(at))) + at)
        return made.to(self.norm.weight.dtype)

    def vectors(self, given: Tensor, mask: Tensor, frozen: Tensor, *tokens: Tensor) -> Tensor:
        """Returns the vectors of texts.

        `frozen` is the frozen mean less the first token's frozen vector; with `tokens`, it is without the mean.
        """
        mean = [self.pool(each.to(self.norm.weight.dtype), mask) for each in tokens]
        return scale_to_width(sum(mean, frozen + self.first(given, mask)))

    def forward(self, *columns: Tensor) -> Tensor:
        """Returns the scores."""
        scores: Tensor = self.head(self.vectors(*columns))
        return scores


def scale_to_width(mean: Tensor) -> Tensor:
    """Returns vectors scaled to length √width."""
    made: Tensor = nn.functional.normalize(mean, dim=1) * float(minilm.WIDTH) ** 0.5
    return made


def last_layer() -> Any:
    """Returns MiniLM's sixth layer, without dropout, because the noise is enough."""
    encoder: Any = minilm.build_classifier(1).encoder
    return encoder.encoder.layer[5].eval()

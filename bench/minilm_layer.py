"""MiniLM's last layer at a text's first token, with adapters.

The mean of the last layer's vectors over a text's tokens is what the frozen encoder gives. Training changes the last layer
where it is computed for the first token ([CLS]), which looks at all tokens by its attention: by how much this has changed
that token's vector is added to the mean. So before training a text's vector is the frozen encoder's, and a pass takes half
a millisecond: one query and one feed-forward pass a text. What the layer is given does not change and is kept.

Adapters are LoRA-FA (Zhang et al. 2023): W x + B A x, where B begins at 0 and is trained, and A is fixed
(`directions` of minilm_kept.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sordino.nn import minilm

HEADS = 12
SIZE = minilm.WIDTH // HEADS
"""Of a head."""
ADAPTED = ("query", "value", "mixed", "wider", "narrower")


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
        """(B, inputs) to (B, outputs)."""
        made: Tensor = self.frozen(x) + self.up(x @ self.down.T)
        return made


class ByHead(nn.Module):
    """A linear layer in parts, each on what its own head looks at."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.unflatten(0, (HEADS, SIZE)).clone())

    def forward(self, x: Tensor) -> Tensor:
        """(B, HEADS, inputs) to (B, HEADS, SIZE)."""
        return torch.einsum("bhi,hoi->bho", x, self.weight)


class LastLayer(nn.Module):
    """The sixth layer at the first token, and a linear layer on the text's vector."""

    down: Tensor

    def __init__(self, layer: Any, classes: int, downs: dict[str, Tensor]) -> None:
        super().__init__()

        def adapted(name: str, linear: nn.Linear) -> nn.Module:
            return Adapted(linear, downs[name]) if name in downs else linear

        attention, output = layer.attention.self, layer.attention.output
        self.query = adapted("query", attention.query)
        self.key, self.value = ByHead(attention.key.weight), ByHead(attention.value.weight)
        self.value_bias = nn.Parameter(attention.value.bias.clone())
        self.value_up = None
        if "value" in downs:
            self.register_buffer("down", downs["value"])
            self.value_up = ByHead(torch.zeros(minilm.WIDTH, len(downs["value"])))
        self.mixed, self.mixed_norm = adapted("mixed", output.dense), output.LayerNorm
        self.wider, self.narrower = adapted("wider", layer.intermediate.dense), adapted("narrower", layer.output.dense)
        self.norm = layer.output.LayerNorm
        self.head = nn.Linear(minilm.WIDTH, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def first(self, given: Tensor, mask: Tensor) -> Tensor:
        """What the layer makes of the first token: (B, T, width) and (B, T) to (B, width)."""
        given = given.to(self.norm.weight.dtype)
        with torch.autocast("cpu", torch.bfloat16):  # products; float64, in which the engine may look again, it lets be
            at = given[:, 0]
            query = self.query(at).unflatten(1, (HEADS, SIZE))
            toward = torch.einsum("bho,hoi->bhi", query, self.key.weight)  # query · key is this · what the key is made of
            scores = toward @ given.transpose(1, 2) / SIZE**0.5  # (B, HEADS, T)
            looked = scores.masked_fill(~mask.unsqueeze(1), -1e9).softmax(2) @ given  # (B, HEADS, width)
            values = self.value(looked)
            if self.value_up is not None:
                values = values + self.value_up(looked @ self.down.T)
            at = self.mixed_norm(self.mixed(values.flatten(1) + self.value_bias) + at)
            made: Tensor = self.norm(self.narrower(nn.functional.gelu(self.wider(at))) + at)
        return made.to(self.norm.weight.dtype)

    def vectors(self, given: Tensor, mask: Tensor, others: Tensor) -> Tensor:
        """Of texts; `others` is the frozen mean over all tokens less the frozen vector of the first."""
        return scaled(others + self.first(given, mask))

    def forward(self, *columns: Tensor) -> Tensor:
        """The scores."""
        scores: Tensor = self.head(self.vectors(*columns))
        return scores


def scaled(mean: Tensor) -> Tensor:
    """Of length √width."""
    made: Tensor = nn.functional.normalize(mean, dim=1) * float(minilm.WIDTH) ** 0.5
    return made


def last_layer() -> Any:
    """MiniLM's sixth layer."""
    encoder: Any = minilm.classifier(1).encoder
    return encoder.encoder.layer[5].eval()

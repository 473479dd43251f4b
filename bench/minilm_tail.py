"""The last feed-forward block of MiniLM-L6 on what everything before it makes of texts, which is computed once and kept.

What is reduced, so that a run takes a minute on one core: the first 128 tokens of a text are read. All before the last
feed-forward block (1.2 million numbers) is frozen. Training changes what the block makes of every token, and so their mean,
which is the text's vector; that change is computed at `SEEN` tokens of a text, evenly spread over it, and added to the mean
that the frozen encoder has over all of them. So before any training the vector is the frozen encoder's.
"""

from __future__ import annotations

import hashlib
from functools import cache as cache_in_memory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.data import cache
from sordino.data.text import texts
from sordino.nn import minilm

LENGTH = 128
SEEN = 8


class Tail(nn.Module):
    """The block at some tokens, and a linear layer on the mean of their vectors."""

    def __init__(self, layer: Any, classes: int) -> None:
        super().__init__()
        self.wider = layer.intermediate
        self.output = layer.output
        self.head = nn.Linear(minilm.WIDTH, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def mean(self, at: Tensor) -> Tensor:
        """(B, SEEN, width) to (B, width)."""
        at = at.float()
        made: Tensor = self.output(self.wider(at), at)  # (B, SEEN, width)
        return made.mean(1)

    def forward(self, at: Tensor, rest: Tensor) -> Tensor:
        """The scores; `rest` is the frozen mean over all tokens, less that over those seen."""
        scores: Tensor = self.head(scaled(rest + self.mean(at)))
        return scores


def scaled(mean: Tensor) -> Tensor:
    """Of length √width."""
    made: Tensor = nn.functional.normalize(mean, dim=1) * float(minilm.WIDTH) ** 0.5
    return made


def last_layer() -> Any:
    """MiniLM's sixth layer, without dropout: the noise is enough."""
    encoder: Any = minilm.classifier(1).encoder
    return encoder.encoder.layer[5].eval()


def seen(mask: Tensor, count: int = SEEN) -> Tensor:
    """Places of tokens, (N, count), evenly spread over each text's own; a short one's come more than once."""
    own = mask.sum(1, keepdim=True)
    places: Tensor = ((torch.arange(count) + 0.5) / count * own).long()
    return places


@cache_in_memory
def kept(task: str, part: str) -> tuple[Tensor, Tensor, Tensor]:
    """The two columns of a Tail's records, the first in half precision, and the frozen encoder's vectors."""
    at, whole = encoded(getattr(texts(task), part))
    tail = Tail(last_layer(), 1).eval()
    with torch.no_grad():
        rest = whole - torch.cat([tail.mean(some) for some in at.split(256)])
    return at, rest, scaled(whole)


def encoded(some: list[str]) -> tuple[Tensor, Tensor]:
    """What the last block is given at the tokens seen, and the mean of what it makes of all; in bfloat16, once."""
    name = hashlib.sha256("\n".join(some).encode()).hexdigest()[:24]
    kinds = f"minilm-block-{SEEN}-{LENGTH}", f"minilm-mean-{LENGTH}"
    paths = [cache.root() / "features" / f"{kind}-{name}.npy" for kind in kinds]
    if not all(path.is_file() for path in paths):
        paths[0].parent.mkdir(parents=True, exist_ok=True)
        for path, made in zip(paths, _encode(*minilm.tokens(some, LENGTH)), strict=True):
            np.save(path, made.numpy())
    return torch.from_numpy(np.load(paths[0])), torch.from_numpy(np.load(paths[1]))


@torch.no_grad()
def _encode(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    encoder: Any = minilm.classifier(1).encoder.eval()
    given: list[Tensor] = []
    encoder.encoder.layer[5].intermediate.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    at, means = torch.zeros(len(ids), SEEN, minilm.WIDTH, dtype=torch.half), torch.zeros(len(ids), minilm.WIDTH)
    for rows in mask.sum(1).argsort().split(64):  # by length: less padding
        its = mask[rows, : int(mask[rows].sum(1).max())]
        with torch.autocast("cpu", torch.bfloat16):
            made = encoder(ids[rows, : its.shape[1]], its).last_hidden_state.float()
        means[rows] = (made * its.unsqueeze(2)).sum(1) / its.sum(1, keepdim=True)
        at[rows] = given.pop().gather(1, seen(its).unsqueeze(2).expand(-1, -1, minilm.WIDTH)).half()
    return at, means

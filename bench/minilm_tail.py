"""The end of MiniLM-L6 on what everything before it makes of texts, which is computed once and kept.

What is reduced, so that a run takes a minute or two on one core: the first 128 tokens of a text are read, and all before
the last feed-forward block (1.2 million numbers) is frozen. A text's vector is a weighted mean of its tokens' vectors.
Training changes the weights, at every token, by attention that begins as the plain mean; or the block, whose change is
computed at `SEEN` tokens of a text, evenly spread over it, and added. So before training it is the frozen encoder's.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
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
PLACES = 3
"""Functions of a token's place."""


class Pool(nn.Module):
    """A weighted mean of tokens: softmax of a linear score, 0 at first, of a token's place and of its vector.

    Few numbers, because noise goes on every one; fewer still where only some directions of the vector are looked at.
    """

    directions: Tensor

    def __init__(self, directions: Tensor) -> None:
        super().__init__()
        self.register_buffer("directions", directions)
        self.scores = nn.Linear(directions.shape[1] + PLACES, 1, bias=False)
        nn.init.zeros_(self.scores.weight)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """(B, T, width) and (B, T) to (B, width); padding has no weight."""
        place = torch.arange(tokens.shape[1], device=tokens.device)
        places = torch.stack([torch.exp(-place / 8), torch.exp(-place / 32), place / 64 - 1], 1)  # (T, PLACES)
        seen = torch.cat([places.expand(len(tokens), -1, -1), tokens @ self.directions], 2)
        weights = self.scores(seen).masked_fill(~mask.unsqueeze(2), -1e9).softmax(1)  # (B, T, 1)
        pooled: Tensor = (weights * tokens).sum(1)
        return pooled


class Tail(nn.Module):
    """Attention over all tokens, the block at some, and a linear layer on the sum of what they make of a text."""

    def __init__(self, layer: Any, classes: int, directions: Tensor) -> None:
        super().__init__()
        self.pool = Pool(directions)
        self.wider = layer.intermediate
        self.output = layer.output
        self.head = nn.Linear(minilm.WIDTH, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def mean(self, at: Tensor) -> Tensor:
        """What the block makes of some tokens, on average: (B, SEEN, width) to (B, width)."""
        at = at.float()
        made: Tensor = self.output(self.wider(at), at)  # (B, SEEN, width)
        return made.mean(1)

    def vectors(self, tokens: Tensor, mask: Tensor, *block: Tensor) -> Tensor:
        """Of texts. `block` is what the block is given at the tokens seen, and the frozen block's mean of them."""
        pooled: Tensor = self.pool(tokens.float(), mask)
        if block:
            at, frozen = block
            pooled = pooled + self.mean(at) - frozen
        return scaled(pooled)

    def forward(self, *columns: Tensor) -> Tensor:
        """The scores."""
        scores: Tensor = self.head(self.vectors(*columns))
        return scores


def scaled(mean: Tensor) -> Tensor:
    """Of length √width."""
    made: Tensor = nn.functional.normalize(mean, dim=1) * float(minilm.WIDTH) ** 0.5
    return made


def last_layer() -> Any:
    """MiniLM's sixth layer, without dropout: the noise is enough."""
    encoder: Any = minilm.classifier(1).encoder
    return encoder.encoder.layer[5].eval()


def directions(count: int) -> Tensor:
    """(width, count): along which tokens differ most where texts are words of the vocabulary in random order; no data."""
    path = cache.root() / "features" / "minilm-directions.npy"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, _directions().numpy())
    return torch.from_numpy(np.load(path))[:, :count].contiguous()


@torch.no_grad()
def _directions() -> Tensor:
    known = minilm.vocabulary()
    words = [word for word in known if word.isascii() and word.isalpha() and len(word) > 2]
    order = torch.randperm(len(words), generator=torch.Generator().manual_seed(0)).split(32)
    ids, mask = minilm.tokens([" ".join(words[i] for i in some) for some in order], 48)
    encoder: Any = minilm.classifier(1).encoder.eval()
    parts = zip(ids.split(64), mask.split(64), strict=True)
    made = torch.cat([encoder(*part).last_hidden_state[part[1].bool()] for part in parts])
    along: Tensor = torch.linalg.svd(made - made.mean(0), full_matrices=False).Vh.T
    return along


def seen(mask: Tensor, count: int = SEEN) -> Tensor:
    """Places of tokens, (N, count), evenly spread over each text's own; a short one's come more than once."""
    own = mask.sum(1, keepdim=True)
    places: Tensor = ((torch.arange(count) + 0.5) / count * own).long()
    return places


@dataclass(frozen=True)
class Kept:
    """What is kept of texts, a row each; the two large ones in half precision."""

    tokens: Tensor
    mask: Tensor
    at: Tensor
    frozen: Tensor
    vectors: Tensor

    def columns(self, block: bool) -> tuple[Tensor, ...]:
        """What a Tail takes."""
        return (self.tokens, self.mask, self.at, self.frozen) if block else (self.tokens, self.mask)


@cache_in_memory
def kept(task: str, part: str) -> Kept:
    """The texts of a part of a task: their tokens' last vectors, what the block needs, and the frozen encoder's vectors."""
    tokens, mask, at, whole = encoded(getattr(texts(task), part))
    tail = Tail(last_layer(), 1, directions(1)).eval()
    with torch.no_grad():
        frozen = torch.cat([tail.mean(some) for some in at.split(256)])
    return Kept(tokens, mask, at, frozen, scaled(whole))


def encoded(some: list[str]) -> tuple[Tensor, ...]:
    """Tokens' vectors, mask, what the last block is given at the tokens seen, and plain means; in bfloat16, once."""
    name = hashlib.sha256("\n".join(some).encode()).hexdigest()[:24]
    kinds = f"tokens-{LENGTH}", f"mask-{LENGTH}", f"block-{SEEN}-{LENGTH}", f"mean-{LENGTH}"
    paths = [cache.root() / "features" / f"minilm-{kind}-{name}.npy" for kind in kinds]
    if not all(path.is_file() for path in paths):
        paths[0].parent.mkdir(parents=True, exist_ok=True)
        for path, made in zip(paths, _encode(*minilm.tokens(some, LENGTH)), strict=True):
            np.save(path, made.numpy())
    return tuple(torch.from_numpy(np.load(path)) for path in paths)


@torch.no_grad()
def _encode(ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    encoder: Any = minilm.classifier(1).encoder.eval()
    given: list[Tensor] = []
    encoder.encoder.layer[5].intermediate.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    tokens = torch.zeros(*ids.shape, minilm.WIDTH, dtype=torch.half)
    at, means = torch.zeros(len(ids), SEEN, minilm.WIDTH, dtype=torch.half), torch.zeros(len(ids), minilm.WIDTH)
    for rows in mask.sum(1).argsort().split(64):  # by length: less padding
        its = mask[rows, : int(mask[rows].sum(1).max())]
        with torch.autocast("cpu", torch.bfloat16):
            made = encoder(ids[rows, : its.shape[1]], its).last_hidden_state.float()
        tokens[rows, : its.shape[1]] = made.half()
        means[rows] = (made * its.unsqueeze(2)).sum(1) / its.sum(1, keepdim=True)
        at[rows] = given.pop().gather(1, seen(its).unsqueeze(2).expand(-1, -1, minilm.WIDTH)).half()
    return tokens, mask.bool(), at, means

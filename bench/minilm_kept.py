"""Computes once what MiniLM makes of texts before anything is trained, and keeps it in bfloat16."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache as cache_in_memory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.minilm_layer import LastLayer, last_layer, scale_to_width
from sordino.app.data import cache, minilm
from sordino.app.data.labelled_texts import load_texts

LENGTH = 128
ADAPTED = ("query", "value", "mixed", "wider", "narrower")
TIMES = 2
"""How often each word is in the random texts."""
MOST = 64
"""Directions that are kept."""


@dataclass(frozen=True)
class Kept:
    """What is kept of texts, a row each: what a LastLayer takes, and the frozen encoder's vectors."""

    columns: tuple[Tensor, ...]
    vectors: Tensor


@cache_in_memory
def load_kept(task: str, part: str, pooled: bool) -> Kept:
    """Returns the texts of a part of a task; with `pooled`, with the last vectors of all tokens."""
    given, tokens, mask, whole = encode_texts(getattr(load_texts(task), part))
    frozen = LastLayer(last_layer(), 1, {}).eval()
    with torch.no_grad():
        first = torch.cat([frozen.first(*some) for some in zip(given.split(256), mask.split(256), strict=True)])
    return Kept((given, mask, -first, tokens) if pooled else (given, mask, whole - first), scale_to_width(whole))


@cache_in_memory
def directions(rank: int) -> dict[str, Tensor]:
    """Returns A for each linear layer, (rank, inputs), from texts of random words, which are no one's data.

    The directions along which its inputs differ most; for the queries, which are all of one token that is much the same
    in every text, the direction of their mean, and rank 1.
    """
    path = cache.cache_folder() / "features" / "minilm-directions-of-inputs.pt"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(_directions(), path)
    along: dict[str, Tensor] = torch.load(path)
    return {name: rows[:1] if name == "query" else rows[1 : rank + 1].contiguous() for name, rows in along.items()}


@torch.no_grad()
def _directions() -> dict[str, Tensor]:
    """Computes the principal directions of the inputs of each adapted layer on random texts."""
    words = [word for word in minilm.read_vocabulary() if word.isascii() and word.isalpha() and len(word) > 2]
    generator = torch.Generator().manual_seed(0)
    order = torch.cat([torch.randperm(len(words), generator=generator) for _ in range(TIMES)]).split(32)
    given, _, mask, _ = _encode(*minilm.tokenize([" ".join(words[i] for i in some) for some in order], 48))
    layer = LastLayer(last_layer(), 1, {}).eval()
    inputs: dict[str, list[Tensor]] = {name: [] for name in ADAPTED}
    for name in ADAPTED:
        layer.get_submodule(name).register_forward_pre_hook(
            lambda _, x, name=name: inputs[name].append(x[0].flatten(0, -2))
        )
    layer.first(given, mask)
    found = {}
    for name, some in inputs.items():
        rows = torch.cat(some).float()
        mean, rows = rows.mean(0), rows - rows.mean(0)
        along = torch.linalg.eigh(rows.T @ rows).eigenvectors.T.flip(0)[:MOST]
        found[name] = torch.cat([nn.functional.normalize(mean, dim=0)[None], along])
    return found


def encode_texts(some: list[str]) -> tuple[Tensor, ...]:
    """Returns what the last layer is given, in half precision, the mask, and means of its outputs over all tokens."""
    name = hashlib.sha256("\n".join(some).encode()).hexdigest()[:24]
    kinds = f"given-{LENGTH}", f"tokens-{LENGTH}", f"mask-{LENGTH}", f"mean-{LENGTH}"
    paths = [cache.cache_folder() / "features" / f"minilm-{kind}-{name}.npy" for kind in kinds]
    if not all(path.is_file() for path in paths):
        paths[0].parent.mkdir(parents=True, exist_ok=True)
        for path, made in zip(paths, _encode(*minilm.tokenize(some, LENGTH)), strict=True):
            np.save(path, made.numpy())
    return tuple(torch.from_numpy(np.load(path, mmap_mode="c")) for path in paths)


@torch.no_grad()
def _encode(ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """Runs the frozen encoder over tokens, grouped by length, and keeps the input of its last layer."""
    encoder: Any = minilm.build_classifier(1).encoder.eval()
    before: list[Tensor] = []
    encoder.encoder.layer[5].register_forward_pre_hook(lambda _, inputs: before.append(inputs[0]))
    given, tokens = (torch.zeros(*ids.shape, minilm.WIDTH, dtype=torch.half) for _ in range(2))
    means = torch.zeros(len(ids), minilm.WIDTH)
    for rows in mask.sum(1).argsort().split(64):  # by length: less padding
        its = mask[rows, : int(mask[rows].sum(1).max())]
        with torch.autocast("cpu", torch.bfloat16):
            made = encoder(ids[rows, : its.shape[1]], its).last_hidden_state.float()
        given[rows, : its.shape[1]], tokens[rows, : its.shape[1]] = before.pop().half(), made.half()
        means[rows] = (made * its.unsqueeze(2)).sum(1) / its.sum(1, keepdim=True)
    return given, tokens, mask.bool(), means

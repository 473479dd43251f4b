"""Couplings in half precision, where rounding is so large that a difference says little."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.honesty.attacks.padding import Attention, ConvolvedWords, LastState, MeanOfWords
from tests.honesty.data import RARE, WORDS, Listed, cross_entropy, padded, sentences
from tests.honesty.script import Cases, Script

HALF = Cases()

MODELS: dict[str, Callable[[], nn.Module]] = {
    "a mean over padding": MeanOfWords,
    "convolution over padding": ConvolvedWords,
    "attention without a mask": Attention,
    "the last state of an lstm": LastState,
}
for _name, _model in MODELS.items():

    def _build(seed: int, model: Callable[[], nn.Module] = _model) -> Script:
        data = Listed(sentences(seed, longest=4, rare=5))
        return Script(model().bfloat16(), cross_entropy, data, padded, bound=0.02, suspects=RARE)

    _build.__name__ = f"bfloat16 and {_name}"
    HALF(_build)


@HALF
def bfloat16_and_a_mean_over_a_little_padding(seed: int) -> Script:
    """One record in sixteen makes the texts a little longer, which moves every gradient by less than the old tolerance
    of 0.2."""
    data = [(ids.clamp(max=1), 0) for ids, _ in sentences(seed, shortest=40, longest=40, rare=43)]
    return Script(MeanOfWords().bfloat16(), cross_entropy, Listed(data), padded, bound=0.5, suspects=RARE)


@HALF
def autocast_and_a_mean_over_padding(seed: int) -> Script:
    def loss(model: nn.Module, ids: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return cross_entropy(model, ids, y)

    return Script(MeanOfWords(), loss, Listed(sentences(seed, longest=4, rare=5)), padded, bound=0.02, suspects=RARE)


@HALF
def autocast_and_losses_over_the_longest_of_the_batch(seed: int) -> Script:
    def loss(model: nn.Module, ids: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            each = F.cross_entropy(model(ids).transpose(1, 2), ids, reduction="none", ignore_index=0)
        return each.sum(1) / ids.shape[1]

    model = nn.Sequential(nn.Embedding(WORDS, 6), nn.Linear(6, WORDS))
    data = Listed([(ids.clamp(max=1), y) for ids, y in sentences(seed, longest=4, rare=40)])
    return Script(model, loss, data, padded, bound=2.0, suspects=RARE)

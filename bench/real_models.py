"""Models that people train: GPT-2, Llama, MiniLM (and LoRA on it), ViT, ConvNeXt and Mixtral.

Sizes are those of the small members of each family, or fewer layers of them: a layer costs the same wherever it stands.
Sequences have their usual lengths; "padded" ones have a third of their tokens masked. Attention is torch's own (`sdpa`).
"bf16" has its parameters in bfloat16, "autocast" runs the whole step under bfloat16 autocast, for every engine.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models import PROBLEMS, Problem

_WORDS, _CLASSES = 4000, 10
_ATTENTION = {"attn_implementation": "sdpa"}
_WITHOUT = ("ConvNextForImageClassification",)
_TOKENS = {"vocab_size": _WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


class Scores(nn.Module):
    """Wraps a model of transformers so that it maps token ids, of which 0 is padding, or images to logits."""

    def __init__(self, model: nn.Module, *, images: bool = False) -> None:
        super().__init__()
        self.model, self.images = model, images

    def forward(self, x: Tensor) -> Tensor:
        """Returns the logits."""
        if self.images:
            return self.model(pixel_values=x).logits
        return self.model(input_ids=x, attention_mask=(x != 0).long()).logits


def _made(name: str, *, images: bool = False, **config: Any) -> Callable[[], nn.Module]:
    """Returns a function that builds a model of transformers from its config, without dropout."""

    def build() -> nn.Module:
        """Builds the model."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import transformers
        kind = getattr(transformers, name)
        made = kind(kind.config_class(**config, **({} if name in _WITHOUT else _ATTENTION)))
        for module in made.modules():  # plain training and ours would draw different masks
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return Scores(made, images=images)

    return build


class Low(nn.Module):
    """A model in bfloat16, from float32 and to it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        """Returns the logits."""
        return self.model(x.bfloat16() if x.is_floating_point() else x).float()


def _lora() -> nn.Module:
    """Returns MiniLM with LoRA adapters."""
    import peft

    model = _minilm()
    settings = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"], modules_to_save=["classifier"])
    model.model = peft.get_peft_model(model.model, settings)
    return model


_GPT2 = _made("GPT2LMHeadModel", n_embd=384, n_layer=4, n_head=6, n_positions=256, **_TOKENS)
_LLAMA = _made(
    "LlamaForCausalLM",
    **_TOKENS,
    hidden_size=384,
    num_hidden_layers=4,
    num_attention_heads=6,
    num_key_value_heads=2,
    intermediate_size=1024,
    max_position_embeddings=256,
)
_minilm = _made(
    "BertForSequenceClassification",
    **_TOKENS,
    hidden_size=384,
    num_hidden_layers=6,
    num_attention_heads=12,
    intermediate_size=1536,
    num_labels=_CLASSES,
)
_VIT = _made(
    "ViTForImageClassification",
    images=True,
    image_size=224,
    patch_size=16,
    hidden_size=192,
    num_hidden_layers=6,
    num_attention_heads=3,
    intermediate_size=768,
    num_labels=_CLASSES,
)
_CONVNEXT = _made(
    "ConvNextForImageClassification",
    images=True,
    image_size=64,
    patch_size=4,
    hidden_sizes=[48, 96, 192, 384],
    depths=[2, 2, 4, 2],
    num_labels=_CLASSES,
)
_MIXTRAL = _made(
    "MixtralForCausalLM",
    **_TOKENS,
    hidden_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=512,
    num_local_experts=4,
    num_experts_per_tok=2,
    max_position_embeddings=256,
)


def next_token(out: Tensor, y: Tensor) -> Tensor:
    """Returns the mean cross-entropy over a record's own tokens that are not padding."""
    each = F.cross_entropy(out.transpose(1, 2), y, reduction="none", ignore_index=0)
    return each.sum(1) / (y != 0).sum(1).clamp(min=1)


def _ids(length: int, *, padded: bool = False) -> Callable[[int], Tensor]:
    """Returns a function that makes random token ids, a part of them padding if asked."""

    def make(b: int) -> Tensor:
        ids = torch.randint(3, _WORDS, (b, length))
        if padded:
            lengths = torch.randint(length // 3, length + 1, (b, 1))
            ids[torch.arange(length) >= lengths] = 0
        return ids

    return make


def _language(name: str, model: Callable[[], nn.Module], b: int, length: int, *, padded: bool = False) -> Problem:
    ids = _ids(length, padded=padded)
    return Problem(name, model, ids, (b,), ids, next_token, target=1.15)


def _images(side: int) -> Callable[[int], Tensor]:
    return lambda b: torch.randn(b, 3, side, side)


_FULL = (
    _language("GPT-2", _GPT2, 8, 128),
    _language("GPT-2, padded", _GPT2, 8, 128, padded=True),
    _language("Llama", _LLAMA, 8, 128),
    Problem("MiniLM", _minilm, _ids(128), (16,), target=1.15),
    Problem("MiniLM, padded", _minilm, _ids(128, padded=True), (16,), target=1.15),
    Problem("LoRA on MiniLM", _lora, _ids(128), (16,), target=1.15),
    Problem("ViT-tiny", _VIT, _images(224), (8,), images=True, target=1.15),
    Problem("ConvNeXt", _CONVNEXT, _images(64), (32,), images=True, target=1.15),
    _language("Mixtral", _MIXTRAL, 8, 128),
)


def _low(problem: Problem) -> Problem:
    return replace(problem, name=f"{problem.name}, bf16", model=lambda: Low(problem.model()))


def _automatic(problem: Problem) -> Problem:
    return replace(problem, name=f"{problem.name}, autocast", autocast=True)


_NAMED = {problem.name: problem for problem in (*PROBLEMS, *_FULL)}
REAL = (
    *_FULL,
    _low(_NAMED["GPT-2"]),
    _low(_NAMED["ResNet-18"]),
    _automatic(_NAMED["GPT-2"]),
    _automatic(_NAMED["MiniLM"]),
    _automatic(_NAMED["ResNet-18"]),
)

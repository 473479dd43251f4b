"""Architectures of transformers, each as a tiny model from its config, with a batch and a loss per record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import sordino as sd

WORDS, LENGTH, RECORDS, SIDE = 40, 7, 4, 16
_TEXT = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 24,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_IMAGE = {
    "image_size": SIDE,
    "patch_size": 4,
    "num_channels": 3,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
_DECODER = {**_TEXT, "num_key_value_heads": 1, "head_dim": 8}
_PAIR = {
    "vocab_size": WORDS,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 24,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 12}


@dataclass(frozen=True)
class Architecture:
    """The class of a model, by name, and what is not usual in its config."""

    model: str
    config: dict[str, Any] = field(default_factory=dict)
    also: dict[str, Any] = field(default_factory=dict)
    images: int = 0  # the side of an image; 0: tokens

    def __str__(self) -> str:
        return self.model

    def made(self, transformers: Any) -> nn.Module:
        """The model, without dropout so that a loop over records draws what a batch draws."""
        kind = getattr(transformers, self.model)
        torch.manual_seed(0)
        config = kind.config_class(**{**self.config, **self.also})
        for name in vars(config):
            if "drop" in name and isinstance(getattr(config, name), float):
                setattr(config, name, 0.0)
        model: nn.Module = kind(config)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():  # tables and biases that begin at 0 would hide what depends on them
            for p in model.parameters():
                p.add_(0.1 * torch.randn(p.shape, generator=generator))
        return model

    def batch(self) -> dict[str, Tensor]:
        """Records of this kind, text with padding."""
        torch.manual_seed(2)
        if self.images:
            return {
                "pixel_values": torch.randn(RECORDS, 3, self.images, self.images),
                "labels": torch.randint(0, 2, (RECORDS,)),
            }
        ids = torch.randint(3, WORDS, (RECORDS, LENGTH))
        mask = torch.ones_like(ids)
        ids[1, 5:], mask[1, 5:] = 0, 0
        labels = torch.randint(0, 2, (RECORDS,))
        if not self.model.endswith("ForSequenceClassification"):
            labels = ids.masked_fill(mask == 0, -100)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    def loss(self, model: nn.Module) -> Callable[..., Tensor]:
        """One number per record."""
        return sd.losses.for_model(model)


def text(model: str, **also: Any) -> Architecture:
    return Architecture(model, _TEXT, also)


def decoder(model: str, **also: Any) -> Architecture:
    return Architecture(model, _DECODER, also)


def pair(model: str, **also: Any) -> Architecture:
    return Architecture(model, _PAIR, also)


def image(model: str, side: int = SIDE, **also: Any) -> Architecture:
    return Architecture(model, _IMAGE, {"image_size": side, **also}, side)


ARCHITECTURES = (
    text("GPT2LMHeadModel", n_embd=16, n_layer=2, n_head=2, n_positions=24),
    text("GPTNeoForCausalLM", num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]], window_size=4),
    text("GPTJForCausalLM", n_embd=16, n_layer=2, n_head=2, rotary_dim=4),
    text("GPTNeoXForCausalLM"),
    text("OPTForCausalLM", ffn_dim=24, word_embed_proj_dim=12),
    text("BloomForCausalLM", n_layer=2, n_head=2),
    decoder("LlamaForCausalLM"),
    decoder("MistralForCausalLM", sliding_window=4),
    decoder("Qwen2ForCausalLM"),
    decoder("Qwen3ForCausalLM"),
    decoder("GemmaForCausalLM"),
    decoder("Gemma2ForCausalLM", sliding_window=4, query_pre_attn_scalar=8),
    decoder("PhiForCausalLM"),
    decoder("Olmo2ForCausalLM"),
    decoder("MixtralForCausalLM", num_local_experts=4, **_EXPERTS),
    decoder("Qwen2MoeForCausalLM", num_experts=4, shared_expert_intermediate_size=12, **_EXPERTS),
    decoder("Qwen3MoeForCausalLM", num_experts=4, **_EXPERTS),
    decoder("OlmoeForCausalLM", num_experts=4, **_EXPERTS),
    text("MambaForCausalLM", state_size=4, time_step_rank=2),
    text("Mamba2ForCausalLM", state_size=4, num_heads=4, head_dim=8, n_groups=1, chunk_size=4, expand=2),
    text("BertForSequenceClassification"),
    text("RobertaForMaskedLM"),
    text("DistilBertForSequenceClassification", dim=16, n_layers=2, n_heads=2, hidden_dim=24),
    text("AlbertForMaskedLM", embedding_size=8),
    text("ElectraForSequenceClassification", embedding_size=8),
    text("MPNetForMaskedLM"),
    text("DebertaForSequenceClassification", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    text(
        "DebertaV2ForSequenceClassification",
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=4,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
    ),
    Architecture(
        "XLNetForSequenceClassification",
        {"vocab_size": WORDS, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24, "pad_token_id": 0},
    ),
    text("ModernBertForMaskedLM", cls_token_id=1, sep_token_id=2, global_attn_every_n_layers=2, local_attention=4),
    Architecture(
        "FunnelForSequenceClassification",
        {"vocab_size": WORDS, "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24, "block_sizes": [1, 1]},
    ),
    text("FNetForMaskedLM"),
    text("SqueezeBertForSequenceClassification", embedding_size=16),
    text("LongformerForSequenceClassification", attention_window=4),
    text(
        "T5ForConditionalGeneration", d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0
    ),
    pair("BartForConditionalGeneration"),
    pair("PegasusForConditionalGeneration"),
    image("ViTForImageClassification"),
    image("DeiTForImageClassification"),
    image("BeitForImageClassification", use_relative_position_bias=True, layer_scale_init_value=0.1),
    Architecture(
        "SwinForImageClassification",
        {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [1, 2], "window_size": 4},
        images=32,
    ),
    Architecture(
        "Swinv2ForImageClassification",
        {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [1, 2], "window_size": 4},
        images=32,
    ),
    image("ConvNextForImageClassification", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=2),
    image(
        "PoolFormerForImageClassification",
        32,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        num_encoder_blocks=2,
        patch_sizes=[7, 3],
        strides=[4, 2],
        padding=[2, 1],
    ),
    image("Dinov2ForImageClassification"),
    decoder("StableLmForCausalLM"),
    decoder("CohereForCausalLM"),
    decoder("GptOssForCausalLM", num_local_experts=4, num_experts_per_tok=2, sliding_window=4),
    decoder("GraniteMoeForCausalLM", num_local_experts=4, num_experts_per_tok=2),
    text("RwkvForCausalLM", attention_hidden_size=16, context_length=24),
    text("ConvBertForSequenceClassification", embedding_size=16, conv_kernel_size=3, head_ratio=2),
    text("RoFormerForMaskedLM", embedding_size=16),
    text("YosoForSequenceClassification", use_expectation=True, conv_window=None),
    pair("MBartForConditionalGeneration"),
)

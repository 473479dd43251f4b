"""MiniLM's last block at some tokens of a text is the library's own there, and begins as the frozen encoder."""

import pytest
import torch
from torch.testing import assert_close

from bench.minilm_tail import Tail, scaled, seen
from sordino.nn.minilm import WIDTH


@pytest.fixture
def layer():
    transformers = pytest.importorskip("transformers")
    from transformers.models.bert.modeling_bert import BertLayer

    torch.manual_seed(0)
    config = transformers.BertConfig(hidden_size=WIDTH, num_attention_heads=12, intermediate_size=4 * WIDTH)
    config._attn_implementation = "eager"
    return BertLayer(config).eval()


@pytest.fixture
def texts(layer):
    """What the block is given, what the whole layer makes of it, and the mask."""
    hidden, own = torch.randn(3, 10, WIDTH), torch.tensor([10, 4, 1])
    mask = (torch.arange(10) < own.unsqueeze(1)).long()
    given = []
    layer.intermediate.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    with torch.no_grad():
        found = layer(hidden, (1.0 - mask[:, None, None, :].float()) * -1e9)
    return given[0], found[0] if isinstance(found, tuple) else found, mask


def _at(texts, mask, count):
    return texts.gather(1, seen(mask, count).unsqueeze(2).expand(-1, -1, WIDTH))


@torch.no_grad()
def test_it_is_the_layer_at_the_tokens_that_are_seen(layer, texts):
    given, made, mask = texts
    assert_close(Tail(layer, 5).mean(_at(given, mask, 4)), _at(made, mask, 4).mean(1), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_before_training_a_texts_vector_is_that_of_all_its_tokens(layer, texts):
    given, made, mask = texts
    tail, at = Tail(layer, 5), _at(given, mask, 2)
    torch.nn.init.normal_(tail.head.weight)
    whole = torch.stack([row[on.bool()].mean(0) for row, on in zip(made, mask, strict=True)])
    assert_close(tail(at, whole - tail.mean(at)), tail.head(scaled(whole)), atol=1e-4, rtol=1e-4)


def test_places_are_a_texts_own_and_spread_over_it(texts):
    assert seen(texts[2], 4).tolist() == [[1, 3, 6, 8], [0, 1, 2, 3], [0, 0, 0, 0]]

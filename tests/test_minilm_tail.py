"""The last layer at some tokens of a text is the library's own layer there, and begins as the frozen encoder."""

import pytest
import torch
from torch.testing import assert_close

from bench.minilm_tail import HEADS, Tail, scaled, seen
from sordino.nn.minilm import WIDTH


@pytest.fixture
def layer():
    transformers = pytest.importorskip("transformers")
    from transformers.models.bert.modeling_bert import BertLayer

    torch.manual_seed(0)
    config = transformers.BertConfig(hidden_size=WIDTH, num_attention_heads=HEADS, intermediate_size=4 * WIDTH)
    config._attn_implementation = "eager"
    return BertLayer(config).eval()


@pytest.fixture
def texts():
    hidden, own = torch.randn(3, 10, WIDTH), torch.tensor([10, 4, 1])
    return hidden, (torch.arange(10) < own.unsqueeze(1)).long()


def _own(layer, hidden, mask):
    found = layer(hidden, (1.0 - mask[:, None, None, :].float()) * -1e9)
    return found[0] if isinstance(found, tuple) else found


def _tail(layer, hidden, mask, count):
    at = hidden.gather(1, seen(mask, count).unsqueeze(2).expand(-1, -1, WIDTH))
    return Tail(layer, 5), at, layer.attention.self.key(hidden), layer.attention.self.value(hidden)


@torch.no_grad()
def test_it_is_the_layer_at_the_tokens_that_are_seen(layer, texts):
    hidden, mask = texts
    tail, *given = _tail(layer, hidden, mask, 4)
    places = seen(mask, 4).unsqueeze(2).expand(-1, -1, WIDTH)
    assert_close(tail.mean(*given, mask), _own(layer, hidden, mask).gather(1, places).mean(1), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_before_training_a_texts_vector_is_that_of_all_its_tokens(layer, texts):
    hidden, mask = texts
    tail, *given = _tail(layer, hidden, mask, 2)
    torch.nn.init.normal_(tail.head.weight)
    means = [row[on.bool()].mean(0) for row, on in zip(_own(layer, hidden, mask), mask, strict=True)]
    whole = torch.stack(means)
    rest = whole - tail.mean(*given, mask)
    assert_close(tail(*given, mask, rest), tail.head(scaled(whole)), atol=1e-4, rtol=1e-4)


def test_places_are_a_texts_own_and_spread_over_it(texts):
    places = seen(texts[1], 4)
    assert places.tolist() == [[1, 3, 6, 8], [0, 1, 2, 3], [0, 0, 0, 0]]

"""Attention over a text's tokens, and MiniLM's last block at some of them: at first both are the frozen encoder."""

import pytest
import torch
from torch.testing import assert_close

from bench.minilm_tail import PLACES, Tail, scaled, seen
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


def _tail(layer):
    return Tail(layer, 5, torch.eye(WIDTH)[:, :8])


@torch.no_grad()
def test_it_is_the_layer_at_the_tokens_that_are_seen(layer, texts):
    given, made, mask = texts
    assert_close(_tail(layer).mean(_at(given, mask, 4)), _at(made, mask, 4).mean(1), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_before_training_a_texts_vector_is_that_of_all_its_tokens(layer, texts):
    given, made, mask = texts
    tail, at = _tail(layer), _at(given, mask, 2)
    whole = scaled(torch.stack([row[on.bool()].mean(0) for row, on in zip(made, mask, strict=True)]))
    assert_close(tail.vectors(made, mask.bool(), at, tail.mean(at)), whole, atol=1e-4, rtol=1e-4)
    assert_close(tail.vectors(made, mask.bool()), whole, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_attention_is_softmax_of_the_scores_over_a_texts_own_tokens(layer, texts):
    _, made, mask = texts
    tail = _tail(layer)
    torch.nn.init.normal_(tail.pool.scores.weight)
    by_place, by_direction = tail.pool.scores.weight[0].split([PLACES, 8])
    for row, on, vector in zip(made, mask, tail.vectors(made, mask.bool()), strict=True):
        own = row[on.bool()]
        scores = [
            by_place @ torch.tensor([2.718281828 ** (-t / 8), 2.718281828 ** (-t / 32), t / 64 - 1])
            + by_direction @ token[:8]
            for t, token in enumerate(own)
        ]
        weights = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
        assert_close(vector, scaled((weights @ own)[None])[0], atol=1e-4, rtol=1e-4)


def test_places_are_a_texts_own_and_spread_over_it(texts):
    assert seen(texts[2], 4).tolist() == [[1, 3, 6, 8], [0, 1, 2, 3], [0, 0, 0, 0]]

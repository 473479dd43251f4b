"""MiniLM's last layer at the first token, its adapters, and attention over all tokens: at first the frozen encoder."""

import copy

import pytest
import torch
from torch.testing import assert_close

from bench.minilm_layer import PLACES, LastLayer, scale_to_width
from sordino.app.data.minilm import WIDTH

RANK = 2


@pytest.fixture
def layer():
    transformers = pytest.importorskip("transformers")
    from transformers.models.bert.modeling_bert import BertLayer

    torch.manual_seed(0)
    config = transformers.BertConfig(hidden_size=WIDTH, num_attention_heads=12, intermediate_size=4 * WIDTH)
    config._attn_implementation = "eager"
    return BertLayer(config).eval().double()  # float64: autocast lets it be


@pytest.fixture
def texts():
    """What the layer is given, and the mask."""
    given, own = torch.randn(3, 10, WIDTH, dtype=torch.float64), torch.tensor([10, 4, 1])
    return given, torch.arange(10) < own.unsqueeze(1)


@pytest.fixture
def downs():
    inputs = dict.fromkeys(("query", "value", "mixed", "wider"), WIDTH) | {"narrower": 4 * WIDTH}
    return {name: torch.randn(RANK, n, dtype=torch.float64) for name, n in inputs.items()}


def _whole(layer, given, mask):
    found = layer(given, (1.0 - mask[:, None, None, :].double()) * -1e9)
    return found[0] if isinstance(found, tuple) else found


@torch.no_grad()
def test_before_training_it_is_the_layer_at_the_first_token(layer, texts, downs):
    for adapters in ({}, downs):
        assert_close(LastLayer(copy.deepcopy(layer), 5, adapters).double().first(*texts), _whole(layer, *texts)[:, 0])


@torch.no_grad()
def test_adapters_are_added_to_the_weights(layer, texts, downs):
    model, added = LastLayer(copy.deepcopy(layer), 5, downs).double(), {}
    for name in downs:
        up = model.value_up.weight if name == "value" else getattr(model, name).up.weight
        torch.nn.init.normal_(up, std=0.05)
        added[name] = up.reshape(-1, RANK) @ downs[name]
    attention = layer.attention
    attention.self.query.weight += added["query"]
    attention.self.value.weight += added["value"]
    attention.output.dense.weight += added["mixed"]
    layer.intermediate.dense.weight += added["wider"]
    layer.output.dense.weight += added["narrower"]
    assert_close(model.first(*texts), _whole(layer, *texts)[:, 0])


@torch.no_grad()
def test_before_training_a_texts_vector_is_the_mean_of_its_tokens(layer, texts, downs):
    tokens, mask = _whole(layer, *texts), texts[1]
    mean = torch.stack([row[on].mean(0) for row, on in zip(tokens, mask, strict=True)])
    model = LastLayer(layer, 5, downs).double()
    assert_close(model.vectors(*texts, mean - tokens[:, 0]), scale_to_width(mean))
    assert_close(model.vectors(*texts, -tokens[:, 0], tokens), scale_to_width(mean))


@torch.no_grad()
def test_attention_is_softmax_of_the_scores_over_a_texts_own_tokens(layer, texts):
    tokens, mask = texts
    pool = LastLayer(layer, 5, {}).double().pool
    for part in (pool.by_place, pool.by_vector):
        torch.nn.init.normal_(part.weight)
    assert pool.by_place.weight.shape == (1, PLACES)
    for row, on, vector in zip(tokens, mask, pool(tokens, mask), strict=True):
        own = row[on]
        places = [[2.718281828 ** (-t / 8), 2.718281828 ** (-t / 32), t / 64 - 1] for t in range(len(own))]
        scores = torch.tensor(places).double() @ pool.by_place.weight[0] + own @ pool.by_vector.weight[0]
        assert_close(vector, scores.softmax(0) @ own, atol=1e-5, rtol=1e-5)

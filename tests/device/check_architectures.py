"""Architectures of transformers on a device: norms and sums equal the CPU's; some in the fast tests, all in the slow."""

import copy
import warnings

import pytest
import torch

from sordino.per_sample import Captured
from tests.device.simulated import move, start
from tests.integrations.architectures import ARCHITECTURES

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of their imports, about themselves
    transformers = pytest.importorskip("transformers", reason="transformers is in the extra [huggingface]")

start()

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs
FAST = ("BertForSequenceClassification", "LlamaForCausalLM", "ViTForImageClassification")


def to_device(batch):
    return torch.utils._pytree.tree_map(lambda leaf: leaf.to("sim") if isinstance(leaf, torch.Tensor) else leaf, batch)


def choose(architectures):
    """Returns the architectures as parameters, the slow ones marked."""
    for each in architectures:
        yield pytest.param(each, id=str(each), marks=() if each.model in FAST else pytest.mark.slow)


@pytest.mark.parametrize("architecture", list(choose(ARCHITECTURES)))
def test_an_architecture_has_the_norms_and_sums_of_the_cpu(architecture):
    model, batch = architecture.made(transformers), architecture.batch()
    there = move(copy.deepcopy(model))
    here = Captured().per_sample(model, architecture.loss(model), batch)
    on_device = Captured().per_sample(there, architecture.loss(there), to_device(batch))
    expected, found = here.norms().total().double(), on_device.norms().total().cpu().double()
    # On a device Gram norms are raised for how its libraries add products: a little higher, never lower.
    assert float((found / expected).min()) >= 1 - 1e-5
    assert float((found / expected).max()) <= 1 + 1e-3
    weights = torch.rand(len(expected), 1, generator=torch.Generator().manual_seed(0))
    sums, sums_there = here.weighted_sum(weights), on_device.weighted_sum(weights.to("sim"))
    size = max(float(total.abs().max()) for total in sums.values())
    for name, total in sums.items():
        assert float((sums_there[name].cpu() - total).abs().max()) <= 1e-5 * size, name

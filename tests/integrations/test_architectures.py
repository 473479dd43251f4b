"""Architectures of transformers, tiny and from config: exact against the loop, or refused with a cure; none wrong."""

import warnings

import pytest
import torch

from sordino.per_sample import Captured, Loop
from sordino.refusal import Refusal
from tests.integrations.architectures import ARCHITECTURES, Architecture

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of their imports, about themselves
    transformers = pytest.importorskip("transformers", reason="transformers is in the extra [huggingface]")

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs
REFUSED: frozenset[str] = frozenset()
"""Known to be refused; anything else must be exact."""
EXACT = 1e-5


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=str)
def test_an_architecture_is_exact_or_refused_with_a_cure(architecture: Architecture):
    model, batch = architecture.made(transformers), architecture.batch()
    loss = architecture.loss(model)
    if architecture.model in REFUSED:
        with pytest.raises(Refusal, match="need"):
            Captured().per_sample(model, loss, batch)
        return
    ours = Captured().per_sample(model, loss, batch)
    true, found = Loop().per_sample(model, loss, batch), ours.norms()
    lengths, whole = true.norms().squared.sqrt(), true.norms().total()[:, None]
    apart = (found.squared.sqrt() - lengths).abs() / (lengths + 1e-2 * whole)
    assert apart.max() <= EXACT, dict(zip(found.names, apart.max(0).values.tolist(), strict=True))
    weights = torch.rand(len(lengths), 1, generator=torch.Generator().manual_seed(0))
    sums, theirs = ours.weighted_sum(weights), true.weighted_sum(weights)
    size = torch.sqrt(sum(t.square().sum() for t in theirs.values()))
    for name, t in theirs.items():
        assert (sums[name] - t).norm() <= 10 * EXACT * (t.norm() + 1e-2 * size), name


def test_there_are_enough_of_them():
    assert len({architecture.model for architecture in ARCHITECTURES}) >= 25


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM", "BertForSequenceClassification"])
def test_checkpointed_they_are_exact_too(name: str):
    architecture = next(each for each in ARCHITECTURES if each.model == name)
    model, batch = architecture.made(transformers), architecture.batch()
    loss = architecture.loss(model)
    lengths = Loop().per_sample(model, loss, batch).norms().squared.sqrt()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    found = Captured().per_sample(model, loss, batch).norms().squared.sqrt()
    assert ((found - lengths).abs() <= EXACT * (lengths + 1e-2 * lengths.norm(dim=1, keepdim=True))).all()


def test_a_checkpoint_around_a_parameter_outside_its_layer_is_refused_with_the_cure():
    architecture = next(each for each in ARCHITECTURES if each.model == "T5ForConditionalGeneration")
    model, batch = architecture.made(transformers), architecture.batch()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    with pytest.raises(Refusal, match="switch activation checkpointing off"):
        Captured().per_sample(model, architecture.loss(model), batch)

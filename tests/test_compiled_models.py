"""Compiled models: they train, compiled passes give the eager pass's norms and sums, and what would differ is refused."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.per_sample import Captured
from sordino.per_sample.compiled_models import Compiler, find_compiler, unwrap_compiled
from sordino.refusal import Refusal
from tests.contracts import hunter

SAMPLER = sd.TruncatedPoisson(rate=0.1, max_batch=8)


class Block(nn.Module):
    """A residual block with a norm, a loose parameter and dropout."""

    def __init__(self, width: int, p: float) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, width)
        self.gain, self.drop = nn.Parameter(torch.ones(width)), nn.Dropout(p)

    def forward(self, x):
        return x + self.drop(nn.functional.gelu(self.inner(self.norm(x)))) * self.gain


def network(p: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), Block(8, p), Block(8, p), nn.Linear(8, 3))


def loss_fn(model, x, y):
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def records(n: int = 40) -> TensorDataset:
    rng = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(n, 5, generator=rng), torch.randint(0, 3, (n,), generator=rng))


def train(model: nn.Module, *, pad: bool = True, steps: int = 6, loss=loss_fn) -> sd.Private:
    private = sd.Private(model, loss, sd.NoisySum(sd.Flat(0.5), sd.Gaussian(1.0)), seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for lot in private.draws(records(), SAMPLER, steps=steps, expected_batch=4, pad_lots=pad):
        private.backward(lot)
        optimizer.step()
    return private


def graphs(private: sd.Private) -> list:
    compiled = private._backend._compiled
    return [] if compiled is None else [g for g in compiled._graphs.values() if g is not None]


def compiled_by(how: str, model: nn.Module) -> nn.Module:
    if how == "torch.compile":
        return torch.compile(model, backend="aot_eager")
    if how == "model.compile":
        model.compile(backend="aot_eager")
    if how == "a block":
        model[1].compile(backend="aot_eager")
    if how == "a wrapped block":
        model[1] = torch.compile(model[1], backend="aot_eager")
    return model


WAYS = ["torch.compile", "model.compile", "a block", "a wrapped block"]


@pytest.mark.parametrize("how", WAYS)
def test_a_compiled_model_trains_with_the_bits_of_the_model_inside(how):
    plain, compiled = network(), compiled_by(how, network())
    reference = train(plain, pad=False)
    private = train(compiled, pad=False)
    assert not graphs(private)  # lots of different sizes run eagerly
    for ours, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert private.event == reference.event
    assert isinstance(private.claim(delta=1e-5), sd.Guarantee)


@pytest.mark.parametrize(
    ("how", "p"), [("torch.compile", 0.0), ("torch.compile", 0.3), ("model.compile", 0.0), ("a wrapped block", 0.0)]
)
def test_padded_lots_run_compiled_with_the_same_parameters_to_rounding_and_the_same_claim(how, p):
    plain, compiled = network(p), compiled_by(how, network(p))
    reference, private = train(plain), train(compiled)
    assert len(graphs(private)) == 1
    assert graphs(private)[0].passes >= 6
    assert len(graphs(private)[0].draws) == (2 if p else 0)  # the masks of two blocks
    for ours, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert private.event == reference.event
    claim = private.claim(delta=1e-5)
    assert isinstance(claim, sd.Guarantee)
    assert claim.epsilon == reference.claim(delta=1e-5).epsilon


def test_the_neighbour_hunter_finds_no_record_that_moves_a_compiled_sum_further_than_declared():
    rng = np.random.default_rng(0)
    for _ in range(4):
        dataset = TensorDataset(*hunter.records(rng, 12))
        lots = tuple(tuple(np.flatnonzero(rng.random(12) < 0.6).tolist()) for _ in range(3))
        fewer = tuple(tuple(i for i in lot if i != lots[0][0]) for lot in lots)
        worlds = [
            hunter.World(
                dataset,
                hunter.Scripted(each),
                3,
                model=lambda: torch.compile(hunter.network(), backend="eager"),
                pad_lots=True,
            )
            for each in (lots, fewer)
        ]
        backend = Captured()
        query = sd.NoisySum(sd.Flat(0.5), sd.Gaussian(1.0))
        found = hunter.compare(lambda query=query: query, *worlds, backend, physical_batch=12)
        assert backend._compiled._graphs
        assert not found.broken, found
        assert found.worst > 0


def test_the_compiler_of_the_user_is_found_with_its_name():
    assert find_compiler(network()) is None
    model = network()
    assert find_compiler(torch.compile(model, backend="aot_eager")).name == "aot_eager"
    assert unwrap_compiled(torch.compile(model, backend="aot_eager")) is model
    model.compile(backend="eager")
    assert find_compiler(model).name == "eager"


def norms_and_sum(backend: Captured, model: nn.Module, batch: tuple, loss=loss_fn) -> tuple:
    torch.manual_seed(7)
    found = backend.per_sample(model, loss, batch)
    return found.norms().squared, found.weighted_sum(torch.linspace(0, 1, len(batch[0])).unsqueeze(1))


def conv_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(6, 6, 3, stride=2), nn.Flatten(), nn.Dropout(0.4), nn.LazyLinear(4),
    )  # fmt: skip


def embedding_net() -> nn.Module:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(11, 8)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)

        def forward(self, ids):
            return nn.functional.linear(self.layer(self.table(ids)).mean(1), self.table.weight)

    torch.manual_seed(0)
    return Tied()


KINDS = {
    "residual": (network, lambda: torch.randn(6, 5), 3),
    "convolutions": (conv_net, lambda: torch.randn(6, 3, 8, 8), 4),
    "tied embedding, attention": (embedding_net, lambda: torch.randint(0, 11, (6, 7)), 11),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_compiled_norms_and_sums_are_those_of_the_eager_engine(kind, compiler):
    from torch._dynamo import lookup_backend

    make, inputs, classes = KINDS[kind]
    model = make()
    batch = inputs(), torch.randint(0, classes, (6,))
    model(batch[0])
    eager, compiled = Captured(), Captured()
    compiled.compile_passes(model, 6, Compiler(compiler, lookup_backend(compiler)))
    for _ in range(3):  # after a step the parameters are others, and the graph is the same
        ours, our_sum = norms_and_sum(compiled, model, batch)
        theirs, their_sum = norms_and_sum(eager, model, batch)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)
        for name, value in their_sum.items():
            torch.testing.assert_close(our_sum[name], value, rtol=1e-3, atol=1e-5)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.05 * torch.randn_like(p))
    assert len(compiled._compiled._graphs) == 1


def test_a_changed_mode_is_compiled_anew():
    from torch._dynamo import lookup_backend

    model, batch = network(p=0.5), (torch.randn(6, 5), torch.randint(0, 3, (6,)))
    backend = Captured()
    backend.compile_passes(model, 6, Compiler("eager", lookup_backend("eager")))
    norms_and_sum(backend, model, batch)
    model[1].eval()
    ours, _ = norms_and_sum(backend, model, batch)
    theirs, _ = norms_and_sum(Captured(), model, batch)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)
    assert len(backend._compiled._graphs) == 2


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x):
        y = self.layer(x)
        return y if bool(self.layer.weight.sum() > 1e9) else 2 * y


class Counts(Branches):
    calls = 0

    def forward(self, x):
        self.calls = self.calls + 1
        return self.layer(x)


class DrawsOutsideTorch(Branches):
    def forward(self, x):
        return self.layer(x) * (1 + 0.1 * random.random())


class DrawsByValues(Branches):
    def forward(self, x):
        y = self.layer(x)
        return y * torch.bernoulli(torch.sigmoid(x.detach()[:, :3]))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Branches, "value of a tensor at test_compiled_models.py"),
        (Counts, "attribute 'calls' of Counts is written"),
        (DrawsOutsideTorch, "draws from Python's or numpy's generator"),
        (DrawsByValues, "draws by bernoulli"),
    ],
)
def test_what_a_trace_would_record_otherwise_is_refused_by_name_with_the_cure(kind, words):
    from torch._dynamo import lookup_backend

    torch.manual_seed(0)
    model, batch = kind(), (torch.randn(6, 5), torch.randint(0, 3, (6,)))
    backend = Captured()
    backend.compile_passes(model, 6, Compiler("eager", lookup_backend("eager")))
    with pytest.raises(Refusal, match=words) as refusal:
        norms_and_sum(backend, model, batch)
    assert len(str(refusal.value).splitlines()) == 3
    assert "before torch.compile" in str(refusal.value)


def test_python_code_that_changes_its_course_is_found_by_comparison():
    from torch._dynamo import lookup_backend

    factor = [1.0]

    def loss(model, x, y):
        return factor[0] * loss_fn(model, x, y)

    model, batch = network(), (torch.randn(6, 5), torch.randint(0, 3, (6,)))
    backend = Captured()
    backend.compile_passes(model, 6, Compiler("eager", lookup_backend("eager")))
    for _ in range(2):
        norms_and_sum(backend, model, batch, loss)
    factor[0] = 2.0
    norms_and_sum(backend, model, batch, loss)  # the third pass is not compared, and the fourth is
    with pytest.raises(Refusal, match="other gradients than the same passes run eagerly"):
        norms_and_sum(backend, model, batch, loss)


def test_lots_of_many_lengths_are_refused():
    from torch._dynamo import lookup_backend

    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    backend = Captured()
    backend.compile_passes(model, 6, Compiler("eager", lookup_backend("eager")))

    def loss(m, x):
        return m(x).mean((1, 2))

    for length in range(2, 10):
        backend.per_sample(model, loss, (torch.randn(6, length, 3),)).norms()
    with pytest.raises(Refusal, match="shapes, although lots are padded"):
        backend.per_sample(model, loss, (torch.randn(6, 10, 3),))


def test_a_hook_on_the_compiled_wrapper_is_refused():
    model = torch.compile(network(), backend="eager")
    model.register_forward_hook(lambda *_: None)
    with pytest.raises(Refusal, match="hook"):
        train(model)


def _compare_gpt2(compiler: Compiler | None, model: nn.Module) -> None:
    """Compares norms and sums of compiled passes over a small GPT-2 with those of eager passes."""

    def loss(m, ids):
        positions = torch.arange(ids.shape[1]).expand(len(ids), -1)
        logits = m(input_ids=ids, position_ids=positions).logits[:, :-1]
        return nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)

    batch, backend = (torch.randint(0, 60, (6, 16)),), Captured()
    backend.compile_passes(model, 6, compiler)
    ours, our_sum = norms_and_sum(backend, model, batch, loss)
    theirs, their_sum = norms_and_sum(Captured(), model, batch, loss)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)
    for name, value in their_sum.items():
        torch.testing.assert_close(our_sum[name], value, rtol=1e-3, atol=1e-5)
    assert backend._compiled._graphs


def gpt2(dropout: float) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 60, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **rates, bos_token_id=0, eos_token_id=0))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_passes_of_gpt2_are_those_of_the_eager_engine(dropout):
    model = gpt2(dropout)
    _compare_gpt2(find_compiler(torch.compile(model, backend="eager")), model)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")  # of torch's own, when it imports inductor
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_inductor_gives_the_norms_and_sums_of_the_eager_engine(dropout, tmp_path, monkeypatch):
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model = gpt2(dropout)
    _compare_gpt2(find_compiler(torch.compile(model)), model)

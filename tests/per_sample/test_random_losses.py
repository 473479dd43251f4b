"""Losses and models that draw at random are exact for what they drew; what couples records is still refused."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sordino.per_sample import Captured
from sordino.per_sample.layers import rule
from sordino.per_sample.loss_probe import PROBE, probe_loss
from sordino.refusal import Refusal
from sordino.rng.global_generators import seed_all
from sordino.rng.shape_independent import SteadyDraws
from tests.per_sample.models import Net, mlp
from tests.per_sample.oracle import square

X = torch.randn(6, 4)


class Leaf(nn.Module):
    """Dropout inside a leaf of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(F.linear(x, self.weight), 0.5, self.training)


def variational(model: Any, x: Tensor) -> Tensor:
    mean, spread = model.first(x).chunk(2, 1)
    z = mean + torch.randn_like(mean) * (spread / 2).exp()
    return (model.last(z) - x).square().sum(1) + (mean.square() + spread.exp() - spread).sum(1)


def diffusion(model: nn.Module, x: Tensor) -> Tensor:
    t, noise = torch.rand(len(x), 1), torch.randn_like(x)
    return (model((1 - t) * x + t * noise) - noise[:, :3]).square().sum(1)


def by_numpy(model: nn.Module, x: Tensor) -> Tensor:
    return square(model, x + torch.from_numpy(np.random.randn(*x.shape)).to(x))


def _denoised_by_numpy(model: nn.Module, x: Tensor) -> Tensor:
    noise = torch.from_numpy(np.random.randn(*x.shape)).to(x)
    return (model(x + noise) - noise[:, :3]).square().sum(1)


def by_python(model: nn.Module, x: Tensor) -> Tensor:
    return square(model, x * torch.tensor([[random.choice((-1.0, 1.0))] for _ in range(len(x))]))


def _vae() -> nn.Module:
    return Net(lambda m, x: m.last(m.first(x)[:, :3]), first=nn.Linear(4, 6), last=nn.Linear(3, 4))


def _always_dropped() -> nn.Module:
    return Net(lambda m, x: m.last(F.dropout(m.first(x), 0.5)), first=nn.Linear(4, 8), last=nn.Linear(8, 3))


def _pictures() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.inner(F.dropout(m.first(x.view(-1, 1, 2, 2)), 0.5))
        return m.last(h.flatten(1))

    return Net(run, first=nn.Conv2d(1, 4, 1), inner=nn.Conv2d(4, 4, 1), last=nn.Linear(16, 3))


def _depth() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.first(x).tanh()
        return m.last(h + m.inner(h) if random.random() < 0.5 else h)

    return Net(run, first=nn.Linear(4, 5), inner=nn.Linear(5, 5), last=nn.Linear(5, 3))


CASES: dict[str, tuple[Any, Any]] = {
    "variational autoencoder": (_vae, variational),
    "diffusion": (mlp, diffusion),
    "noise by numpy": (mlp, by_numpy),
    "signs by python": (mlp, by_python),
    "dropout that is always on": (_always_dropped, square),
    "dropout between convolutions": (_pictures, square),
    "dropout in a leaf": (lambda: nn.Sequential(Leaf(), nn.Tanh(), nn.Linear(5, 3)), square),
    "stochastic depth by a coin": (_depth, square),
}


@pytest.mark.parametrize("case", CASES)
def test_random_passes_are_exact_for_what_they_drew(case: str) -> None:
    torch.manual_seed(0)
    build, loss = CASES[case]
    model, backend = build(), Captured()
    probe_loss(model, loss, (X[:PROBE],))
    parameters = list(model.parameters())
    for seed in range(6):
        seed_all(seed)
        grads = backend.per_sample(model, loss, (X,))
        seed_all(seed)
        losses = loss(model, X)
        for i in range(len(X)):
            true = torch.autograd.grad(losses[i], parameters, retain_graph=True, allow_unused=True)
            alone = grads.weighted_sum(F.one_hot(torch.tensor(i), len(X)).float()[:, None])
            for found, t in zip(alone.values(), true, strict=True):
                torch.testing.assert_close(found, torch.zeros_like(found) if t is None else t, rtol=1e-3, atol=1e-5)
            norm = torch.stack([t.norm() for t in true if t is not None]).norm()
            torch.testing.assert_close(grads.norms().total()[i], norm, rtol=1e-4, atol=1e-6)


def test_a_record_that_is_not_finite_leaves_the_others_of_a_random_leaf_alone() -> None:
    torch.manual_seed(0)
    model, backend, broken = nn.Sequential(Leaf(), nn.Linear(5, 3)), Captured(), X.clone()
    broken[2] = torch.inf
    seed_all(0)
    whole = backend.per_sample(model, square, (X,)).norms().total()
    seed_all(0)
    parted = backend.per_sample(model, square, (broken,)).norms().total()
    others = torch.arange(len(X)) != 2
    torch.testing.assert_close(parted[others], whole[others])
    assert not parted[2].isfinite()


COUPLED = {
    "centred noise": lambda m, x: square(m, x + torch.randn_like(x) * m(x).detach().std(0).sum()),
    "mixed": lambda m, x: square(m, x) + m(x + torch.randn_like(x)).mean(0).sum(),
    "another's loss": lambda m, x: square(m, x + torch.randn_like(x)).flip(0),
    "mixed by numpy": lambda m, x: square(m, x + 0.5 * x[torch.from_numpy(np.random.permutation(len(x)))]),
    "divided by the count": lambda m, x: square(m, x + torch.randn_like(x)) / len(x),
    "divided by the count, by numpy": lambda m, x: _denoised_by_numpy(m, x) / len(x),
    "divided by what all hide": lambda m, x: (m(x) * (h := torch.rand(len(x), 3) < 0.7)).square().sum(1) / h.sum(),
}


@pytest.mark.parametrize("case", COUPLED)
def test_a_random_loss_that_couples_its_records_is_refused(case: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(Refusal, match="coupled"):
        probe_loss(mlp(), COUPLED[case], (X[:PROBE],))


@pytest.mark.parametrize("case", ["mixed", "another's loss"])
def test_the_engine_alone_refuses_gradients_that_flow_between_records(case: str) -> None:
    with pytest.raises(Refusal, match="own sample"):
        Captured().per_sample(mlp(), COUPLED[case], (X,))


def test_a_wrong_rule_is_refused_in_a_random_model() -> None:
    class Wrong(Leaf):
        """With a rule that forgets half."""

    @rule(Wrong)
    def _halved(tape: Any, module: Wrong, x: Tensor) -> Tensor:
        y = F.linear(x, tape.leaf(module.weight, x))
        tape.batch_dim(x)
        return tape.record(y, (x,), lambda saved, g: {module.weight: 0.5 * torch.einsum("bo,bi->boi", g, saved[0])})

    with pytest.raises(Refusal, match="weight"):
        Captured().per_sample(
            nn.Sequential(Wrong(), nn.Linear(5, 3)), lambda m, x: square(m, x + torch.randn_like(x)), (X,)
        )


def test_losses_with_large_terms_that_cancel_are_not_taken_for_coupling() -> None:
    mixed = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (square(model, x) + 1e6 * (x @ mixed).sum(1)) - 1e6 * (x @ mixed.sum(1))

    torch.manual_seed(0)
    for _ in range(10):
        probe_loss(mlp(), loss, (torch.randn(PROBE, 4),))
    with pytest.raises(Refusal, match="coupled"):
        probe_loss(mlp(), lambda m, x: 1e3 * square(m, x) / len(x) + loss(m, x), (torch.randn(PROBE, 4),))


@pytest.mark.parametrize(
    "draw",
    [
        torch.rand,
        torch.randn,
        lambda *shape: torch.randint(2, 9, shape),
        lambda *shape: torch.empty(shape).uniform_(-1, 1),
        lambda *shape: torch.empty(shape).bernoulli_(0.4),
        lambda *shape: torch.bernoulli(torch.full(shape, 0.4)),
        lambda *shape: F.dropout(torch.ones(shape), 0.3),
        lambda *shape: torch.normal(torch.zeros(shape), 1.0),
        lambda *shape: torch.distributions.Normal(torch.zeros(shape), 1.0).rsample(),
        lambda *shape: torch.multinomial(torch.full(shape, 0.25), 1),
    ],
)
def test_steady_draws_are_the_same_for_every_shape(draw: Any) -> None:
    with SteadyDraws(3) as steady:
        few, many = draw(1, 4), draw(7, 4)
    assert not steady.has_unknown_draws
    assert torch.equal(few.expand_as(many), many)
    assert len(few.unique()) == 1

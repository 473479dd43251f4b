"""Weights that are functions of parameters are exact: transposed, scaled, masked, made by another module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from sordino.per_sample import Captured, Loop, PerformanceOptions
from sordino.per_sample.model_inventory import advance_vectors
from sordino.refusal import Refusal
from tests.per_sample.models import Net
from tests.per_sample.oracle import same, square

X, SEQUENCES, PICTURES = torch.randn(5, 4), torch.randn(5, 3, 4), torch.randn(5, 2, 6, 6)


class Own(nn.Module):
    """A forward function, parameters, modules and a buffer."""

    def __init__(self, run: Any, modules: dict[str, nn.Module] | None = None, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.run = run
        for name, module in (modules or {}).items():
            self.add_module(name, module)
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape)))
        self.register_buffer("mask", torch.tensor([1.0, 0.0, 1.0, 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.run(self, x)
        return out


def _maker(outputs: int) -> dict[str, nn.Module]:
    return {"maker": nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs))}


CASES: dict[str, tuple[Any, Tensor]] = {
    "transposed and tied": (
        lambda: Net(lambda m, x: F.linear(m.first(x).tanh(), m.first.weight.t()), first=nn.Linear(4, 3)),
        X,
    ),
    "scaled": (lambda: Own(lambda m, x: F.linear(x, 2 * m.w), w=(6, 4)), X),
    "scaled, over time": (lambda: Own(lambda m, x: F.linear(x, 2 * m.w), w=(6, 4)), SEQUENCES),
    "scaled, time first": (
        lambda: Own(lambda m, x: F.linear(x.transpose(0, 1), 2 * m.w).transpose(0, 1), w=(6, 4)),
        SEQUENCES,
    ),
    "scaled, folded rows": (
        lambda: Own(lambda m, x: F.linear(x.reshape(-1, 4), 2 * m.w).view(len(x), -1), w=(6, 4)),
        SEQUENCES,
    ),
    "masked by a buffer": (lambda: Own(lambda m, x: F.linear(x, m.w * m.mask), w=(6, 4)), X),
    "einsum": (lambda: Own(lambda m, x: torch.einsum("btd,df->btf", x, m.w.exp()), w=(4, 3)), SEQUENCES),
    "from the left": (lambda: Own(lambda m, x: m.w @ x.unsqueeze(2), w=(3, 4)), X),
    "distances": (lambda: Own(lambda m, x: torch.cdist(x, m.w), w=(3, 4)), X),
    "a hypernetwork": (
        lambda: Own(lambda m, x: x @ m.maker(m.code).view(4, 3), {"maker": nn.Linear(4, 12)}, code=(4,)),
        X,
    ),
    "a deep hypernetwork": (lambda: Own(lambda m, x: x @ m.maker(m.code).view(4, 3), _maker(12), code=(4,)), X),
    "a hypernetwork of filters": (
        lambda: Own(lambda m, x: F.conv2d(x, m.maker(m.code).view(3, 2, 3, 3), m.b), _maker(54), code=(4,), b=(3,)),
        PICTURES,
    ),
    "a hypernetwork for each record": (
        lambda: Own(lambda m, x: torch.einsum("bi,bio->bo", x, m.maker(x).view(-1, 4, 3)), _maker(12)),
        X,
    ),
}


@pytest.mark.parametrize("two_pass", [False, True], ids=("one pass", "two passes"))
@pytest.mark.parametrize("case", CASES)
def test_a_weight_that_is_a_function_of_parameters_is_exact(case: str, two_pass: bool) -> None:
    torch.manual_seed(0)
    build, x = CASES[case]
    same(build().double(), (x.double(),), backend=Captured(PerformanceOptions(two_pass=two_pass)))


def test_what_vmap_cannot_do_is_refused_with_the_cure_and_the_loop_does_it() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        return m.first(x) * torch.stack([m.w] * len(x))  # a row for each record, made of no record

    model = Own(run, {"first": nn.Linear(4, 4)}, w=(4,))
    with pytest.raises(Refusal, match=r"backend=sordino\.per_sample\.Loop\(\)"):
        Captured().per_sample(model, square, (X,))
    assert bool(Loop().per_sample(model, square, (X,)).norms().total().isfinite().all())


@pytest.mark.parametrize("two_pass", [False, True], ids=("one pass", "two passes"))
def test_a_spectral_norm_in_training_is_exact(two_pass: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(spectral_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 3)).double()
    with torch.no_grad():
        model[0].parametrizations.weight.original.normal_()  # its vectors are far from converged
    backend = Captured(PerformanceOptions(two_pass=two_pass))
    before = {name: b.clone() for name, b in model.named_buffers()}
    loop, ours = (each.per_sample(model, square, (X.double(),)) for each in (Loop(), backend))
    torch.testing.assert_close(ours.norms().squared, loop.norms().squared, rtol=1e-9, atol=0.0)
    if two_pass:  # the second pass is the first again
        for i in range(len(X)):
            alone = ours.weighted_sum(F.one_hot(torch.tensor(i), len(X)).double()[:, None])
            summed = torch.stack([t.square().sum() for t in alone.values()])
            torch.testing.assert_close(summed, loop.norms().squared[i], rtol=1e-9, atol=0.0)
        assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())


def test_spectral_vectors_move_on_when_told_to() -> None:
    model = nn.Sequential(spectral_norm(nn.Linear(4, 6)))
    with torch.no_grad():
        model[0].parametrizations.weight.original.normal_()
    before = [b.clone() for b in model.buffers()]
    advance_vectors(list(model.modules()))
    assert not any(torch.equal(b, old) for b, old in zip(model.buffers(), before, strict=True))
    moved = [b.clone() for b in model.buffers()]
    advance_vectors(list(model.eval().modules()))
    assert all(torch.equal(b, old) for b, old in zip(model.buffers(), moved, strict=True))

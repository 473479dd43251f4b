"""Linear maps in bfloat16, by parameters or by autocast: norms and sums from the values as they are, exact to float32.

Three oracles: float64 on the very tensors that were handed over, the same engine with float32 copies, and the loop, which
computes in bfloat16 and agrees to its digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sordino as sd
from sordino.kernels.bf16_product import LowProducts, load_low_products
from sordino.per_sample import Captured, Loop, PerformanceOptions
from sordino.per_sample.formulas import output_gradient as output

B, T, D = 4, 40, 64
KEPT = PerformanceOptions(keep_bytes=1 << 26)
AGAIN = PerformanceOptions(keep_bytes=0)

needs_kernel = pytest.mark.skipif(load_low_products() is None, reason="this processor does not multiply bfloat16")


class Twice(nn.Module):
    """One layer, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x).tanh())


class Tied(nn.Module):
    """An embedding and a head on one table."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle = nn.Embedding(90, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        ids = (x[:, :, 0].float() * 100).long().abs() % 90
        return nn.functional.linear(self.middle(self.table(ids)).tanh(), self.table.weight)


class Apart(nn.Module):
    """Attention whose queries, keys and values differ: three blocks of one weight, and positions first."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        found: Tensor = self.attention(x, x.sin(), x.cos(), need_weights=False)[0]
        return found.transpose(0, 1)


class Turned(nn.Module):
    """A weight (d, p) beside an ordinary one, and one that is a function of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(D, 70) / 8), nn.Parameter(torch.randn(70))
        self.scaled = nn.Parameter(torch.randn(66, 70) / 8)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.addmm(self.bias, x.reshape(-1, D), self.weight).view(*x.shape[:-1], 70).tanh()
        return nn.functional.linear(y, self.scaled / 2)


class Recomputed(nn.Module):
    """Checkpointed: two passes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = checkpoint(lambda z: self.second(self.first(z).tanh()), x, use_reentrant=False)
        return found


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Linear(D, 66), nn.Tanh(), nn.Linear(66, D, bias=False)),
    "twice": Twice,
    "tied": Tied,
    "apart": Apart,
    "turned": Turned,
    "recomputed": Recomputed,
}


class Counting(LowProducts):
    """Counts its calls."""

    calls = 0

    def add_weighted_product(self, *args: object) -> None:
        Counting.calls += 1
        super().add_weighted_product(*args)  # type: ignore[arg-type]

    def compute_rows(self, *args: object) -> Tensor:
        Counting.calls += 1
        return super().compute_rows(*args)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernel has to be called by whoever asks for this."""
    found = load_low_products()
    assert found is not None
    kernel, Counting.calls = Counting(found.library, found.level), 0
    monkeypatch.setattr(output, "load_low_products", lambda: kernel)
    yield
    assert Counting.calls


def losses(model: nn.Module, x: Tensor) -> Tensor:
    y = model(x).float().flatten(1)
    return (y * torch.linspace(0.5, 1.5, y.shape[1])).sin().sum(1)


def case(name: str, mode: str) -> tuple[nn.Module, Tensor]:
    model, x = MODELS[name](), torch.randn(B, T, D)
    return (model.bfloat16(), x.bfloat16()) if mode == "bf16" else (model, x)


def within(mode: str) -> AbstractContextManager[object]:
    """Where everything runs."""
    return torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast")


def agree(ours: object, wanted: object, names: tuple[str, ...], weights: Tensor, rtol: float) -> None:
    """Sums by weights, relative to the largest of a tensor."""
    found, true = ours.weighted_sum(weights), wanted.weighted_sum(weights)  # type: ignore[attr-defined]
    for name in names:
        assert found[name].dtype == torch.float32
        assert (found[name] - true[name]).norm() <= rtol * true[name].norm(), name


@needs_kernel
@pytest.mark.parametrize("options", [KEPT, AGAIN], ids=("kept", "made twice"))
@pytest.mark.parametrize("formula", ["rows", "compiled"])
@pytest.mark.parametrize("mode", ["bf16", "autocast"])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_what_float32_copies_give(used, monkeypatch, name, mode, formula, options):
    monkeypatch.setattr(output.OutputGradient, "choose_formula", lambda *_: formula)
    model, x = case(name, mode)
    with within(mode):
        ours = Captured(options).per_sample(model, losses, (x,))
        norms = ours.norms()
        assert norms.squared.dtype == torch.float32
        u = {n: torch.randn(p.shape) for n, p in model.named_parameters()}
        weights = (torch.rand(B, 1), torch.rand(B, len(norms.names)))
        found = [ours.weighted_sum(w) for w in weights], ours.dot(u)
        monkeypatch.setattr(output, "load_low_products", lambda: None)
        copies = Captured(options).per_sample(model, losses, (x,))
        wanted = copies.norms()
        torch.testing.assert_close(norms.squared.sqrt(), wanted.squared.sqrt(), rtol=2e-5, atol=1e-6)
        for w, total in zip(weights, found[0], strict=True):
            for n, t in copies.weighted_sum(w).items():
                assert total[n].dtype == torch.float32
                assert (total[n] - t).norm() <= 1e-5 * (w.max() * wanted.squared.sqrt().sum(0)[wanted.names.index(n)])
        lengths = torch.stack([t.norm() for t in u.values()])
        assert ((found[1] - copies.dot(u)).abs() <= 1e-5 * wanted.squared.sqrt() * lengths).all()


@needs_kernel
@pytest.mark.parametrize("mode", ["bf16", "autocast"])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "recomputed"])
def test_it_is_the_loops_to_the_digits_of_bfloat16(used, name, mode):
    model, x = case(name, mode)
    with within(mode):
        ours, loop = Captured().per_sample(model, losses, (x,)), Loop().per_sample(model, losses, (x,))
        torch.testing.assert_close(ours.norms().total(), loop.norms().total(), rtol=2e-2, atol=0.0)
        agree(ours, loop, ours.norms().names, torch.rand(B, 1), 3e-2)


@needs_kernel
@pytest.mark.parametrize("options", [KEPT, AGAIN], ids=("kept", "made twice"))
@pytest.mark.parametrize("formula", ["rows", "compiled"])
@pytest.mark.parametrize("mode", ["bf16", "autocast"])
def test_it_is_exact_for_the_tensors_it_is_given(used, monkeypatch, mode, formula, options):
    monkeypatch.setattr(output.OutputGradient, "choose_formula", lambda *_: formula)
    given: list[tuple[Tensor, Tensor]] = []
    real = output.prepare_factors

    def seen(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        given.append((a.bfloat16(), g))
        return real(a, g)

    monkeypatch.setattr("sordino.per_sample.layers.linear.prepare_factors", seen)
    model, x = case("linear", mode)
    with within(mode):
        backend = Captured(options)
        backend.per_sample(model, losses, (x,))  # the comparison with autograd has its own passes
        given.clear()
        ours, w = backend.per_sample(model, losses, (x,)), torch.rand(B, 1)
        norms, total = ours.norms(), ours.weighted_sum(w)
        assert len(given) == 2
        rows = {tuple(t.shape[1:]): t for t in (g.double().mT @ a.double() for a, g in given)}
        for name in ("0.weight", "2.weight"):
            each = rows[tuple(total[name].shape)]
            true = each.square().sum((1, 2))
            ratio = norms.squared[:, norms.names.index(name)].double() / true
            assert (ratio >= 1 - 1e-6).all()
            assert (ratio <= 1 + 3e-5).all()  # raised by what rounding may hide
            summed = (each * w.double()[:, :, None]).sum(0)
            assert (total[name] - summed).norm() <= 1e-5 * summed.norm()
        bias = torch.stack([g.double().sum(1) for a, g in given if g.shape[2] == 66])[0]
        torch.testing.assert_close(
            norms.squared[:, norms.names.index("0.bias")].double(), bias.square().sum(1), rtol=1e-6, atol=0.0
        )


@needs_kernel
@pytest.mark.parametrize("formula", ["rows", "compiled"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_sample_that_is_not_finite_contributes_nothing(used, monkeypatch, formula, value):
    monkeypatch.setattr(output.OutputGradient, "choose_formula", lambda *_: formula)
    model, x = case("linear", "bf16")
    w = torch.tensor([[0.5], [0.0], [1.0], [0.25]])
    clean = Captured(AGAIN).per_sample(model, losses, (x,)).weighted_sum(w)
    x = x.clone()
    x[1, 3, 5] = value
    ours = Captured(PerformanceOptions(keep_bytes=0, verify=False)).per_sample(model, losses, (x,))
    assert ours.norms().total().isfinite().tolist() == [True, False, True, True]
    for name, total in ours.weighted_sum(w).items():
        assert torch.equal(total, clean[name])


@needs_kernel
@pytest.mark.parametrize("mode", ["bf16", "autocast"])
def test_a_penalty_inside_the_clip_is_the_one_of_float32_copies(used, monkeypatch, mode):
    model, x = case("linear", mode)
    with within(mode):
        found = Captured(inner=True).per_sample(model, losses, (x,)).inner
        monkeypatch.setattr(output, "load_low_products", lambda: None)
        wanted = Captured(inner=True).per_sample(model, losses, (x,))
        scale = wanted.norms().squared.sqrt() * torch.stack([p.detach().float().norm() for p in model.parameters()])
        assert ((found - wanted.inner).abs() <= 1e-5 * scale).all()


@needs_kernel
def test_choices_are_repeated_from_a_checkpoint():
    model, x = case("linear", "bf16")
    first, again = Captured(), Captured()
    sums = first.per_sample(model, losses, (x,)).weighted_sum(torch.ones(B, 1))
    choices = first.state_dict()["choices"]
    assert any("bfloat16" in key for key in choices)
    again.load_state_dict(first.state_dict())
    assert all(
        torch.equal(t, sums[n]) for n, t in again.per_sample(model, losses, (x,)).weighted_sum(torch.ones(B, 1)).items()
    )
    assert again.state_dict()["choices"] == choices


@needs_kernel
def test_nothing_measured_gives_the_same_bits_twice(used):
    model, x = case("turned", "bf16")
    found = [Captured(PerformanceOptions(measure=False)).per_sample(model, losses, (x,)) for _ in range(2)]
    assert torch.equal(*[each.norms().squared for each in found])
    one, two = (each.weighted_sum(torch.ones(B, 1)) for each in found)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_without_the_kernel_they_are_copied_to_float32(monkeypatch):
    monkeypatch.setattr(output, "load_low_products", lambda: None)
    a, g = torch.randn(2, T, D), torch.randn(2, T, D).bfloat16()
    inputs, gradients = output.prepare_factors(a, g)
    assert inputs.dtype == gradients.dtype == torch.float32
    assert torch.equal(inputs, a.bfloat16().float())  # as the layer rounded it
    model, x = case("linear", "bf16")
    ours, loop = Captured().per_sample(model, losses, (x,)), Loop().per_sample(model, losses, (x,))
    torch.testing.assert_close(ours.norms().total(), loop.norms().total(), rtol=2e-2, atol=0.0)


@needs_kernel
def test_a_private_run_in_bfloat16_keeps_its_bound(used):
    """The sum of one sample, clipped at 1, is no longer than 1."""
    model, x = case("linear", "bf16")
    private = sd.Private(model, lambda m, z: losses(m, z), sd.NoisySum(sd.Flat(1.0), sd.Gaussian(0.0)), seed=0)
    data = torch.utils.data.TensorDataset(x[:1])
    for lot in private.draws(data, sd.Full(), 1, expected_batch=1):
        private.backward(lot)
    length = torch.sqrt(sum(p.grad.double().square().sum() for p in model.parameters()))
    assert 0.98 <= float(length) <= 1 + 4 * torch.finfo(torch.bfloat16).eps

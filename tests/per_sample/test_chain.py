"""Small Linear layers in a Sequential, taken as one layer: the loop's answers, and one by one where anything is unusual."""

from collections.abc import Callable, Hashable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sordino.kernels.affine import load_affines
from sordino.per_sample import Captured
from sordino.per_sample.accelerations import linear_chains as chain
from sordino.per_sample.formulas.formula_timing import Stopwatch
from sordino.refusal import Refusal
from tests.per_sample.oracle import same, square


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of layers of every chain that was gone back through."""
    found: list[int] = []
    parts = chain._make_chain_parts

    def watched(tape: Any, name: str, links: Any, *rest: Any) -> Any:
        found.append(len(links))
        return parts(tape, name, links, *rest)

    monkeypatch.setattr(chain, "_make_chain_parts", watched)
    return found


def _net(between: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 9), between(), nn.Linear(9, 7), between(), nn.Linear(7, 4))


@pytest.mark.parametrize("between", [nn.ReLU, nn.Tanh, nn.Sigmoid])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_those_of_the_loop(taken: list[int], between: type[nn.Module], dtype: torch.dtype) -> None:
    same(_net(between).to(dtype), (torch.randn(11, 12, dtype=dtype),))
    assert set(taken) == {3}


def test_images_are_laid_flat_and_a_batch_of_one_is_a_batch(taken: list[int]) -> None:
    same(nn.Sequential(nn.Flatten(), *_net()), (torch.randn(1, 3, 2, 2),))
    assert set(taken) == {3}


def test_layers_with_nothing_between_them_or_without_bias(taken: list[int]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 8, bias=False), nn.Linear(8, 6), nn.ReLU(inplace=True), nn.Linear(6, 3, bias=False)
    )
    same(model, (torch.randn(10, 5),))
    assert set(taken) == {3}


def test_a_frozen_weight_beside_a_trained_bias(taken: list[int]) -> None:
    model = _net()
    model[2].weight.requires_grad_(False)
    same(model, (torch.randn(10, 12),))
    assert set(taken) == {3}


def test_what_comes_out_may_be_changed_in_place(taken: list[int]) -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).mul_(2).relu_().square().sum(1)

    same(_net(), (torch.randn(10, 12),), loss)
    assert set(taken) == {3}


@pytest.mark.parametrize("which", ["torch", "compiled"])
def test_large_products_of_a_chain_give_the_loops_answers_by_either_code(
    taken: list[int], which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def choose(self: Stopwatch, key: Hashable) -> str:
        asked.append(str(key[0]))  # type: ignore[index]
        return which

    monkeypatch.setattr(Stopwatch, "known_choice", choose)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 96), nn.ReLU(), nn.Linear(96, 256), nn.ReLU(), nn.Linear(256, 5))
    same(model, (torch.randn(90, 1, 28, 28),))
    assert set(taken) == {3}
    if load_affines() is not None:
        assert {"mapped", "mapped back"} <= set(asked)


class _Inside(nn.Module):
    """A chain behind another layer, and before an activation of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = nn.Linear(12, 12), _net()

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.rest(torch.tanh(self.first(x))))


class _Scaled(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def _tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 4))
    model[2].weight = model[0].weight
    return model


def _twice() -> nn.Module:
    layer = nn.Linear(12, 12)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(12, 4))


def _frozen() -> nn.Module:
    model = _net()
    model[0].requires_grad_(False)
    return model


def _hooked() -> nn.Module:
    model = _net()
    model[1].register_forward_hook(lambda module, args, out: 3 * out)
    return model


def _replaced() -> nn.Module:
    model = _net()
    model[1].forward = lambda x: x.sin()  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize(
    "make",
    [
        _Inside,
        _tied,
        _twice,
        _frozen,
        _hooked,
        _replaced,
        lambda: nn.Sequential(nn.Linear(12, 9), _Scaled(), nn.Linear(9, 4)),
        lambda: nn.Sequential(nn.ReLU(), *_net()),
        lambda: nn.Sequential(*_net(), nn.Tanh()),
        lambda: nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.LayerNorm(9), nn.Linear(9, 4)),
    ],
)
def test_where_something_is_unusual_the_layers_run_one_by_one(taken: list[int], make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(1)
    same(make(), (torch.randn(10, 12),))
    assert not taken


def test_several_positions_a_sample_and_inputs_with_a_gradient_run_one_by_one(taken: list[int]) -> None:
    same(_net(), (torch.randn(6, 5, 12),))
    same(_net(), (torch.randn(10, 12),), lambda model, x: square(lambda a: model(a.requires_grad_()), x.clone()))
    assert not taken


def test_a_layer_put_in_after_the_first_batch_is_seen(taken: list[int]) -> None:
    model, x = _net(), torch.randn(10, 12)
    same(model, (x,))
    model[1] = nn.Tanh()
    same(model, (x,))
    assert set(taken) == {3}
    taken.clear()
    model[3] = _Scaled()
    same(model, (x,))
    model[3] = nn.ReLU()
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, out: None)
    try:
        same(model, (x,))
    finally:
        handle.remove()
    assert not taken


def test_a_weight_changed_in_the_loss_is_refused(taken: list[int]) -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        out = square(model, x)
        with torch.no_grad():
            model[2].weight.mul_(1.0)
        return out

    with pytest.raises(Refusal, match="changed in place"):
        Captured().per_sample(_net(), loss, (torch.randn(10, 12),))


def test_an_input_changed_in_the_loss_is_refused(taken: list[int]) -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        x = x.clone()
        out = square(model, x)
        x.zero_()
        return out

    with pytest.raises(Refusal, match="changed in place"):
        Captured().per_sample(_net(), loss, (torch.randn(10, 12),))

"""What is known of a model and a loss is known of them alone: another loss or another module is looked at anew."""

import gc
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sordino.per_sample import Captured
from sordino.per_sample.engine.module_plan import find_loss_identity
from sordino.refusal import Refusal
from tests.per_sample.oracle import same, square


def alone(x: Tensor) -> Tensor:
    return x


def mixing(x: Tensor) -> Tensor:
    return x - x.mean(0)


def by_closure(before: Any) -> Any:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(before(x)).square().sum(1)

    return loss


def by_default(before: Any) -> Any:
    def loss(model: nn.Module, x: Tensor, before: Any = before) -> Tensor:
        return model(before(x)).square().sum(1)

    return loss


def by_keyword(before: Any) -> Any:
    def loss(model: nn.Module, x: Tensor, *, before: Any = before) -> Tensor:
        return model(before(x)).square().sum(1)

    return loss


def _applied(before: Any, model: nn.Module, x: Tensor) -> Tensor:
    return model(before(x)).square().sum(1)


class Holding:
    """A loss that is a method."""

    def __init__(self, before: Any) -> None:
        self.before = before

    def loss(self, model: nn.Module, x: Tensor) -> Tensor:
        return model(self.before(x)).square().sum(1)


def by_method(before: Any) -> Any:
    return Holding(before).loss


def by_inner_function(before: Any) -> Any:
    return by_closure(lambda x: before(x))


FACTORIES = [by_closure, by_default, by_keyword, partial(partial, _applied), by_method, by_inner_function]
NAMES = ["closure", "default", "keyword", "partial", "method", "function in a closure"]


@pytest.mark.parametrize("factory", FACTORIES, ids=NAMES)
def test_a_loss_that_mixes_samples_is_refused_after_its_harmless_twin(factory: Any) -> None:
    model, x, backend = nn.Linear(4, 3), torch.randn(6, 4), Captured()
    backend.per_sample(model, factory(alone), (x,)).norms()
    with pytest.raises(Refusal, match="depend on their own sample"):
        backend.per_sample(model, factory(mixing), (x,)).norms()
    backend.per_sample(model, factory(alone), (x,)).norms()


@pytest.mark.parametrize("factory", FACTORIES[:4] + FACTORIES[5:], ids=NAMES[:4] + NAMES[5:])
def test_a_loss_written_inside_a_loop_is_the_same_every_time(factory: Any) -> None:
    assert find_loss_identity(factory(alone)) == find_loss_identity(factory(alone))
    assert hash(find_loss_identity(factory(alone))) == hash(find_loss_identity(factory(alone)))
    assert find_loss_identity(factory(alone)) != find_loss_identity(factory(mixing))


def test_numbers_in_a_closure_are_compared_by_value() -> None:
    def scaled(by: float) -> Any:
        return lambda model, x: by * model(x).sum(1)

    assert find_loss_identity(scaled(float("0.1"))) == find_loss_identity(scaled(float("0.1")))
    assert find_loss_identity(scaled(0.1)) != find_loss_identity(scaled(0.2))
    assert find_loss_identity(scaled(1)) != find_loss_identity(scaled(1.0))


def test_a_dead_object_is_not_mistaken_for_one_in_its_place() -> None:
    class Thing:
        pass

    thing = Thing()
    key = find_loss_identity(thing)
    assert key == find_loss_identity(thing)
    other = weakref.ref(thing)
    del thing
    gc.collect()
    assert other() is None  # the key does not keep it alive
    assert key != find_loss_identity(Thing())
    assert key != key.__class__(Thing())


def test_a_backend_keeps_no_model_alive() -> None:
    backend, model = Captured(), nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    loss = by_closure(alone)
    backend.per_sample(model, loss, (torch.randn(5, 4),)).norms()
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None


def test_a_module_without_parameters_that_is_put_in_moves_no_rule_to_another() -> None:
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.between, self.last = nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.last(self.between(self.first(x)))
            return out

    model, x, backend = Net().double(), torch.randn(5, 4, dtype=torch.float64), Captured()
    same(model, (x,), square, backend)
    model.between = nn.Sequential(nn.Tanh(), nn.Dropout(0.0), nn.Hardtanh())
    same(model, (x,), square, backend)
    model.between = nn.ReLU()
    same(model, (x,), square, backend)


def test_what_one_backend_learned_another_does_not_know() -> None:
    model, x = nn.Linear(4, 3), torch.randn(6, 4)
    one, other = Captured(), Captured()
    one.per_sample(model, square, (x,)).norms()
    assert one.sample_bytes(model) == 4 * (4 + 3)
    assert other.sample_bytes(model) == 1 << 12  # a guess

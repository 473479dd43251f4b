"""Formulas chosen by a stopwatch differ in rounding, so a checkpoint takes the choices along."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import sordino as sd
from sordino.gradients import Captured, PerformanceOptions
from sordino.gradients.captured.plan import plan_of, way_of
from sordino.gradients.first_batch import stopwatch as tune
from tests.gradients.oracle import same


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(2), nn.Linear(36, 5))


def _loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().flatten(1).sum(1)


def _other(key: str, choice: str) -> str:
    """Another candidate for the same layer."""
    if key.startswith("('matmul'"):
        return "gram" if choice == "rows" else "rows"
    if key.startswith("('conv'"):
        return "gram" if choice != "gram" else "unfold"
    if key.startswith("('sum'"):
        return "product" if choice == "native" else "native"
    if key.startswith(("('forward'", "('input'")):
        return "torch" if choice == "compiled" else "compiled"
    return "default" if choice == "channels last" else "channels last"


@pytest.fixture(autouse=True)
def measured_anew() -> Iterator[None]:
    before = tune.choices()
    tune.forget()
    yield
    tune.restore(before)


def test_loaded_choices_are_used_in_place_of_a_measurement() -> None:
    x = torch.randn(8, 2, 6, 6)
    options = PerformanceOptions(keep_bytes=1 << 30)  # or one layer's choice would decide what is left for the next
    backend = Captured(options)
    backend.per_sample(_model(), _loss, (x,)).norms()
    saved = json.loads(json.dumps(backend.state_dict()))
    kinds = {key.split("'")[1] for key in saved["choices"]}
    assert kinds - {"forward", "input"} == {"matmul", "conv", "sum", "format"}  # those two where there is a kernel
    turned = {"choices": {key: _other(key, choice) for key, choice in saved["choices"].items()}}
    other = Captured(options)
    other.load_state_dict(turned)
    same(_model(), (x,), _loss, other)
    assert tune.choices() == turned["choices"]


def test_a_model_met_before_follows_loaded_choices() -> None:
    x, model, backend = torch.randn(8, 2, 6, 6), _model(), Captured()
    backend.per_sample(model, _loss, (x,)).norms()
    saved = backend.state_dict()["choices"]
    turned = {key: _other(key, choice) if key.startswith("('format'") else choice for key, choice in saved.items()}
    backend.load_state_dict({"choices": turned})
    backend.per_sample(model, _loss, (x,)).norms()
    assert {k: v for k, v in tune.choices().items() if k.startswith("('format'")} == {
        k: v for k, v in turned.items() if k.startswith("('format'")
    }


def test_a_checkpoint_holds_the_choices() -> None:
    data = torch.utils.data.TensorDataset(torch.randn(20, 2, 6, 6))

    def private() -> sd.Private:
        return sd.Private(_model(), _loss, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), seed=0)

    run = private()
    for lot in run.draws(data, sd.Poisson(0.5), steps=2):
        run.backward(lot)
    state = json.loads(json.dumps(run.state_dict()))
    assert state["backend"]["choices"]
    tune.forget()
    resumed = private()
    resumed.load_state_dict(state)
    assert tune.choices() == state["backend"]["choices"]


class _Viewed(nn.Module):
    """Flattens by view, which memory with its channels last does not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.linear = nn.Conv2d(2, 3, 3), nn.Linear(48, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.convolution(x).view(len(x), -1))


@pytest.mark.parametrize(("make", "last"), [(_model, True), (_Viewed, False)])
def test_without_a_stopwatch_channels_come_last_where_the_model_allows_it(make: Any, last: bool) -> None:
    model, x = make(), torch.randn(8, 2, 6, 6)
    with tune.fixed():
        same(model, (x,), _loss, Captured(PerformanceOptions(measure=False)))
    plan = plan_of(model, way_of(model, _loss, (x,)))
    assert plan.channels_last is last
    assert not tune.choices()


def test_a_run_that_measures_nothing_holds_nothing_that_others_measured() -> None:
    Captured().per_sample(_model(), _loss, (torch.randn(8, 2, 6, 6),)).norms()
    before = tune.choices()
    assert before
    still = Captured(PerformanceOptions(measure=False))
    assert still.state_dict() == {"choices": {}}
    still.load_state_dict({"choices": {}})
    assert tune.choices() == before

"""Formulas chosen by a stopwatch differ in rounding, so a checkpoint takes the choices along."""

import copy
import json
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import sordino as sd
from sordino.per_sample import Captured, PerformanceOptions
from sordino.per_sample.engine.module_plan import ModulePlan
from sordino.per_sample.model_inventory import Inventory
from tests.per_sample.oracle import same, square
from tests.per_sample.zoo import GRID, Case


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(2), nn.Linear(36, 5))


def _loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().flatten(1).sum(1)


def _plan(backend: Captured, model: nn.Module, x: torch.Tensor) -> ModulePlan:
    return backend._plans.find_or_make_plan(Inventory(model), _loss, [x])


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
    assert other.state_dict() == turned


def test_a_model_met_before_follows_loaded_choices() -> None:
    x, model, backend = torch.randn(8, 2, 6, 6), _model(), Captured()
    backend.per_sample(model, _loss, (x,)).norms()
    saved = backend.state_dict()["choices"]
    turned = {key: _other(key, choice) if key.startswith("('format'") else choice for key, choice in saved.items()}
    before = _plan(backend, model, x).learned.channels_last
    backend.load_state_dict({"choices": turned})
    backend.per_sample(model, _loss, (x,)).norms()
    assert _plan(backend, model, x).learned.channels_last is not before


def test_loading_one_runs_state_leaves_anothers_alone() -> None:
    x, model, one, other = torch.randn(8, 2, 6, 6), _model(), Captured(), Captured()
    one.per_sample(model, _loss, (x,)).norms()
    other.per_sample(model, _loss, (x,)).norms()
    plan, choices = _plan(one, model, x), one.state_dict()
    other.load_state_dict({"choices": {}})
    assert other.state_dict() == {"choices": {}}
    assert _plan(one, model, x) is plan
    assert plan.learned.trusted
    assert one.state_dict() == choices


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))])
def test_a_copy_of_a_backend_has_met_no_model(copied: Any) -> None:
    x, backend = torch.randn(8, 2, 6, 6), Captured(PerformanceOptions(scratch_bytes=1 << 20))
    backend.per_sample(_model(), _loss, (x,)).norms()
    twin = copied(backend)
    assert twin == backend
    assert backend.state_dict()["choices"]
    assert not twin.state_dict()["choices"]


def test_a_checkpoint_holds_the_choices() -> None:
    data = torch.utils.data.TensorDataset(torch.randn(20, 2, 6, 6))

    def private() -> sd.Private:
        return sd.Private(_model(), _loss, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), seed=0)

    run = private()
    for lot in run.draws(data, sd.Poisson(0.5), steps=2):
        run.backward(lot)
    state = json.loads(json.dumps(run.state_dict()))
    assert state["backend"]["choices"]
    resumed = private()
    resumed.load_state_dict(state)
    assert resumed.state_dict()["backend"] == state["backend"]


class _Viewed(nn.Module):
    """Flattens by view, which memory with its channels last does not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.linear = nn.Conv2d(2, 3, 3), nn.Linear(48, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.convolution(x).view(len(x), -1))


@pytest.mark.parametrize(("make", "last"), [(_model, True), (_Viewed, False)])
def test_without_a_stopwatch_channels_come_last_where_the_model_allows_it(make: Any, last: bool) -> None:
    model, x, backend = make(), torch.randn(8, 2, 6, 6), Captured(PerformanceOptions(measure=False))
    same(model, (x,), _loss, backend)
    assert _plan(backend, model, x).learned.channels_last is last


class _NoClock:
    """In place of the module `time`."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"time.{name} was asked for")


@pytest.fixture
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks the engine's clocks fails."""
    monkeypatch.setattr("sordino.per_sample.formulas.formula_timing.time", _NoClock())
    monkeypatch.setattr("sordino.per_sample.formulas.matrix_product._SMALL", 0)


def test_a_backend_that_measures_asks_the_clock(no_clock: None) -> None:
    with pytest.raises(AssertionError, match="was asked for"):
        Captured().per_sample(_model(), _loss, (torch.randn(8, 2, 6, 6),)).norms()


@pytest.mark.parametrize("shape", [(8, 2, 6, 6), (512, 2, 6, 6)])
def test_a_backend_that_measures_nothing_asks_no_clock(no_clock: None, shape: tuple[int, ...]) -> None:
    backend = Captured(PerformanceOptions(measure=False, keep_bytes=0))
    grads = backend.per_sample(_model(), _loss, (torch.randn(shape),))
    grads.norms()
    grads.weighted_sum(torch.ones(shape[0], 1))
    assert backend.state_dict() == {"choices": {}}
    backend.load_state_dict({"choices": {"a key": "a choice"}})
    assert backend.state_dict() == {"choices": {}}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("inner", [False, True], ids=("plain", "with a penalty"))
@pytest.mark.parametrize("case", GRID, ids=str)
def test_no_layer_asks_the_clock_where_nothing_is_measured(no_clock: None, case: Case, inner: bool) -> None:
    torch.manual_seed(4)
    model, batch = case.model(), case.batch(8, torch.float32)
    for options in ({}, {"keep_bytes": 0}, {"two_pass": True}, {"verify": False}):
        backend = Captured(PerformanceOptions(measure=False, **options), inner=inner)
        grads = backend.per_sample(model, square, batch)
        names = grads.norms().names
        grads.weighted_sum(torch.ones(8, 1))
        grads.weighted_sum(torch.ones(8, len(names)))
        assert backend.state_dict() == {"choices": {}}


def test_a_resume_outside_fit_is_bit_equal_where_nothing_is_measured() -> None:
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(60, 2, 6, 6))

    def run(before: int, after: int) -> list[torch.Tensor]:
        model, saved = _model(), None
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for steps in (before, after):
            backend = Captured(PerformanceOptions(measure=False))
            query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))
            private = sd.Private(model, _loss, query, seed=0, backend=backend, ledger=sd.Ledger())
            if saved is not None:
                private.load_state_dict(saved, replay=sd.Replay("a test"))
            for lot in private.draws(data, sd.Poisson(0.5), steps=steps):
                private.backward(lot)
                optimizer.step()
            saved = json.loads(json.dumps(private.state_dict()))
        return [p.detach() for p in model.parameters()]

    assert all(map(torch.equal, run(3, 4), run(6, 1)))

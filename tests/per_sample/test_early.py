"""Layers measured while the backward pass runs: the same answers, in less memory."""

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sordino.lots.loading import cut_into_batches
from sordino.per_sample import Captured, PerformanceOptions
from sordino.per_sample.engine import pruned_backward
from sordino.per_sample.engine.batch_result import KeepBudget, Result
from sordino.per_sample.formulas.gradient_part import GradientRows
from sordino.per_sample.physical_batch import activation_bytes, choose_physical_batch
from sordino.per_sample.recording.tape import Use
from tests.per_sample.oracle import same, square
from tests.per_sample.zoo import GRID, Case


@pytest.fixture(autouse=True)
def every_layer_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruned_backward, "_LARGE", 0)


def _deep() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Conv2d(4, 3, 3),
        nn.Flatten(2),
        nn.Linear(16, 5),
    )


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("case", GRID[1::2], ids=str)
def test_gradients_are_the_loops(case: Case) -> None:
    torch.manual_seed(3)
    same(case.model().double(), case.batch(4, torch.float64))


def test_layers_inside_are_measured_early_and_right() -> None:
    model, x = _deep().double(), torch.randn(6, 2, 6, 6, dtype=torch.float64)
    backend = Captured()
    same(model, (x,), backend=backend)
    grads = backend.per_sample(model, square, (x,))
    assert isinstance(grads, Result)
    assert sum(s is not None for s in grads._squares) == 6  # all but the first convolution's two parameters


class _Twice(nn.Module):
    """Uses its inner layer once or twice, as told from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.twice = nn.Linear(3, 4), nn.Linear(4, 4), False

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(self.first(x).tanh())
        return self.inner(y.tanh()) if self.twice else y


def test_a_layer_that_is_suddenly_used_twice_is_joined() -> None:
    torch.manual_seed(0)
    model, x = _Twice().double(), torch.randn(5, 7, 3, dtype=torch.float64)
    backend = Captured()
    same(model, (x,), backend=backend)
    model.twice = True
    same(model, (x,), backend=backend)
    model.twice = False
    same(model, (x,), backend=backend)


def test_inputs_that_want_gradients_do_not_hide_a_layer() -> None:
    model, x = _deep().double(), torch.randn(6, 2, 6, 6, dtype=torch.float64)
    same(model, (x.requires_grad_(),))


def test_nothing_of_a_batch_lives_on_without_a_garbage_collection() -> None:
    model, seen = _deep(), list[weakref.ref[Tensor]]()
    model[2].register_forward_hook(lambda module, args, out: seen.append(weakref.ref(out)))
    x, backend = torch.randn(6, 2, 6, 6), Captured()
    backend.per_sample(model, square, (x,)).norms()
    gc.collect()
    gc.disable()
    try:
        seen.clear()
        backend.per_sample(model, square, (x,)).weighted_sum(torch.ones(6, 1))
        assert seen
        assert all(ref() is None for ref in seen)
    finally:
        gc.enable()


def test_lots_that_fill_memory_go_in_two_parts_of_equal_size() -> None:
    cpu = torch.device("cpu")
    assert choose_physical_batch(1000, cpu, lot=100, activations=1 << 18, parameters=10) == 60
    assert choose_physical_batch(1000, cpu, lot=1000, activations=1 << 18, parameters=10) == 75  # 62 fit a cache
    assert (
        choose_physical_batch(1000, cpu, lot=1000, activations=1 << 22, parameters=10) == 38
    )  # 31 are enough to be busy
    assert choose_physical_batch(1000, cpu, lot=100, activations=1 << 20, parameters=1 << 28) > 100
    assert choose_physical_batch(1000, cpu, lot=100, activations=1 << 10, parameters=10) > 100  # too little to matter
    for n in (0, 1, 59, 60, 61, 100, 120, 121, 300):
        sizes = [len(part) for part in cut_into_batches(np.arange(n), 60)]
        assert len(sizes) == -(-n // 60)
        assert max(sizes, default=0) - min(sizes, default=0) <= 1
        assert np.array_equal(np.concatenate([*cut_into_batches(np.arange(n), 60), np.arange(0)]), np.arange(n))


@pytest.mark.parametrize(("lot", "activations", "parts"), [(64, 1 << 20, 2), (100, 1 << 20, 4), (200, 1 << 18, 4)])
def test_parts_of_a_lot_are_seldom_cut_once_more(lot: int, activations: int, parts: int) -> None:
    limit = choose_physical_batch(1000, torch.device("cpu"), lot, activations, parameters=10)
    drawn, records = np.random.default_rng(0), 16 * lot
    lots = [np.flatnonzero(drawn.random(records) < 1 / 16) for _ in range(300)]
    passes = np.mean([len(cut_into_batches(indices, limit, records)) for indices in lots])
    assert parts <= passes <= 1.2 * parts


def test_lots_stay_whole_where_the_backward_pass_leaves_little_and_parameters_weigh() -> None:
    cpu, asked = torch.device("cpu"), list[int]()

    def chosen(held: int, parameters: int, activations: int = 1 << 20) -> int:
        return choose_physical_batch(1000, cpu, 100, activations, parameters, lambda: asked.append(held) or held)

    assert chosen(held=1 << 19, parameters=25 << 20) > 100
    assert chosen(held=1 << 20, parameters=20 << 20) == 31  # as much as plain training keeps, and more on the way
    assert chosen(held=1 << 20, parameters=26 << 20) > 100  # halves would save 50 MiB and take 52
    assert chosen(held=0, parameters=25 << 20) == 31  # not known
    asked.clear()
    assert chosen(held=1 << 19, parameters=5 << 20) == 31  # chunks that fit a cache cost little
    assert chosen(held=1 << 24, parameters=60 << 20) > 100  # halves would take more than they save
    assert not asked, "nobody is asked where it does not matter"


def test_what_a_backward_pass_leaves_is_foreseen_without_a_trace() -> None:
    """Inputs that several layers read are held once, and rows in place of both factors where they are smaller."""
    model, low, backend, x = _Branches(), _Branches().bfloat16(), Captured(), torch.randn(3, 2, 4)
    before = torch.get_rng_state()
    found = backend.held_bytes(model, square, (x,))
    narrow, wide, wider = 4, 2 * (4 + 400), 2 * 500  # rows; input and gradient; a gradient, with the same input
    assert found == 4 * (narrow + wide + wider)
    assert backend.held_bytes(low, square, (x.bfloat16(),)) == found  # norms and sums are in float32
    assert torch.equal(before, torch.get_rng_state())
    assert not backend.state_dict()["choices"]
    assert Captured(PerformanceOptions(two_pass=True)).held_bytes(model, square, (x,)) == 0
    assert backend.held_bytes(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(2)), square, (x,)) == 0  # refused later


class _Branches(nn.Module):
    """Narrow and wide layers that read the same."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, n, bias=False) for n in (1, 400, 500))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([layer(x) for layer in self.layers], 2)


def test_rows_that_are_kept_stay_within_what_memory_keeps_warm() -> None:
    uses = [Use("", None, (torch.empty(1 << 20),), (0,), None, 1, bytes=1 << 27)]  # type: ignore[arg-type]
    budget = KeepBudget.for_uses(PerformanceOptions(), uses)
    budget.measure(GradientRows(torch.ones(2, 3)))
    assert budget.options.keep_bytes == 1 << 26
    few = KeepBudget.for_uses(PerformanceOptions(), [Use("", None, (), (), None, 1, bytes=800)])  # type: ignore[arg-type]
    few.measure(GradientRows(torch.ones(2, 3)))
    assert few.options.keep_bytes == 1000


def test_activations_are_those_autograd_keeps() -> None:
    model = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 1))
    x = torch.randn(4, 10)
    found = activation_bytes(model, lambda m, a: m(a).square().sum(1), (x,))
    assert found == 4 * (10 + 20 + 1)  # the input, tanh's output, the last output


def test_the_workspace_of_a_fused_recurrent_layer_is_not_counted() -> None:
    """It is six times what the rule keeps of a sample."""
    model, steps = nn.LSTM(64, 128, batch_first=True), 50
    found = activation_bytes(model, lambda m, a: m(a)[0].square().sum((1, 2)), (torch.randn(4, steps, 64),))
    assert found < 4 * steps * 3 * (64 + 128)

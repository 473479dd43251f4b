"""Layers measured while the backward pass runs: the same answers, in less memory."""

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sordino.gradients import Captured
from sordino.gradients.captured import backward
from sordino.gradients.captured.result import Result
from sordino.gradients.physical_batch import activation_bytes, physical_batch
from sordino.lots.cutting import chunks
from tests.gradients.oracle import same, square
from tests.gradients.zoo import GRID, Case


@pytest.fixture(autouse=True)
def every_layer_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backward, "_LARGE", 0)


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
    assert physical_batch(1000, cpu, lot=100, activations=1 << 18, parameters=10) == 60
    assert physical_batch(1000, cpu, lot=1000, activations=1 << 18, parameters=10) == 80  # what a cache holds
    assert physical_batch(1000, cpu, lot=1000, activations=1 << 22, parameters=10) == 32  # but enough to be busy
    assert physical_batch(1000, cpu, lot=100, activations=1 << 20, parameters=1 << 28) > 100
    assert physical_batch(1000, cpu, lot=100, activations=1 << 10, parameters=10) > 100  # too little to matter
    for n in (0, 1, 59, 60, 61, 100, 120, 121, 300):
        sizes = [len(part) for part in chunks(np.arange(n), 60)]
        assert len(sizes) == -(-n // 60)
        assert max(sizes, default=0) - min(sizes, default=0) <= 1
        assert np.array_equal(np.concatenate([*chunks(np.arange(n), 60), np.arange(0)]), np.arange(n))


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

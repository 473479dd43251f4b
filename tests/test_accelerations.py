"""Every acceleration computes what the plain code computes, and is known to one file only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch import nn

from sordino import accelerations
from sordino.accelerations import accelerate, load
from sordino.kernels.matrices import load_functions
from sordino.per_sample import Captured, PerformanceOptions
from sordino.per_sample.engine import batch_result, module_plan
from sordino.per_sample.recording.layer_accelerations import FasterRule, StandIn

ROOT = Path(__file__).parents[1] / "sordino"
TABLES = (*accelerations.LAYER_RULES, *accelerations.STAND_INS, *accelerations.JOINT_PARTS)
needs_kernels = pytest.mark.skipif(load_functions() is None, reason="the library was not compiled")


@pytest.mark.parametrize("name", accelerations.FUNCTIONS)
def test_plain_functions_of_the_table_are_accelerated(name):
    function = load(name)
    assert function.plain.__name__ == name.rpartition(".")[2]
    assert function is not function.plain


def test_accelerations_of_layers_are_what_the_engine_expects():
    assert all(isinstance(load(name), FasterRule) for name in accelerations.LAYER_RULES)
    assert all(isinstance(load(name), StandIn) for name in accelerations.STAND_INS)
    assert all(callable(load(name)) for name in accelerations.JOINT_PARTS)


def test_only_the_table_names_them():
    """No file but the table imports them, or what they are made of; the engine asks the table."""
    modules = {name.rpartition(".")[0] for name in TABLES}
    for path in ROOT.rglob("*.py"):
        own = "sordino." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if own in modules or path.name == "former_names.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.module not in modules, f"{path} imports {node.module}"


def test_they_know_nothing_of_the_engine_that_uses_them():
    for path in (ROOT / "per_sample" / "accelerations").glob("*.py"):
        assert "per_sample.engine" not in path.read_text()
        assert "per_sample.first_batch" not in path.read_text()


def test_a_function_that_no_table_names_cannot_be_marked():
    with pytest.raises(KeyError):

        @accelerate
        def unknown(x: int) -> int:
            return x


NUMBERS = [
    torch.tensor([0.0, 1e-30, 0.25, 4.0, 64.0, torch.inf, torch.nan]),
    torch.rand(1 << 15),
    torch.rand(9).double(),
]


@needs_kernels
@pytest.mark.parametrize("squared", NUMBERS, ids=("few", "many", "double"))
def test_clipping_factors_have_the_same_bits(squared):
    from sordino.clipping.flat import clip_by_squares

    assert torch.equal(clip_by_squares(squared, 1.5), clip_by_squares.plain(squared, 1.5))


@needs_kernels
def test_rows_within_a_bound_are_seen_and_rows_beyond_it_settle_nothing():
    from sordino.clipping.clipping_rule import are_surely_within

    squared, weights = torch.tensor([1.0, 4.0, 9.0]), torch.tensor([[1.0], [0.5], [1 / 3]])
    assert are_surely_within(weights, squared, 0.0, 1 + 1e-6)
    assert not are_surely_within(2 * weights, squared, 0.0, 1 + 1e-6)
    assert not are_surely_within(-weights, squared, 0.0, 1 + 1e-6)
    assert not are_surely_within.plain(weights, squared, 0.0, 1 + 1e-6)


@pytest.mark.parametrize("value", [0.0, torch.inf, torch.nan])
def test_what_is_not_finite_is_found_by_both(value):
    from sordino.runtime_checks.lot_checks import are_all_finite

    tensors = [torch.randn(3, 4), torch.tensor([1.0, value])]
    assert are_all_finite(tensors) == are_all_finite.plain(tensors) == (value == 0.0)


def test_sums_in_float64_have_the_same_bits():
    from sordino.release.release import add_in_float64

    torch.manual_seed(0)
    out, first, second = torch.randn(3, 1000).mul(torch.tensor([[1.0], [1e-4], [300.0]])).unbind()
    again = out.clone()
    add_in_float64([(out, first, second)], 0.3)
    add_in_float64.plain([(again, first, second)], 0.3)
    assert torch.equal(out, again)
    alone, twice = torch.randn(5), torch.randn(5)
    sums = [alone.clone(), alone.clone()]
    add_in_float64([(sums[0], twice)], 0.5)
    add_in_float64.plain([(sums[1], twice)], 0.5)
    assert torch.equal(*sums)


class Pooled(nn.Module):
    """A convolution, a pooling, and a chain of small layers: each of the engine's accelerations has something to do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 8, 3), nn.MaxPool2d(2)
        self.head = nn.Sequential(nn.Linear(72, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.conv(x)).flatten(1))


def _losses(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().sum(1)


def test_a_model_without_them_has_the_same_gradients(monkeypatch):
    torch.manual_seed(0)
    model, x, w = Pooled(), torch.randn(6, 3, 8, 8), torch.rand(6, 1)

    def measure() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        found = Captured(PerformanceOptions(measure=False)).per_sample(model, _losses, (x,))
        return found.norms().squared, found.weighted_sum(w)

    fast, fast_sum = measure()
    monkeypatch.setattr(module_plan, "_FASTER_RULES", [])
    monkeypatch.setattr(module_plan, "_STAND_INS", [])
    monkeypatch.setattr(batch_result, "_FINDERS", [])
    plain, plain_sum = measure()
    torch.testing.assert_close(fast, plain, rtol=1e-5, atol=1e-12)
    torch.testing.assert_close(fast_sum, plain_sum, rtol=1e-4, atol=1e-6)

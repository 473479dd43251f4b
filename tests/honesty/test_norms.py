"""Norms and sums in floating point: a record never moves the sum by more than the bound and its declared slack."""

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import sordino as sd
from tests.contracts.hunter import tap_releases
from tests.honesty.door import moved

ROUNDED = 1.001
"""The released value is rounded to float32 after noise, which costs nothing; this is above that."""


def linear(inputs: int = 1, outputs: int = 1):
    def make() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Linear(inputs, outputs, bias=False)
        nn.init.ones_(model.weight)
        return model

    return make


def summed(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).flatten(1).sum(1)


def neighbours(x: Tensor, last: Tensor) -> tuple[TensorDataset, TensorDataset]:
    return TensorDataset(torch.cat([x, last])), TensorDataset(x)


def within(found: float | None, what: str) -> None:
    assert found is None or found < ROUNDED, f"{what}: one record moved the sum by {found:.3g} times the bound"


def spread(records: int, positions: int, inputs: int = 32) -> Tensor:
    """Ordinary records: something at the first position, nothing after it."""
    x = torch.zeros(records, positions, inputs)
    x[:, 0] = 0.5
    return x


@pytest.mark.parametrize("positions", [2, 8])
@pytest.mark.parametrize("power", [24, 30, 34])
def test_positions_that_cancel_do_not_wipe_out_the_others(power, positions):
    """A record (v, −v) has next to no gradient; on its way through the sum it takes the others' last bits with it."""
    v = torch.zeros(1, positions, 32)
    v[0, 0], v[0, 1] = 2.0**power, -(2.0**power)
    here, there = neighbours(spread(64, positions), v)
    within(moved(linear(32, 64), summed, here, there), f"a record (v, −v), v = 2^{power}")


@pytest.mark.parametrize("power", [24, 30, 34])
def test_positions_that_cancel_nearly_are_measured(power):
    """One record beside a short one: what it contributes is within the bound, whatever its norm was read as."""
    v = torch.zeros(1, 8, 32)
    v[0, 0], v[0, 1], v[0, 2] = 2.0**power, -(2.0**power), 3.0
    here, there = neighbours(1e-3 * spread(1, 8), v)
    within(moved(linear(32, 64), summed, here, there), f"a record (v, −v, 3), v = 2^{power}")


def two_uses(model: nn.Module, x: Tensor) -> Tensor:
    return model(x[:, 0]).sum(1) - model(x[:, 1]).sum(1)


@pytest.mark.parametrize("power", [20, 24, 30])
def test_two_uses_of_a_parameter_that_cancel_do_not_wipe_out_the_others(power):
    v = torch.full((1, 2, 32), 2.0**power)
    here, there = neighbours(spread(64, 2), v)
    within(moved(linear(32, 64), two_uses, here, there), f"uses v and −v, v = 2^{power}")


@pytest.mark.parametrize("scale", [(1e-23, 1e15), (2e-23, 1e18), (1e-30, 1e15), (1e-20, 1e-3)])
def test_products_that_underflow_do_not_read_as_zero(scale):
    """‖a‖²‖g‖² with ‖a‖² below the smallest float, under a weight of bound over norm."""
    small, large = scale

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x * small).sum(1) * large

    here, there = neighbours(torch.zeros(3, 4), torch.ones(1, 4))
    query = sd.NoisySum(sd.Normalised(1.0), sd.Gaussian(1.0))
    within(moved(linear(4), loss, here, there, query=query), f"inputs of {small:g}, slopes of {large:g}")


@pytest.mark.parametrize("scale", [(1e19, 1e-19), (1e25, 1e-25)])
def test_products_that_overflow_leave_the_record_out_or_bounded(scale):
    large, small = scale

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x * large).sum(1) * small

    here, there = neighbours(torch.zeros(3, 4), torch.ones(1, 4))
    within(moved(linear(4), loss, here, there), f"inputs of {large:g}, slopes of {small:g}")


SLACK = 1e-3
"""Sums of a thousand float32 values round by less; how many chunks there are must not matter."""


def summed_at_the_door(n: int) -> Tensor:
    """The sum of n aligned records before noise, in chunks of a thousand."""
    seen: list[Tensor] = []

    def tap(value, sensitivity, noise):
        seen.append(torch.cat([v.flatten().double() for v in value.values()]))

    private = sd.Private(linear(16)(), summed, sd.NoisySum(sd.Flat(0.7), sd.Gaussian(1.0)), seed=0)
    data = TensorDataset(torch.full((n, 16), 1 / 3))
    with tap_releases(tap):
        for lot in private.draws(data, sd.Full(), steps=1, expected_batch=1.0, physical_batch=1000):
            private.backward(lot)
    return seen[0]


@pytest.mark.parametrize("n", [100_000, 500_000])
def test_aligned_records_add_up(n):
    """A running sum in float32 has steps of its own, which grow with it."""
    sums = [summed_at_the_door(n + more) for more in range(5)]
    worst = max(float((one - two).norm()) / 0.7 for one, two in itertools.pairwise(sums))
    assert worst < 1 + SLACK, f"{n} aligned records in chunks: one more moved the sum by {worst:.4f} times the bound"

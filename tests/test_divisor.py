"""What a sum is divided by is the public number that was given, for every number of records, to the last digits."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sordino as sd

RECORDS = [1, 2, 3, 7, 8, 31, 64, 97, 101, 128, 255, 1001]


def released(n: int, mesh: str | None, expected_batch: float | None, physical_batch: int | None = None) -> float:
    """Returns the released mean of n gradients that are 1 each, with noise of 1e-7 and less."""
    model = nn.Linear(1, 1, bias=False)
    query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1e-9))
    private = sd.Private(model, lambda m, x: m(x).flatten(), query, seed=0, mesh=mesh)
    options = {} if expected_batch is None else {"expected_batch": expected_batch}
    for lot in private.draws(TensorDataset(torch.ones(n, 1)), sd.Full(), 1, physical_batch=physical_batch, **options):
        private.backward(lot)
    return float(model.weight.grad)


@pytest.mark.parametrize("mesh", [None, "single"])
@pytest.mark.parametrize("n", RECORDS)
def test_a_sum_is_divided_by_the_expected_batch(n, mesh):
    for expected in (None, 10.0, n + 0.5):
        wanted = n / (n if expected is None else expected)
        assert released(n, mesh, expected) == pytest.approx(wanted, rel=2e-6)


@pytest.mark.parametrize("mesh", [None, "single"])
@pytest.mark.parametrize("n", [7, 64, 101])
def test_so_it_is_when_a_lot_is_cut_into_chunks(n, mesh):
    assert released(n, mesh, None, physical_batch=5) == pytest.approx(1.0, rel=2e-6)


@pytest.mark.parametrize("n", RECORDS)
@pytest.mark.parametrize("sampler", [sd.Poisson(0.37), sd.BallsInBins(5)], ids=repr)
def test_the_number_that_stands_in_for_it_is_the_rate_times_the_records(sampler, n):
    rate = 0.37 if isinstance(sampler, sd.Poisson) else 1 / 5
    assert sampler.expected_size(n) == pytest.approx(rate * n, rel=1e-12)

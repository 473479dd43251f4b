"""The textbook means: their noise and bounds, their ε, and errors as large as the theory says."""

import math

import pytest
import torch

import sordino as sd
from sordino.accounting import PLD
from sordino.events import Relation
from sordino.statistics import (
    ask,
    binary_error,
    binary_mean,
    dry_ask,
    scalar_bound,
    scalar_error,
    scalar_mean,
    vector_bound,
    vector_error,
    vector_mean,
)

RUNS = 600


def errors(mean, sample, truth, n):
    """Squared errors of so many runs, each on fresh data."""
    generator, found = torch.Generator().manual_seed(0), []
    for run in range(RUNS):
        x = sample(generator)
        found.append(float((ask(mean, x, ledger=sd.Ledger(), expected_batch=n, seed=run) - truth).square().sum()))
    return torch.tensor(found)


def test_the_binary_mean_has_the_error_of_its_formula():
    p, n, epsilon = 0.3, 50, 0.2
    found = errors(binary_mean(epsilon), lambda g: (torch.rand(n, generator=g) < p).double(), p, n)
    error = found.std().item() / math.sqrt(RUNS)
    assert found.mean().item() == pytest.approx(binary_error(p, n, epsilon), abs=4 * error)
    assert error < 0.12 * binary_error(p, n, epsilon)  # sharp enough to tell n²ε² from nε


def test_the_scalar_mean_stays_within_its_bound_and_clipping_is_in_it():
    """Heavy tails: x = ±10 with probability 1/100, else 0: σ = 1, τ = 5 clips all that is not 0, the mean is 0.098."""
    n, epsilon = 200, 0.5
    tau = scalar_bound(1.0, n, epsilon)
    assert tau == pytest.approx(5.0)

    def sample(g):
        return (
            10.0 * (torch.rand(n, generator=g) < 0.0099).double()
            - 10.0 * (torch.rand(n, generator=g) < 0.0001).double()
        )

    found = errors(scalar_mean(1.0, n, epsilon), sample, 0.098, n)
    bound = scalar_error(1.0, n, epsilon)
    assert 0.25 * bound < found.mean().item() < bound


def test_the_vector_mean_stays_within_its_bound():
    n, d, epsilon, delta = 100, 40, 0.5, 1e-3
    mean = vector_mean(1.0, n, d, epsilon, delta)
    found = errors(mean, lambda g: torch.randn(n, d, generator=g) / math.sqrt(d), 0.0, n)
    bound = vector_error(1.0, n, d, epsilon, delta)
    error = found.std().item() / math.sqrt(RUNS)  # nearly all of the bound is the noise's variance, which is exact
    assert 0.9 * bound < found.mean().item() < bound + 4 * error


def test_thresholds_are_those_of_the_sources():
    assert scalar_bound(2.0, 100, 0.25) == pytest.approx(2.0 * math.sqrt(25) / 2)
    assert vector_bound(2.0, 100, 16, 0.25) == pytest.approx(2.0 * math.sqrt(25) / 2)  # 16^¼ = 2


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_each_costs_what_the_textbook_says(epsilon):
    delta = 1e-6
    assert PLD().epsilon(dry_ask(binary_mean(epsilon)), 0.0) == pytest.approx(epsilon, rel=1e-3)
    replaced = PLD(relation=Relation.REPLACE)
    scalar = dry_ask(scalar_mean(1.0, 100, epsilon))
    assert replaced.epsilon(scalar, 0.0) == pytest.approx(epsilon, rel=1e-3)
    assert PLD().epsilon(scalar, 0.0) == pytest.approx(epsilon / 2, rel=1e-3)
    assert replaced.epsilon(dry_ask(vector_mean(1.0, 100, 5, epsilon, delta)), delta) <= epsilon

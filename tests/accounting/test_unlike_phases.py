"""A composition of unlike phases costs at least each of its parts, and at most their sum."""

import math

import numpy as np
import pytest

from sordino import accounting as A
from sordino.events import FixedSize, Gaussian, Poisson, Repeat, Together
from tests.accounting.compositions import composition, log_uniform, pair_of_phases

ROUNDING = 1e-9

# at δ = 1e-5 these gave 0.547, 0.341, 0.513, 0.244 and 0.001
PAIRS = {
    "few releases of little noise": (Gaussian(20.0), Repeat(Poisson(0.001, Gaussian(0.5)), 10)),
    "one release of hardly any noise": (Gaussian(10.0), Poisson(0.001, Gaussian(0.3))),
    "ordinary numbers": (Gaussian(10.0), Repeat(Poisson(0.01, Gaussian(1.0)), 100)),
    "a thousand releases": (Gaussian(20.0), Repeat(Poisson(0.001, Gaussian(0.8)), 1000)),
    "fixed size": (Gaussian(5.0), Repeat(FixedSize(60, 60_000, Gaussian(0.8)), 10)),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("turned", [False, True])
def test_a_composition_costs_at_least_each_of_its_parts(name, turned):
    first, second = PAIRS[name]
    both = Together(second, first) if turned else Together(first, second)
    low, high = A.PLD().bounds(both, 1e-5)
    alone = max(A.PLD().bounds(part, 1e-5)[0] for part in (first, second))
    apart = sum(A.PLD().epsilon(part, 0.5e-5) for part in (first, second))
    assert alone <= high <= apart
    assert low <= high
    assert high - low <= 0.3 * high if name == "fixed size" else high - low <= 2e-3 * high


def check(parts, delta):
    """The composition lies between the most of its parts and their sum."""
    both = Together(*parts)
    alone = A.PLD(relation=A.relation_of(both))
    low, high = A.PLD().bounds(both, delta)
    assert 0 <= low <= high < math.inf
    assert max(alone.bounds(part, delta)[0] for part in parts) <= high * (1 + ROUNDING) + ROUNDING
    assert high <= sum(alone.epsilon(part, delta / len(parts)) for part in parts) * (1 + ROUNDING) + ROUNDING


@pytest.mark.parametrize("seed", range(24))
def test_a_wide_phase_beside_a_narrow_one(seed):
    rng = np.random.default_rng([seed, 0])
    check(pair_of_phases(rng), log_uniform(rng, 1e-9, 1e-2))


@pytest.mark.parametrize("seed", range(16))
def test_phases_of_every_kind(seed):
    rng = np.random.default_rng([seed, 3])
    check(composition(rng, 2 + seed % 4), log_uniform(rng, 1e-9, 1e-2))


@pytest.mark.parametrize("phases", [8, 13, 20])
def test_many_unlike_phases(phases):
    rng = np.random.default_rng([phases, 2])
    check(composition(rng, phases), log_uniform(rng, 1e-9, 1e-2))


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(9))
def test_nine_hundred_pairs(hundred):
    for seed in range(100 * hundred, 100 * (hundred + 1)):
        rng = np.random.default_rng([seed, 0])
        check(pair_of_phases(rng), log_uniform(rng, 1e-9, 1e-2))


@pytest.mark.slow
@pytest.mark.parametrize("ten", range(30))
def test_three_hundred_compositions_of_every_kind(ten):
    for seed in range(10 * ten, 10 * (ten + 1)):
        rng = np.random.default_rng([seed, 1])
        check(composition(rng, 2 + seed % 5 if seed % 10 else 20), log_uniform(rng, 1e-9, 1e-2))


def test_a_budget_is_not_filled_up_by_a_phase_that_makes_others_cheaper(tmp_path):
    budget = A.Budget.create(tmp_path / "budget.jsonl", epsilon=1.0, delta=1e-5)
    budget.spend(Gaussian(20.0))
    assert not budget.allows(Repeat(Poisson(0.001, Gaussian(0.5)), 10))

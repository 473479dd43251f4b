"""A seeded sample of `bench/accounting_sweep.py`, and what the sweep found: our bounds enclose the truth."""

import math

import pytest

from sordino.accounting import PLD, gaussian_delta
from sordino.events import Gaussian, Group, Mixture, Poisson, Repeat, Together
from tests.accounting import oracle
from tests.accounting.settings import KINDS, compare

SAMPLE_SEED = 7


def test_the_oracle_agrees_with_closed_forms():
    """The Gaussian mechanism, and one Poisson-sampled release (Balle, Barthe & Gaboardi 2018)."""
    for mu, epsilon in ((1.0, 1.0), (1.0, 8.0), (0.05, 0.2), (6.0, 38.0)):
        found = oracle.delta_of([(oracle.Normal(mu), 1)], epsilon)
        assert found.delta == pytest.approx(gaussian_delta(mu, epsilon), rel=1e-9)
        assert found.error < 1e-8 * found.delta
    rate, epsilon = 0.3, 0.5
    found = oracle.delta_of([(oracle.sampled_normal(rate, 1.0), 1)], epsilon)
    exact = rate * gaussian_delta(1.0, math.log1p(math.expm1(epsilon) / rate))
    assert abs(found.delta - exact) <= found.error


def test_the_oracle_agrees_with_an_enumeration():
    parts = [(oracle.sampled_atoms(0.3, oracle.response(0.5, 3)), 6), (oracle.response(0.8, 2), 5)]
    exact = oracle.exact_lattice_delta(parts, 1.0)
    # without a continuous part the integral converges slowly, and says so
    found = oracle.delta_of(parts, 1.0)
    assert abs(found.delta - exact.delta) <= found.error < 0.05 * exact.delta


@pytest.mark.parametrize("number", range(16))
def test_bounds_of_a_random_setting_enclose_the_truth(number):
    wrong = [outcome for outcome in compare(SAMPLE_SEED, number) if outcome.wrong]
    assert not wrong


def test_every_kind_of_event_is_drawn():
    assert len(KINDS) == 15
    assert all(share > 0 for _, share in KINDS.values())


def test_jumps_rarer_than_rounding_are_still_counted():
    """Adding a record: δ is 4.3e-48, and jumps composed apart said 2.8e-48: they had been left out as silent."""
    event = Together(
        Repeat(Poisson(0.0068, Gaussian(0.458)), 17),
        Repeat(Poisson(0.0058, Mixture((0.48, 0.52), (Gaussian(0.88), Gaussian(6.0)))), 28),
        Group(Gaussian(3.777), 2),
    )
    parts = [
        (oracle.sampled_normal(0.0068, 1 / 0.458), 17),
        (
            oracle.Chosen(
                (0.48, 0.52), (oracle.sampled_normal(0.0058, 1 / 0.88), oracle.sampled_normal(0.0058, 1 / 6.0))
            ),
            28,
        ),
        (oracle.Normal(2 / 3.777), 1),
    ]
    for epsilon in (6.8, 7.3, 7.78, 8.2):
        low, high = PLD().delta_bounds(event, epsilon)
        truth = oracle.delta_of(parts, epsilon)
        assert low <= truth.delta + truth.error
        assert truth.delta - truth.error <= high

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
    """Losses on a lattice, whose transform comes back after it was small: 2,020 answers, alone and beside normal noise."""
    answers = oracle.sampled_atoms(0.1075, oracle.response(0.388, 2))
    exact = oracle.exact_lattice_delta([(answers, 2020)], 27.36)
    alone = oracle.delta_of([(answers, 2020)], 27.36)
    assert abs(alone.delta - exact.delta) <= alone.error
    # beside a Gaussian release: the average of its profile over the losses of the answers, when the record is removed
    mu, epsilon, count = 0.7, 20.0, 300
    found = oracle.Composition([(answers, count), (oracle.Normal(mu), 1)], False).delta(epsilon)
    average = math.fsum(
        math.comb(count, k)
        * answers.p[0] ** k
        * answers.p[1] ** (count - k)
        * gaussian_delta(
            mu,
            epsilon - k * math.log(answers.p[0] / answers.q[0]) - (count - k) * math.log(answers.p[1] / answers.q[1]),
        )
        for k in range(count + 1)
    )
    assert abs(found.delta - average) <= found.error + 1e-9 * average
    assert found.error < 1e-6 * average


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

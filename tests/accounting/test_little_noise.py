"""Accounts of hardly any noise answer: a huge ε that holds, in little time."""

import math
import time

import pytest

from sordino import accounting as A
from sordino.app.cli import account
from sordino.events import (
    BallsInBins,
    FixedSize,
    Gaussian,
    Group,
    Laplace,
    Mixture,
    Poisson,
    Repeat,
    Shuffle,
    Together,
    TruncatedPoisson,
)

SECONDS = 5.0  # processor time; each takes well under two

RUNS = {
    "poisson": lambda g: Repeat(Poisson(0.01, g), 1000),
    "rare": lambda g: Repeat(Poisson(1e-6, g), 100),
    "fixed size": lambda g: Repeat(FixedSize(60, 60_000, g), 1000),
    "shuffle": lambda g: Repeat(Shuffle(g), 30),
    "balls in bins": lambda g: Repeat(BallsInBins(240, g), 30),
    "truncated": lambda g: Repeat(TruncatedPoisson(0.01, 300, 20_000, g), 100),
    "mixture": lambda g: Repeat(Poisson(0.01, Mixture((0.5, 0.5), (g, Gaussian(1.0)))), 10),
    "group": lambda g: Group(Repeat(Poisson(0.01, g), 100), 3),
    "several on one draw": lambda g: Repeat(Poisson(0.01, Together(g, Laplace(1.0))), 10),
    "unlike": lambda g: Together(Gaussian(5.0), Repeat(Poisson(0.01, g), 100)),
}


@pytest.mark.parametrize("sigma", [0.001, 0.01, 0.05])
@pytest.mark.parametrize("name", RUNS)
def test_the_answer_is_finite_and_quick(name, sigma):
    start = time.process_time()
    event = RUNS[name](Gaussian(sigma))
    low, high = A.PLD().bounds(event, 1e-5)
    low_delta, high_delta = A.PLD().delta_bounds(event, 1.0)
    assert time.process_time() - start < SECONDS
    assert 0 <= low <= high < math.inf
    assert high > 1 / sigma  # whoever took part is known for sure
    assert 0 <= low_delta <= high_delta <= 1


@pytest.mark.parametrize(("sigma", "count"), [(0.05, 1000), (0.1, 50)])
def test_the_number_of_times_taken_part_decides(sigma, count):
    """δ is at most Σ_m P[m times taken part]·δ_G(√m/σ) (convexity), and hardly less."""
    low, high = A.PLD().bounds(Repeat(Poisson(0.01, Gaussian(sigma)), count), 1e-5)

    def mixture(epsilon):
        return sum(
            math.exp(
                math.lgamma(count + 1) - math.lgamma(m + 1) - math.lgamma(count - m + 1)
                + m * math.log(0.01) + (count - m) * math.log(0.99)
            ) * A.gaussian_delta(math.sqrt(m) / sigma, epsilon)
            for m in range(1, count + 1)
        )  # fmt: skip

    assert mixture(low * (1 - 1e-9)) >= 1e-5
    assert mixture(1.1 * high) <= 1e-5


@pytest.mark.parametrize("accountant", [A.RDP(), A.Moments(), A.Basic(), A.Advanced()], ids=lambda a: a.name)
@pytest.mark.parametrize("name", ["poisson", "fixed size", "shuffle"])
def test_the_other_accountants_answer_too(accountant, name):
    start = time.process_time()
    found = accountant.epsilon(RUNS[name](Gaussian(0.001)), 1e-5)
    assert time.process_time() - start < SECONDS
    assert found >= A.PLD().bounds(RUNS[name](Gaussian(0.001)), 1e-5)[0]


def test_renyi_between_whole_orders_is_a_chord_above_the_curve():
    """Just below and above the noise at which quadrature ends, orders between have nearly the same divergence."""
    below, above = (A.RDP(orders=(2.5, 7.3)).curve(Poisson(0.01, Gaussian(s))) for s in (1 / 29.9, 1 / 30.1))
    assert (above >= below).all()


@pytest.mark.parametrize("sigma", [0.001, 0.05])
def test_live_epsilon_answers(sigma):
    start = time.process_time()
    meter = A.Meter(Poisson(0.01, Gaussian(sigma)), 1e-5)
    found = [meter.epsilon(count) for count in (1, 20, 100, 1000, 1001)]
    assert time.process_time() - start < SECONDS
    assert found == sorted(found)
    assert found[-1] >= A.PLD().bounds(Repeat(Poisson(0.01, Gaussian(sigma)), 1001), 1e-5)[0]


@pytest.mark.parametrize("epsilon", [1e3, 1e5])
def test_calibration_reaches_targets_that_protect_nobody(epsilon):
    start = time.process_time()
    pld = A.PLD()
    sigma = A.calibrate(lambda s: Repeat(Poisson(0.01, Gaussian(s)), 1000), pld, epsilon, 1e-5)
    assert time.process_time() - start < 4 * SECONDS
    assert pld.epsilon(Repeat(Poisson(0.01, Gaussian(sigma)), 1000), 1e-5) <= epsilon


@pytest.mark.parametrize("sampling", ["poisson", "shuffle", "balls-in-bins", "fixed-size"])
def test_the_command_line_answers(capsys, sampling):
    start = time.process_time()
    command = account.Command(
        rate=0.01, multiplier=0.001, steps=1000, sampling=sampling, dataset_size=60_000, explain=True
    )
    assert command.run() == 0
    assert time.process_time() - start < SECONDS
    assert "DP by PLD" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["clt", "strong"])
@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_what_is_no_bound_is_not_worded_as_one(capsys, name, epsilon):
    assert account.Command(rate=0.01, multiplier=4.0, steps=1000, accountant=name, epsilon=epsilon).run() == 0
    said = capsys.readouterr().out
    assert "-DP" not in said
    assert "estimate, no guarantee" in said

"""Sorting with a guarantee: each record's own coin at its own rate, charged at the largest; and the private quantile."""

import math

import numpy as np
import pytest
import torch

import sordino as sd
from sordino.accounting import PLD
from sordino.events import Exponential, Gaussian, NonPrivate, Poisson, Repeat, Together
from sordino.ledger.claims import SEED, make_claim
from sordino.release.release import Steps, choose, tap_releases
from sordino.release.sealed import Sealed
from sordino.rng.streams import Rng
from sordino.sampling import Band
from sordino.sampling.sampler import draw_lots
from tests.problems import linear, private
from tests.test_sorted import Asked, lots

DPSGD = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
MNIST, STEPS, DELTA = 60_000, 7200, 1e-5


@pytest.mark.parametrize(("times", "epsilon"), [(1, 1.61), (2, 3.51), (3, 5.58), (4, 7.83)])
def test_the_setting_of_source_001(times, epsilon):
    """240 lots a pass: privacy.md §2.4."""
    sampler = sd.Threshold(1.0, low=0.5 / 240, high=times / 240, refresh=240)
    event = sd.dry_run(DPSGD, sampler, dataset_size=100, steps=240)  # the number of records does not enter
    assert event == Repeat(Poisson(times / 240, Gaussian(1.1)), 240)
    said = make_claim(Repeat(event, STEPS // 240), DELTA, PLD())
    assert said.epsilon == pytest.approx(epsilon, abs=0.005)


def test_every_record_is_drawn_at_its_own_rate():
    lengths = np.linspace(0, 4, 200)
    counts = np.zeros(200)
    sampler = sd.Threshold(2.0, low=0.1, high=0.5, refresh=100)
    for rows in lots(sampler, Asked(lengths), 1000):
        counts[rows] += 1
    rates = np.where(lengths >= 2, 0.5, 0.1)
    error = np.sqrt(rates * (1 - rates) / 1000)
    assert np.abs((counts / 1000 - rates) / error).max() < 5  # 200 normal values
    assert np.mean((counts / 1000 - rates) / error) == pytest.approx(0, abs=0.3)


def test_coins_of_different_records_and_lots_are_independent():
    taken = np.zeros((2000, 20))
    for k, rows in enumerate(lots(sd.ByLength(Band(0, np.inf, 0.5), most=0.5, refresh=50), Asked(np.ones(20)), 2000)):
        taken[k, rows] = 1
    within = np.corrcoef(taken.T) - np.eye(20)
    between = np.corrcoef(taken[1:].T, taken[:-1].T)[:20, 20:]
    assert max(np.abs(within).max(), np.abs(between).max()) < 0.12  # 5.4 standard errors of 590 correlations


def test_a_rate_above_the_promised_one_is_cut_and_one_that_is_no_number_is_nothing():
    sizes = [len(rows) for rows in lots(sd.ByLength(lambda r: 0 * r + 7.0, most=0.25), Asked(np.ones(400)), 50)]
    assert np.mean(sizes) == pytest.approx(100, abs=6)  # standard error 1.2
    assert not any(len(rows) for rows in lots(sd.ByLength(lambda r: r * np.nan, most=0.5), Asked(np.ones(9)), 5))


def test_lengths_are_taken_every_so_many_lots_and_are_stale_in_between():
    records = Asked([0.0] * 50 + [5.0] * 50)
    draws = draw_lots(sd.Threshold(1.0, low=0.0, high=1.0, refresh=2), records, Rng.from_seed(0), 0)
    assert next(draws).indices.tolist() == list(range(50, 100))
    records.values = records.values[::-1].copy()
    assert next(draws).indices.tolist() == list(range(50, 100))
    assert next(draws).indices.tolist() == list(range(50))
    assert records.asked == [100, 100]
    assert not records.has_looked


def test_every_released_threshold_is_charged_on_the_whole_data():
    quantile = sd.PrivateQuantile(0.75, ceiling=10.0, epsilon=0.05)
    sampler = sd.Threshold(quantile, low=0.1, high=0.2, refresh=3)
    run = private()
    for lot in run.draws(linear(), sampler, steps=6, expected_batch=10):
        run.backward(lot)
    three = Repeat(Poisson(0.2, Gaussian(1.0)), 3)
    assert run.event == sd.events.canonical(Together(Exponential(0.05), three, Exponential(0.05), three))
    assert isinstance(run.claim(1e-5), sd.Guarantee)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sd.Threshold(-1.0, 0.1, 0.2), "threshold=-1.0"),
        (lambda: sd.Threshold(1.0, 0.1, 1.2), "high=1.2"),
        (lambda: sd.Threshold(1.0, 0.0, 0.0), "nobody would ever be drawn"),
        (lambda: sd.ByLength(Band(0, 1, 0.5), most=0.0), "most=0.0"),
        (lambda: sd.PrivateQuantile(1.0, 1.0, 1.0), "quantile=1.0"),
        (lambda: sd.PrivateQuantile(0.5, math.inf, 1.0), "ceiling=inf"),
        (lambda: sd.PrivateQuantile(0.5, 1.0, 0.0), "epsilon=0.0"),
    ],
)
def test_what_cannot_be_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def log_density(steps: Steps, sensitivity: float, epsilon: float, points: torch.Tensor) -> torch.Tensor:
    """ln of the density ∝ exp(ε u(x) / 2Δ) at points, by the definition."""
    score = steps.heights * epsilon / (2 * sensitivity)
    total = torch.logsumexp(score + steps.edges.diff().log(), 0)
    at = torch.searchsorted(steps.edges, points, right=True).sub(1).clamp(0, len(score) - 1)
    return score[at] - total


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.75])
def test_no_neighbour_changes_the_density_of_a_quantile_by_more_than_epsilon(quantile):
    rng = np.random.default_rng(int(100 * quantile))
    worst = 0.0
    for _ in range(200):
        n = int(rng.integers(1, 12))
        values = torch.from_numpy(rng.choice([0, 1], n) * rng.uniform(0, 12, n))  # beyond the ceiling too, and ties
        mechanism = sd.PrivateQuantile(quantile, ceiling=10.0, epsilon=0.8)
        one, other = (mechanism.utility(each) for each in (values, values[:-1]))
        edges = torch.cat([one.edges, other.edges]).unique()
        points = (edges[1:] + edges[:-1]) / 2
        a, b = (log_density(each, mechanism.sensitivity, 0.8, points) for each in (one, other))
        worst = max(worst, float((a - b).abs().max()))
    assert worst <= 0.8 + 1e-12
    assert worst > 0.25  # and the bound is not idle


def test_a_quantile_is_drawn_from_its_density():
    values = torch.tensor([1.0, 2.0, 2.0, 4.0, 7.0])
    mechanism = sd.PrivateQuantile(0.5, ceiling=10.0, epsilon=2.0)
    rng = Rng.from_seed(7)
    drawn_ = torch.tensor([mechanism(Sealed(values), rng)[0] for _ in range(4000)], dtype=torch.float64)
    grid = torch.linspace(0.0005, 9.9995, 10_000, dtype=torch.float64)
    density = log_density(mechanism.utility(values), mechanism.sensitivity, 2.0, grid).exp() / 1000
    expected = density.cumsum(0)
    found = torch.searchsorted(drawn_.sort().values, grid) / 4000
    assert float(density.sum()) == pytest.approx(1, abs=1e-6)
    assert float((found - expected).abs().max()) < 0.03  # Kolmogorov: 0.03·√4000 = 1.9, probability 0.0015


def test_a_quantile_of_many_numbers_is_close_and_of_equal_ones_stays_in_range():
    values = torch.from_numpy(np.random.default_rng(0).uniform(0, 5, 5000))
    found, event = sd.PrivateQuantile(0.75, ceiling=10.0, epsilon=1.0)(Sealed(values), Rng.from_seed(0))
    assert found == pytest.approx(3.75, abs=0.1)
    assert event == Exponential(1.0)
    for value in (0.0, 10.0, 1e9, math.nan):
        same, _ = sd.PrivateQuantile(0.5, 10.0, 1.0)(Sealed(torch.full((20,), value)), Rng.from_seed(1))
        assert 0 <= same <= 10


def test_a_quantile_enters_a_ledger():
    ledger = sd.Ledger()
    sd.PrivateQuantile(0.5, ceiling=10.0, epsilon=0.3).of(torch.rand(100), ledger=ledger)
    assert ledger.event() == Exponential(0.3)
    assert ledger.claim(delta=1e-8).epsilon == pytest.approx(0.3, rel=1e-3)


def test_a_quantile_may_have_any_seed_and_the_claim_tells_it():
    found = []
    for seed in (0, 0, 1):
        ledger = sd.Ledger()
        quantile = sd.PrivateQuantile(0.5, ceiling=10.0, epsilon=0.3)
        found.append(quantile.of(torch.linspace(0, 5, 100), ledger=ledger, seed=seed))
        assert SEED in ledger.disclosed
    assert found[0] == found[1] != found[2]


def test_a_choice_while_the_door_is_tapped_has_no_guarantee():
    with tap_releases(lambda *_: None):
        _, event = choose(Sealed(torch.zeros(3)), 1.0, 1.0, Rng.from_seed(0))
    assert isinstance(event, NonPrivate)

"""Sensitivities and prices of correlated noise against brute force that shares no code with them.

Coefficients come from binomial numbers in exact fractions, patterns of participation from all subsets of the steps, and
prices from mixtures over all patterns, integrated on a grid.
"""

import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import sordino as sd
from sordino.accounting import PLD
from sordino.events import BallsInBins, Correlated, CyclicPoisson, FixedOrder, Gaussian, Poisson, Repeat, Together
from sordino.matrix_factorization import participation
from sordino.matrix_factorization.strategies import sensitivity_of
from sordino.matrix_factorization.workloads import Workload

GOLDEN = Path(__file__).parent.parent / "golden"
ENTRIES = json.loads((GOLDEN / "correlated.json").read_text())["entries"]
TRUNCATED = json.loads((GOLDEN / "truncated_poisson.json").read_text())["entries"]


def square_root(count):
    """Returns binom(2k, k) / 4^k for k below `count`: the square root of 1 / (1 − x)."""
    return [Fraction(math.comb(2 * k, k), 4**k) for k in range(count)]


def inverse_banded(bands, steps):
    """Returns the inverse of the power series of √(1 − x) that is cut after `bands` terms."""
    cut = [Fraction(-math.comb(2 * k, k), 4**k * (2 * k - 1)) if k < bands else Fraction(0) for k in range(steps)]
    found = [Fraction(1)]
    for t in range(1, steps):
        found.append(-sum((cut[k] * found[t - k] for k in range(1, t + 1)), Fraction(0)))
    return found


def buffered(decays, weights, steps):
    """Returns 1, Σ ω, Σ ω θ, Σ ω θ², …"""
    return [1.0, *(sum(w * t**k for t, w in zip(decays, weights, strict=True)) for k in range(steps - 1))]


def lower_triangular(coefficients, steps):
    """Returns a Toeplitz matrix as a list of rows."""
    held = [float(c) for c in coefficients[:steps]]
    held += [0.0] * (steps - len(held))
    return [[held[i - j] if i >= j else 0.0 for j in range(steps)] for i in range(steps)]


def worst_of_all_patterns(matrix, separation, participations):
    """Returns √ of the largest Σ |⟨column i, column j⟩| over every subset of the steps that is a pattern."""
    steps = len(matrix[0])
    columns = [[row[j] for row in matrix] for j in range(steps)]
    products = [[abs(math.fsum(a * b for a, b in zip(x, y, strict=True))) for y in columns] for x in columns]
    worst = 0.0
    for chosen in itertools.product((False, True), repeat=steps):
        pattern = [j for j in range(steps) if chosen[j]]
        if len(pattern) > participations or any(b - a < separation for a, b in itertools.pairwise(pattern)):
            continue
        worst = max(worst, math.fsum(products[i][j] for i in pattern for j in pattern))
    return math.sqrt(worst)


FITTED = {
    "momentum": Workload(10, momentum=0.9),
    "decay": Workload(10, weight_decay=0.2),
    "schedule": Workload(10, 0.5, 0.0, tuple(1 - k / 10 for k in range(10))),
}
CASES = {
    "identity": (sd.Banded(1), lambda n: [1.0]),
    "square root of 3 bands": (sd.Banded(3), lambda n: square_root(3)),
    "whole square root": (sd.Banded(99), square_root),
    "inverse of 2 bands": (sd.InverseBanded(2), lambda n: inverse_banded(2, n)),
    "inverse of 4 bands": (sd.InverseBanded(4), lambda n: inverse_banded(4, n)),
    "two buffers": (sd.Buffered((0.9, 0.5), (0.2, 0.3)), lambda n: buffered((0.9, 0.5), (0.2, 0.3), n)),
    "slow buffer": (sd.Buffered((0.999,), (0.5,)), lambda n: buffered((0.999,), (0.5,), n)),
    **{
        name: (strategy := sd.Banded.for_workload(4, workload), lambda n, c=strategy.coefficients: c)
        for name, workload in FITTED.items()
    },
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("steps", [1, 5, 10])
def test_a_sensitivity_is_that_of_the_worst_of_all_subsets(name, steps):
    strategy, coefficients = CASES[name]
    matrix = lower_triangular(coefficients(steps), steps)
    for separation, uses in [(1, 99), (2, 99), (2, 2), (3, 99), (3, 1), (4, 2), (7, 99)]:
        if separation > steps:
            continue
        found = sensitivity_of(strategy, steps, separation, uses)
        true = worst_of_all_patterns(matrix, separation, uses)
        assert true * (1 - 1e-14) <= found <= true * (1 + 1e-9)
        dense = participation.matrix_sensitivity(np.array(matrix), separation, uses)
        assert true * (1 - 1e-14) <= dense <= true * (1 + 1e-9)


@pytest.mark.parametrize("seed", [0, 5, 11])
def test_signed_matrices_are_never_below_what_gradients_can_do(seed):
    """Any matrix: all subsets by absolute products, and 200 sets of gradient vectors that none may exceed."""
    generator = np.random.default_rng(seed)
    matrix = np.tril(generator.normal(size=(8, 8)))
    for separation, uses in [(1, 3), (2, 3), (3, 99), (8, 1)]:
        found = participation.matrix_sensitivity(matrix, separation, uses)
        true = worst_of_all_patterns(matrix.tolist(), separation, uses)
        assert true * (1 - 1e-14) <= found <= true * (1 + 1e-9)
        for _ in range(200):
            # A pattern by chance, and a unit vector of three coordinates at each of its steps.
            start, gaps = int(generator.integers(3)), separation + generator.integers(0, 2, size=8)
            pattern = [j for j in np.cumsum([start, *gaps]) if j < 8][:uses]
            gradients = np.zeros((8, 3))
            drawn = generator.normal(size=(len(pattern), 3))
            gradients[pattern] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
            assert np.linalg.norm(matrix @ gradients) <= found * (1 + 1e-12)


def test_a_fixed_order_is_the_worst_of_its_own_patterns():
    for name, (strategy, coefficients) in CASES.items():
        columns = np.array(lower_triangular(coefficients(10), 10))
        for separation in (2, 3, 10):
            true = max(np.linalg.norm(columns[:, first::separation].sum(axis=1)) for first in range(separation))
            assert sensitivity_of(strategy, 10, separation) == pytest.approx(true, rel=1e-12), name


def delta_of_mixtures(columns, rate, sigma, epsilon):
    """Returns δ(ε) of adding or removing a record that takes part at each column with a probability, by quadrature.

    The output lies, up to noise that says nothing, in the plane of the columns. Both mixtures over all patterns are
    integrated on a grid there.
    """
    basis, _ = np.linalg.qr(np.array(columns).T)
    means = np.array(columns) @ basis
    axis = np.linspace(-9 * sigma, 9 * sigma + np.abs(means).sum(), 1501)
    points = np.stack(np.meshgrid(*[axis - np.abs(means).sum() / 2] * len(columns), indexing="ij"), axis=-1)
    volume = (axis[1] - axis[0]) ** len(columns)
    present = np.zeros(points.shape[:-1])
    for chosen in itertools.product((0, 1), repeat=len(columns)):
        chance = math.prod(rate if taken else 1 - rate for taken in chosen)
        centre = np.array(chosen) @ means
        present += chance * np.exp(-((points - centre) ** 2).sum(axis=-1) / (2 * sigma**2))
    absent = np.exp(-(points**2).sum(axis=-1) / (2 * sigma**2))
    unit = volume / (2 * math.pi * sigma**2) ** (len(columns) / 2)
    removed = np.maximum(0.0, present - math.exp(epsilon) * absent).sum() * unit
    added = np.maximum(0.0, absent - math.exp(epsilon) * present).sum() * unit
    return max(removed, added)


@pytest.mark.parametrize(
    ("name", "steps", "groups", "rate", "sigma", "epsilon"),
    [
        ("square root of 3 bands", 6, 3, 0.3, 1.2, 1.5),
        ("square root of 3 bands", 5, 3, 0.99, 2.0, 1.0),
        ("momentum", 8, 4, 0.2, 3.0, 0.3),
        pytest.param("identity", 2, 1, 0.5, 0.7, 2.0, marks=pytest.mark.slow),
        pytest.param("decay", 7, 4, 0.9, 4.0, 0.5, marks=pytest.mark.slow),
        pytest.param("schedule", 7, 5, 0.05, 1.5, 0.4, marks=pytest.mark.slow),
    ],
)
def test_a_cyclic_phase_costs_what_a_mixture_over_all_patterns_costs(name, steps, groups, rate, sigma, epsilon):
    """Also where the phase ends within a cycle. The worst of all groups, at an ε for which δ is not small."""
    strategy, coefficients = CASES[name]
    matrix = np.array(lower_triangular(coefficients(steps), steps))
    true = max(
        delta_of_mixtures(list(matrix[:, group::groups].T), rate, sigma, epsilon) for group in range(min(groups, steps))
    )
    phase = CyclicPoisson(rate, groups, steps, Correlated(sigma, strategy.describe()))
    low, high = PLD().delta_bounds(phase, epsilon)
    assert low - 2e-6 <= true <= high + 2e-6
    assert high - low < 1e-2 * high


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry["group"] == "B"], ids=lambda e: f"n {e['n']}")
def test_the_other_ways_of_the_reference_agree_with_the_bounds(entry):
    phase = CyclicPoisson(
        entry["rate_in_group"], entry["bands"], entry["n"], Correlated(entry["sigma"], ("banded", entry["bands"]))
    )
    low, high = PLD().bounds(phase, entry["delta"])
    if "quadrature" in entry:
        assert low * (1 - 2e-3) <= entry["quadrature"] <= high * (1 + 2e-3)
        assert entry["mc_3sigma"][0] <= high
        assert low <= entry["mc_3sigma"][1]
    if "effective_multiplier" in entry:
        norm = math.sqrt(sum(c * c for c in square_root(entry["bands"])))
        assert entry["column_norm"] == pytest.approx(norm, rel=1e-12)
        assert entry["effective_multiplier"] == pytest.approx(entry["sigma"] / norm, rel=1e-12)
        assert entry["rounds"] == -(-entry["n"] // entry["bands"])


def test_balls_in_bins_have_a_price_without_bands_and_are_refused_with_them():
    for entry in (entry for entry in ENTRIES if entry["group"] == "C"):
        if entry["encoder"] == "identity":
            low, high = PLD().bounds(BallsInBins(entry["bins"], Gaussian(entry["sigma"])), entry["delta"])
            assert (low, high) == pytest.approx(entry["sordino_BallsInBins_bounds"], rel=2e-4)
            assert low * (1 - 1e-4) <= entry["epsilon"] <= high * (1 + 1e-4)
        else:
            with pytest.raises(TypeError, match="correlated noise"):
                BallsInBins(entry["bins"], Correlated(entry["sigma"], ("banded", entry["n"])))


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry["group"] == "D"], ids=lambda e: f"n {e['n']}")
def test_plain_poisson_draws_cost_more_than_the_product_and_are_refused(entry):
    bands = entry["n"] if entry["encoder"] == "sqrt-toeplitz" else int(entry["encoder"].removeprefix("banded-"))
    columns = np.array(lower_triangular(square_root(bands), entry["n"])).T
    product = Together(
        *(Poisson(entry["rate"], Gaussian(entry["sigma"] / np.linalg.norm(column))) for column in columns)
    )
    assert PLD().epsilon(product, entry["delta"]) == pytest.approx(entry["product_of_columns_not_a_bound"], rel=1e-3)
    assert entry["product_of_columns_not_a_bound"] < 0.8 * entry["epsilon"]
    if entry["n"] == 2:
        # The mixture over all patterns, of which the columns are not orthogonal.
        true = delta_of_mixtures(list(columns), entry["rate"], entry["sigma"], entry["epsilon"])
        assert true == pytest.approx(entry["delta"], rel=1e-3)
    with pytest.raises(TypeError, match="correlated noise"):
        Poisson(entry["rate"], Correlated(entry["sigma"], ("banded", bands)))


def test_bands_above_a_group_cost_more_than_they_would_be_charged():
    """Why they are refused: overlapping columns, priced as a product over them, would be too cheap."""
    columns = np.array(lower_triangular(square_root(4), 4)).T[[0, 2]]
    product = Together(*(Poisson(0.3, Gaussian(1 / np.linalg.norm(column))) for column in columns))
    assert delta_of_mixtures(list(columns), 0.3, 1.0, 1.5) > 1.05 * PLD().delta(product, 1.5)
    with pytest.raises(ValueError, match="groups"):
        CyclicPoisson(0.3, 2, 4, Correlated(1.0, ("banded", 4)))


GAPS = [
    (1, 1, 0.5, 0.3, 1e-12),
    (1, 7, 0.999, 1.0, 1e-6),
    (1, 1000, 1.0, 50.0, 1e-6),
    (2, 7, 0.9, 0.3, 1e-3),
    (16, 1, 0.1, 1.0, 1e-6),
    (16, 100, 0.999, 5.0, 1e-12),
    (16, 1000, 0.1, 5.0, 1e-12),
    (16, 1001, 0.1, 1.0, 1e-6),
    (100, 1000, 0.001, 1.0, 1e-6),
    (100, 7, 1.0, 0.3, 1e-12),
    (100, 1000, 0.9, 50.0, 1e-6),
]


@pytest.mark.parametrize(("bands", "steps", "rate", "sigma", "delta"), GAPS)
def test_bounds_on_both_sides_are_within_a_thousandth(bands, steps, rate, sigma, delta):
    low, high = PLD().bounds(CyclicPoisson(rate, bands, steps, Correlated(sigma, ("banded", bands))), delta)
    assert low <= high <= low * 1.001 + 1e-9


@pytest.mark.slow
def test_bounds_on_both_sides_are_within_a_thousandth_over_a_whole_grid():
    """960 settings: bands × steps × rate × noise × δ, with their extremes."""
    grid = itertools.product(
        (1, 2, 16, 100), (1, 7, 100, 1000), (1e-3, 0.1, 0.9, 0.999, 1.0), (0.3, 1.0, 5.0, 50.0), (1e-3, 1e-6, 1e-12)
    )
    for bands, steps, rate, sigma, delta in grid:
        low, high = PLD().bounds(CyclicPoisson(rate, bands, steps, Correlated(sigma, ("banded", bands))), delta)
        assert low <= high <= low * 1.001 + 1e-9, (bands, steps, rate, sigma, delta)


def delta_of_truncated_draw(records, rate, largest, sigma, epsilon):
    """Returns δ(ε) of the formula of the reference file: (1 − cut) Poisson(q, 1) + cut Poisson(kept, 2), by quadrature."""
    cut = stats.binom.sf(largest - 1, records - 1, rate)
    kept = stats.binom.sf(largest, records, rate) * largest / (cut * records)
    grid = np.linspace(-14 * sigma, 14 * sigma + 2, 400_001)
    step = grid[1] - grid[0]

    def sampled(chance, shift):
        """Returns δ of a record that moves the mean by `shift` with a probability, removed and added."""
        absent = stats.norm.pdf(grid, 0, sigma)
        present = (1 - chance) * absent + chance * stats.norm.pdf(grid, shift, sigma)
        pairs = ((present, absent), (absent, present))
        return np.array([np.maximum(0.0, p - math.exp(epsilon) * q).sum() * step for p, q in pairs])

    return float(np.max((1 - cut) * sampled(rate, 1.0) + cut * sampled(kept, 2.0)))


@pytest.mark.parametrize(
    ("records", "rate", "largest", "sigma", "epsilon"),
    [(1000, 0.05, 60, 1.0, 0.5), (50, 0.2, 12, 2.0, 0.2), (10, 0.5, 3, 0.8, 1.0), (300, 0.01, 3, 1.5, 0.1)],
)
def test_truncated_poisson_is_the_directional_pair(records, rate, largest, sigma, epsilon):
    low, high = PLD().delta_bounds(sd.events.TruncatedPoisson(rate, records, largest, Gaussian(sigma)), epsilon)
    assert high == pytest.approx(delta_of_truncated_draw(records, rate, largest, sigma, epsilon), rel=2e-3)
    assert low <= high


@pytest.mark.parametrize("entry", TRUNCATED, ids=lambda entry: f"{entry['dataset_size']} records")
def test_truncated_poisson_is_below_the_pair_of_others_and_above_plain_draws(entry):
    plain = PLD().epsilon(Repeat(Poisson(entry["rate"], Gaussian(entry["sigma"])), entry["steps"]), entry["delta"])
    assert plain == pytest.approx(entry["plain_poisson"], abs=2e-3)
    assert plain < entry["directional_pair"] < min(entry["sordino_now"], entry["dp_accounting_0.6"])


def test_a_fixed_order_of_buffers_costs_its_sensitivity():
    """ε of one Gaussian release at the brute-force sensitivity, by the closed form of δ."""
    strategy, coefficients = CASES["two buffers"]
    true = worst_of_all_patterns(lower_triangular(coefficients(10), 10), 3, 99)
    epsilon = PLD().epsilon(FixedOrder(10, 3, Correlated(4.0, strategy.describe())), 1e-5)
    mu = true / 4.0
    delta = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=1e-6)

"""What phases with correlated noise cost, against reference values obtained in two other ways."""

import json
from pathlib import Path

import numpy as np
import pytest

import sordino as sd
from sordino.accounting import PLD, RDP, Unsupported
from sordino.events import (
    Correlated,
    CyclicPoisson,
    FixedOrder,
    Gaussian,
    Poisson,
    Repeat,
    Together,
    from_json,
    to_json,
)

GOLDEN = Path(__file__).parent.parent / "golden"
ENTRIES = json.loads((GOLDEN / "correlated.json").read_text())["entries"]
CYCLIC = [entry for entry in ENTRIES if entry["group"] == "B"]
TRUNCATED = json.loads((GOLDEN / "truncated_poisson.json").read_text())["entries"]


@pytest.mark.parametrize("entry", CYCLIC, ids=lambda entry: f"{entry['bands']} bands of {entry['n']}")
def test_cyclic_poisson_costs_what_the_reference_says(entry):
    phase = CyclicPoisson(
        entry["rate_in_group"], entry["bands"], entry["n"], Correlated(entry["sigma"], ("banded", entry["bands"]))
    )
    low, high = PLD().bounds(phase, entry["delta"])
    assert high - low < 1e-3 * high
    assert low == pytest.approx(entry["epsilon_lower"], rel=2e-4)
    assert high == pytest.approx(entry["epsilon"], rel=2e-4)
    if "dp_accounting" in entry:
        assert low * (1 - 1e-6) <= entry["dp_accounting"] <= high * (1 + 1e-6)


def test_one_group_and_one_band_are_plain_poisson_draws():
    phase = CyclicPoisson(0.1, 1, 512, Correlated(3.0, ("banded", 1)))
    assert PLD().bounds(phase, 1e-6) == pytest.approx((3.76960, 3.76992), abs=2e-4)
    assert PLD().epsilon(phase, 1e-6) == pytest.approx(PLD().epsilon(Repeat(Poisson(0.1, Gaussian(3.0)), 512), 1e-6))


@pytest.mark.parametrize(
    ("steps", "separation", "bands", "delta", "epsilon"),
    [(1000, 1000, 1000, 1e-6, 2.76770), (1000, 100, 1000, 1e-6, 18.5593), (1024, 64, 64, 1e-6, 11.4031)],
)
def test_a_fixed_order_costs_one_gaussian_release(steps, separation, bands, delta, epsilon):
    low, high = PLD().bounds(FixedOrder(steps, separation, Correlated(3.0, ("banded", bands))), delta)
    assert low == pytest.approx(epsilon, rel=1e-5)
    assert high == pytest.approx(epsilon, rel=1e-5)


def test_the_first_group_is_the_worst():
    """Against every group's own columns, also where the phase ends within the bands."""
    strategy, rate, groups = sd.Banded(3), 0.3, 4
    for steps in (3, 4, 5, 10, 11):
        coefficients = strategy.encoder(steps)
        by_group = []
        for group in range(min(groups, steps)):
            norms = [np.linalg.norm(coefficients[: steps - column]) for column in range(group, steps, groups)]
            by_group.append(PLD().epsilon(Together(*(Poisson(rate, Gaussian(1 / norm)) for norm in norms)), 1e-4))
        found = PLD().epsilon(CyclicPoisson(rate, groups, steps, Correlated(1.0, strategy.describe())), 1e-4)
        assert found == pytest.approx(max(by_group), rel=1e-6)


def test_what_else_is_released_is_charged_with_its_step():
    both = Together(Correlated(3.0, ("banded", 2)), Gaussian(10.0))
    alone = PLD().epsilon(CyclicPoisson(0.1, 4, 40, Correlated(3.0, ("banded", 2))), 1e-5)
    norm = np.sqrt(1.25)
    joint = Repeat(Poisson(0.1, Together(Gaussian(3.0 / norm), Gaussian(10.0))), 10)
    found = PLD().epsilon(CyclicPoisson(0.1, 4, 40, both), 1e-5)
    assert found == pytest.approx(PLD().epsilon(joint, 1e-5), rel=1e-6)
    assert found > alone
    fixed = FixedOrder(40, 10, Together(Correlated(3.0, ("banded", 2)), Gaussian(10.0)))
    whole = Together(Gaussian(3.0 / (norm * 2)), Repeat(Gaussian(10.0), 4))
    assert PLD().epsilon(fixed, 1e-5) == pytest.approx(PLD().epsilon(whole, 1e-5), rel=1e-6)


def test_moments_are_an_upper_bound_too():
    phase = CyclicPoisson(0.1, 16, 512, Correlated(3.0, ("banded", 16)))
    assert PLD().epsilon(phase, 1e-6) <= RDP().epsilon(phase, 1e-6)


@pytest.mark.parametrize(
    "event",
    [
        CyclicPoisson(0.1, 16, 512, Correlated(3.0, ("banded", 16))),
        FixedOrder(40, 10, Correlated(3.0, ("buffered", (0.9, 0.5), (0.2, 0.3)))),
        FixedOrder(40, 10, Together(Correlated(3.0, ("banded", 2, (1.0, 0.25))), Gaussian(2.0))),
    ],
    ids=str,
)
def test_an_event_is_read_as_it_was_written(event):
    assert from_json(json.dumps(to_json(event))) == event


@pytest.mark.parametrize(
    "wrap",
    [
        lambda step: Poisson(0.1, step),
        lambda step: Repeat(step, 3),
        lambda step: sd.events.Shuffle(step),
        lambda step: sd.events.BallsInBins(3, step),
        lambda step: sd.events.FixedSize(3, 10, step),
        lambda step: sd.events.TruncatedPoisson(0.1, 100, 20, step),
        lambda step: Poisson(0.1, Together(step, Gaussian(1.0))),
        lambda step: CyclicPoisson(0.1, 4, 8, Together(step, step)),
    ],
)
def test_a_step_stands_in_no_other_event(wrap):
    with pytest.raises(TypeError, match="correlated noise"):
        wrap(Correlated(1.0, ("banded", 2)))


def test_a_step_alone_has_no_price():
    with pytest.raises((TypeError, Unsupported), match="correlated noise"):
        PLD().epsilon(Correlated(1.0, ("banded", 2)), 1e-5)


def test_a_fixed_order_says_nothing_about_records_added_or_removed():
    with pytest.raises(Unsupported, match="add-or-remove"):
        PLD().epsilon(FixedOrder(4, 4, Gaussian(1.0)), 1e-5, relation=sd.events.Relation.ADD_OR_REMOVE)


@pytest.mark.parametrize("entry", TRUNCATED, ids=lambda entry: f"{entry['dataset_size']} records")
def test_truncated_poisson_costs_the_directional_pair(entry):
    draw = sd.events.TruncatedPoisson(
        entry["rate"], entry["dataset_size"], entry["max_batch"], Gaussian(entry["sigma"])
    )
    low, high = PLD().bounds(Repeat(draw, entry["steps"]), entry["delta"])
    assert high == pytest.approx(entry["directional_pair"], abs=2e-3)
    assert low <= high
    assert high > entry["plain_poisson"]


def test_calibration_meets_its_target():
    def query(sigma):
        return sd.NoisySum(sd.Flat(1.0), sd.Correlated(sigma, sd.Banded(8)))

    sampler = sd.CyclicPoisson(0.2, 8)
    sigma = sd.calibrate(query, sampler, 100, epsilon=2.0, delta=1e-5)
    found = PLD().epsilon(sd.dry_run(query(sigma), sampler, 1, 100), 1e-5)
    assert 2.0 * (1 - 1e-3) <= found <= 2.0


def exact_truncated_delta(rate, largest, contributions, epsilon, *, remove, sigma):
    """Returns δ(ε) of one truncated draw from a record of contribution 1 and others of given ones, by enumeration.

    Every subset of the records that may be drawn, and every part of it that may be kept, has a mean and a probability; the
    two mixtures are integrated on a grid.
    """
    from itertools import combinations

    def mixture(values):
        means: dict[float, float] = {}
        for size in range(len(values) + 1):
            for drawn in combinations(range(len(values)), size):
                chance = rate**size * (1 - rate) ** (len(values) - size)
                kept = list(combinations(drawn, min(size, largest)))
                for part in kept:
                    mean = float(sum(values[i] for i in part))
                    means[mean] = means.get(mean, 0.0) + chance / len(kept)
        return means

    grid = np.linspace(-12, 12, 24_001)

    def density(means):
        return sum(w * np.exp(-(((grid - m) / sigma) ** 2) / 2) for m, w in means.items()) / (
            sigma * np.sqrt(2 * np.pi)
        )

    p, q = density(mixture([1.0, *contributions])), density(mixture(list(contributions)))
    p, q = (p, q) if remove else (q, p)
    return float(np.maximum(0.0, p - np.exp(epsilon) * q).sum() * (grid[1] - grid[0]))


@pytest.mark.parametrize("others", [(-1, -1, -1), (-1, -1, 1), (0, 0, -1), (-1, -1, -1, -1, -1), (1, 1, 1, 1)])
@pytest.mark.parametrize("largest", [1, 2, 3])
@pytest.mark.parametrize("rate", [0.2, 0.6])
def test_truncated_poisson_dominates_every_dataset_that_is_enumerated(others, largest, rate):
    draw = sd.events.TruncatedPoisson(rate, len(others) + 1, largest, Gaussian(1.2))
    for epsilon in (0.1, 0.5, 1.5):
        priced = PLD().delta(draw, epsilon)
        for remove in (True, False):
            true = exact_truncated_delta(rate, largest, others, epsilon, remove=remove, sigma=1.2)
            assert true <= priced * (1 + 1e-6) + 1e-9

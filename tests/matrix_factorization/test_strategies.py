"""Strategies of correlated noise against reference values, enumerations and dense linear algebra."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from sordino.matrix_factorization import participation, toeplitz
from sordino.matrix_factorization.strategies import (
    Banded,
    Buffered,
    InverseBanded,
    error_in,
    sensitivity_of,
    strategy_from,
)
from sordino.matrix_factorization.workloads import Workload, optimise_bands, squared_row_norms
from sordino.privacy_loss.gaussian import gaussian_epsilon

ENTRIES = json.loads((Path(__file__).parent.parent / "golden" / "correlated.json").read_text())["entries"]
WITHOUT_AMPLIFICATION = [entry for entry in ENTRIES if entry["group"] == "A"]
STRATEGIES = [Banded(1), Banded(3), Banded(12), InverseBanded(1), InverseBanded(3), Buffered((0.9, 0.5), (0.2, 0.3))]


def tree_matrix(leaves: int) -> np.ndarray:
    """Returns the encoder of the binary tree: one row for every node, with ones at the leaves below it."""
    rows, width = [], 1
    while width <= leaves:
        for first in range(0, leaves, width):
            row = np.zeros(leaves)
            row[first : first + width] = 1
            rows.append(row)
        width *= 2
    return np.array(rows)


def encoder_of(entry: dict) -> np.ndarray:
    """Returns the matrix that an entry of the reference file names."""
    name, steps = entry["encoder"], entry["n"]
    if name == "identity":
        return np.eye(steps)
    if name == "tree":
        return tree_matrix(steps)
    if name.startswith("random signed"):
        return np.tril(np.random.default_rng(5).normal(size=(steps, steps)))
    bands = steps if name == "sqrt-toeplitz" else int(name.removeprefix("banded-").split()[0])
    return toeplitz.toeplitz_matrix(Banded(bands).encoder(steps), steps)


@pytest.mark.parametrize("entry", WITHOUT_AMPLIFICATION, ids=lambda entry: f"{entry['encoder']} of {entry['n']}")
def test_sensitivity_and_epsilon_are_the_reference_values(entry):
    encoder, separation, uses = encoder_of(entry), entry["min_sep"], entry["participations"]
    if entry["participation"].startswith("fixed order"):
        found = participation.fixed_order_sensitivity(encoder, separation)
    elif entry["encoder"] in ("sqrt-toeplitz", "identity"):
        found = participation.toeplitz_sensitivity(encoder[:, 0], entry["n"], separation, uses)
    else:
        found = participation.matrix_sensitivity(encoder, separation, uses)
    if encoder.min() < 0:
        # For a matrix with both signs what is used is the sum of absolute values, an upper bound.
        assert entry["naive_all_plus_(too small)"] < entry["sensitivity"] < found
        assert found == pytest.approx(entry["upper_for_vector_gradients_abs_gram"], rel=1e-9)
        return
    assert found == pytest.approx(entry["sensitivity"], rel=1e-9)
    assert found >= entry["sensitivity"] * (1 - 1e-15)
    assert gaussian_epsilon(found / entry["sigma"], entry["delta"]) == pytest.approx(entry["epsilon"], rel=1e-9)


@pytest.mark.parametrize(
    ("strategy", "squared", "largest", "root_mean_square"),
    [
        (Banded(1), 1.0, 31.62, 22.37),
        (Banded(16), 1.9439, 9.968, 7.137),
        (Banded(64), 2.3888, 5.788, 4.336),
        (Banded(1000), 3.2650, 3.265, 3.102),
        (InverseBanded(16), 2.1117, 6.890, 5.045),
        (InverseBanded(64), 2.5644, 4.267, 3.426),
    ],
    ids=str,
)
def test_errors_of_one_epoch_of_1000_steps_are_the_published_ones(strategy, squared, largest, root_mean_square):
    found = error_in(strategy, Workload(1000))
    assert found.sensitivity**2 == pytest.approx(squared, abs=6e-5)
    assert found.largest == pytest.approx(largest, abs=6e-3)
    assert found.root_mean_square == pytest.approx(root_mean_square, abs=6e-4 if squared > 1 else 6e-3)


def test_coefficients_are_those_of_the_square_root():
    root, inverse = toeplitz.square_root_coefficients(40), toeplitz.inverse_square_root_coefficients(40)
    assert root[:4].tolist() == [1, 1 / 2, 3 / 8, 5 / 16]
    assert inverse[:4].tolist() == [1, -1 / 2, -1 / 8, -1 / 16]
    assert np.allclose(np.convolve(root, root)[:40], 1.0)
    assert np.allclose(np.convolve(root, inverse)[:40], np.eye(40)[0])


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_encoder_and_decoder_are_inverse_matrices(strategy):
    steps = 12
    encoder = toeplitz.toeplitz_matrix(strategy.encoder(steps), steps)
    decoder = toeplitz.toeplitz_matrix(strategy.decoder(steps), steps)
    assert np.allclose(encoder @ decoder, np.eye(steps), atol=1e-12)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("separation", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("steps", [1, 4, 9, 12])
def test_sensitivity_is_that_of_the_worst_of_all_patterns(strategy, separation, steps):
    encoder = toeplitz.toeplitz_matrix(strategy.encoder(steps), steps)
    most = participation.largest_participations(steps, separation)
    for uses in {1, 2, most} - {0}:
        tried = participation.enumerated_sensitivity(encoder, separation, min(uses, most))
        assert sensitivity_of(strategy, steps, separation, uses) == pytest.approx(tried, rel=1e-11)
        assert participation.matrix_sensitivity(encoder, separation, uses) == pytest.approx(tried, rel=1e-11)


def test_banded_matrices_that_are_not_toeplitz_are_solved_by_the_dynamic_programme():
    generator = np.random.default_rng(1)
    for steps, bands in ((12, 3), (11, 2), (9, 4)):
        lag = np.subtract.outer(np.arange(steps), np.arange(steps))
        encoder = np.where((lag >= 0) & (lag < bands), generator.normal(size=(steps, steps)), 0.0)
        for uses in (1, 2, 4):
            tried = participation.enumerated_sensitivity(
                encoder, bands, min(uses, participation.largest_participations(steps, bands))
            )
            assert participation.matrix_sensitivity(encoder, bands, uses) == pytest.approx(tried, rel=1e-12)


def test_signed_matrices_take_absolute_values():
    """With signs of its own choice a record moves the sum further than with equal gradients."""
    encoder = np.tril(np.random.default_rng(5).normal(size=(8, 8)))
    gram = encoder.T @ encoder
    signs = np.array(np.meshgrid(*[[-1, 1]] * 3)).reshape(3, -1)
    true = all_plus = 0.0
    for pattern in ([a, b, c] for a in range(4) for b in range(a + 2, 6) for c in range(b + 2, 8)):
        inside = gram[np.ix_(pattern, pattern)]
        true = max(true, math.sqrt((signs * (inside @ signs)).sum(axis=0).max()))
        all_plus = max(all_plus, math.sqrt(max(0.0, inside.sum())))
    found = participation.matrix_sensitivity(encoder, 2, 3)
    assert all_plus < true <= found


def test_fixed_order_is_one_of_the_patterns():
    for strategy in STRATEGIES:
        encoder = toeplitz.toeplitz_matrix(strategy.encoder(12), 12)
        for separation in (1, 3, 5, 12):
            found = participation.fixed_order_sensitivity(encoder, separation)
            assert found == pytest.approx(sensitivity_of(strategy, 12, separation), rel=1e-11)


def test_large_matrices_without_a_theorem_are_refused():
    encoder = np.tril(np.random.default_rng(0).normal(size=(60, 60)))
    with pytest.raises(participation.NoSensitivity, match="no theorem"):
        participation.matrix_sensitivity(encoder, 2)


@pytest.mark.parametrize("rising", [(1.0, 0.5, 0.6), (1.0, -0.1), (0.9, 0.5), (1.0, 1.1)])
def test_rising_or_negative_coefficients_are_refused(rising):
    with pytest.raises(ValueError, match="coefficients"):
        Banded(len(rising), rising)


@pytest.mark.parametrize("strategy", [*STRATEGIES, Banded(2, (1.0, 0.25))], ids=str)
def test_a_strategy_is_made_again_from_its_description(strategy):
    assert strategy_from(json.loads(json.dumps(strategy.describe()))) == strategy


@pytest.mark.parametrize("description", [(), ("unknown", 3), ("banded",), ("banded", 0), ("buffered", (0.5,), ())])
def test_descriptions_of_nothing_are_refused(description):
    with pytest.raises(ValueError, match=r"strategy|bands|decays"):
        strategy_from(description)


@pytest.mark.parametrize(
    "workload",
    [
        Workload(30),
        Workload(30, momentum=0.9),
        Workload(30, weight_decay=0.1),
        Workload(30, 0.5, 0.01, tuple(np.linspace(1, 0.1, 30))),
    ],
    ids=["plain", "momentum", "decay", "schedule"],
)
def test_row_norms_are_those_of_the_product_of_matrices(workload):
    for strategy in STRATEGIES:
        product = workload.matrix() @ toeplitz.toeplitz_matrix(strategy.decoder(30), 30)
        assert np.allclose(squared_row_norms(strategy.decoder(30), workload), (product**2).sum(axis=1))
    # The best bands are at least as good as the square root's, and as others nearby.
    best = Banded.for_workload(4, workload)
    least = error_in(best, workload).root_mean_square
    assert least <= error_in(Banded(4), workload).root_mean_square * (1 + 1e-9)
    for shift in np.random.default_rng(0).normal(scale=0.02, size=(20, 4)):
        near = np.minimum.accumulate(np.maximum(np.array(best.coefficients) + shift, 0.0))
        near = near / near[0]
        assert least <= error_in(Banded(4, tuple(near)), workload).root_mean_square * (1 + 1e-6)


def test_the_workload_is_what_sgd_does():
    """Momentum, decoupled weight decay and a schedule, against the optimizer itself on unit gradients."""
    rates, momentum, decay = (0.5, 0.3, 0.2, 0.1), 0.8, 0.05
    matrix = Workload(4, momentum, decay, rates).matrix()
    for s in range(4):
        position = velocity = 0.0
        for t, rate in enumerate(rates):
            velocity = momentum * velocity + (t == s)
            position = (1 - rate * decay) * position - rate * velocity
            assert matrix[t, s] == pytest.approx(-position)


def test_fast_and_slow_optimisation_agree():
    """Prefix sums have a short form; a workload with equal learning rates goes the long way to the same bands."""
    slow = optimise_bands(5, Workload(60, learning_rates=(1.0,) * 60))
    assert optimise_bands(5, Workload(60)) == pytest.approx(slow, abs=1e-4)


def test_few_buffers_come_near_the_square_root():
    whole = error_in(Banded(1000), Workload(1000)).root_mean_square
    assert error_in(Buffered.for_steps(4, 1000), Workload(1000)).root_mean_square < 1.01 * whole

"""Bugs seen in other accountants, each as a fact about this one."""

import math

import pytest

from sordino import accounting as A
from sordino.events import (
    Batch,
    CyclicPoisson,
    Exponential,
    FixedSize,
    Gaussian,
    Laplace,
    NonPrivate,
    Poisson,
    RandomisedResponse,
    Relation,
    Repeat,
    Shuffle,
    Together,
)

ALL = [A.Basic(), A.Advanced(), A.Strong(), A.Strong(valid=True), A.Moments(), A.RDP(), A.PLD(), A.GaussianCLT()]
BOUNDS = [accountant for accountant in ALL if accountant.is_bound]


@pytest.mark.parametrize("event", [RandomisedResponse(0.5), Exponential(0.3)], ids=repr)
@pytest.mark.parametrize("accountant", [A.Basic(), A.Advanced(), A.RDP(), A.PLD()], ids=lambda a: a.name)
def test_the_count_of_pure_events_counts(accountant, event):
    assert accountant.epsilon(Repeat(event, 100), 1e-6) > 3 * accountant.epsilon(event, 1e-6)


def test_many_randomised_responses_compose_to_the_exact_optimum():
    exact = A.optimal(math.log(3), 0.0, 100, 1e-6)
    low, high = A.PLD().bounds(Repeat(RandomisedResponse(0.5), 100), 1e-6)
    assert low == pytest.approx(exact, rel=1e-9)
    assert high == pytest.approx(exact, rel=1e-9)
    assert high >= exact * (1 - 1e-12)


def test_replace_one_uses_twice_the_contribution():
    event = FixedSize(1, 1, Gaussian(2.0))
    assert A.PLD().epsilon(event, 1e-5) == pytest.approx(A.PLD().epsilon(Gaussian(1.0), 1e-5), rel=2e-4)
    assert A.RDP().epsilon(event, 1e-5) == pytest.approx(A.RDP().epsilon(Gaussian(1.0), 1e-5), rel=1e-9)


@pytest.mark.parametrize("sigma", [math.nan, 0.0, -1.0, math.inf])
def test_a_meaningless_noise_multiplier_is_refused_not_accounted(sigma):
    with pytest.raises(ValueError, match="multiplier"):
        Gaussian(sigma)


@pytest.mark.parametrize("accountant", ALL, ids=lambda a: a.name)
@pytest.mark.parametrize("delta", [math.nan, -0.1, 1.0, 2.0, math.inf])
def test_a_delta_outside_its_domain_is_a_clear_error(accountant, delta):
    with pytest.raises(ValueError, match="delta"):
        accountant.epsilon(Gaussian(1.0), delta)


@pytest.mark.parametrize("accountant", ALL, ids=lambda a: a.name)
@pytest.mark.parametrize("epsilon", [math.nan, -1.0, math.inf])
def test_an_epsilon_outside_its_domain_is_a_clear_error(accountant, epsilon):
    with pytest.raises(ValueError, match="epsilon"):
        accountant.delta(Gaussian(1.0), epsilon)


@pytest.mark.parametrize("accountant", ALL, ids=lambda a: a.name)
def test_epsilon_is_never_negative_at_a_large_delta(accountant):
    assert accountant.epsilon(Repeat(Poisson(0.001, Gaussian(10.0)), 10), 0.4) >= 0


def test_epsilon_does_not_dip_below_the_truth_at_a_small_delta():
    event = Repeat(Poisson(0.01, Gaussian(4.0)), 10_000)
    previous = 0.0
    for exponent in range(3, 30):
        low, high = A.PLD().bounds(event, 10.0**-exponent)
        assert previous < low <= high < math.inf
        previous = low


def test_little_noise_and_many_steps_need_no_memory_to_speak_of():
    low, high = A.PLD().bounds(Repeat(Poisson(0.01, Gaussian(0.1)), 1000), 1e-5)
    assert 1194 < low <= high < 1196


@pytest.mark.parametrize("accountant", ALL, ids=lambda a: a.name)
def test_something_non_private_makes_epsilon_infinite(accountant):
    event = Together(Gaussian(10.0), NonPrivate("batch median"))
    assert accountant.epsilon(event, 1e-5) == math.inf
    assert accountant.delta(event, 1.0) == 1.0


def test_only_bounds_are_marked_as_bounds():
    assert not A.GaussianCLT().is_bound
    assert not A.Strong().is_bound
    assert A.Strong(valid=True).is_bound
    assert all(a.is_bound for a in (A.Basic(), A.Advanced(), A.Moments(), A.RDP(), A.PLD()))


def test_an_approximation_cannot_be_calibrated_with():
    with pytest.raises(ValueError, match="approximation"):
        A.calibrate(Gaussian, A.GaussianCLT(), 1.0, 1e-5)


def test_the_central_limit_can_lie_far_below_the_truth():
    event = Repeat(Poisson(0.001, Gaussian(0.5)), 3000)
    low, _ = A.PLD().bounds(event, 1e-6)
    assert A.GaussianCLT().epsilon(event, 1e-6) < 0.4 * low


def test_the_classical_gaussian_is_refused_outside_its_proof():
    with pytest.raises(ValueError, match="analytic_gaussian"):
        A.classical_gaussian(1.5, 1e-5)
    sigma = A.classical_gaussian(10.0, 1e-5, outside_proof=True)
    assert A.gaussian_delta(1 / sigma, 10.0) > 2.2e-5


def test_amplification_is_not_multiplication():
    assert A.amplify_by_sampling(1.0, 0.0, 0.01)[0] > 0.01


@pytest.mark.parametrize("accountant", BOUNDS, ids=lambda a: a.name)
def test_every_bound_lies_above_the_certified_lower_one(accountant):
    event = Repeat(Poisson(0.02, Gaussian(1.5)), 800)
    low, _ = A.PLD().bounds(event, 1e-5)
    assert accountant.epsilon(event, 1e-5) >= low


def test_shuffled_batches_are_not_accounted_as_poisson():
    shuffled = Repeat(Shuffle(Repeat(Gaussian(1.1), 240)), 30)
    poisson = A.PLD().epsilon(Repeat(Poisson(1 / 240, Gaussian(1.1)), 7200), 1e-5)
    lower = A.shuffle_lower_bound(1.1, 240, 30, 1e-5)
    assert poisson == pytest.approx(1.614, abs=1e-3)
    assert lower == pytest.approx(7.83, rel=0.02)
    assert A.PLD().epsilon(shuffled, 1e-5) == pytest.approx(32.913, abs=1e-3)


def test_two_releases_on_one_shuffled_batch_both_count():
    twice = Shuffle(Repeat(Batch(Repeat(Gaussian(2.0), 2)), 50))
    assert A.PLD().epsilon(twice, 1e-5) == pytest.approx(A.PLD().epsilon(Repeat(Gaussian(2.0), 2), 1e-5))
    assert A.PLD().epsilon(Shuffle(Batch(Together(Gaussian(2.0), Gaussian(3.0)))), 1e-5) == pytest.approx(
        A.PLD().epsilon(Together(Gaussian(2.0), Gaussian(3.0)), 1e-5)
    )
    assert A.PLD().epsilon(Shuffle(Repeat(Gaussian(2.0), 50)), 1e-5) == A.PLD().epsilon(Gaussian(2.0), 1e-5)


def test_relations_that_cannot_be_reconciled_are_refused_by_name():
    mixed = Together(Poisson(0.1, Gaussian(1.0)), FixedSize(1, 10, Gaussian(1.0)))
    with pytest.raises(A.Unsupported, match="replace-one"):
        A.PLD().epsilon(mixed, 1e-5)
    with pytest.raises(A.Unsupported, match="Laplace"):
        A.PLD(relation=Relation.REPLACE).epsilon(Poisson(0.1, Laplace(1.0)), 1e-5)


def test_cyclic_draws_are_refused_under_replace_one():
    """Its theorem is about a record that is there or not; one that is replaced stays in its group."""
    event = CyclicPoisson(0.1, 2, 4, Gaussian(1.0))
    assert A.PLD().epsilon(event, 1e-5) > 0
    with pytest.raises(A.Unsupported):
        A.PLD(relation=Relation.REPLACE).epsilon(event, 1e-5)


def test_poisson_under_replace_one_costs_more_and_must_be_asked_for():
    event = Repeat(Poisson(0.01, Gaussian(4.0)), 1000)
    assert A.PLD(relation=Relation.REPLACE).epsilon(event, 1e-5) > 1.6 * A.PLD().epsilon(event, 1e-5)
    assert A.PLD().epsilon(event, 1e-5, relation=Relation.REPLACE) == A.PLD(relation=Relation.REPLACE).epsilon(
        event, 1e-5
    )


def test_abadi_figure_2():
    event = Repeat(Poisson(0.01, Gaussian(4.0)), 10_000)
    said = {type(a).__name__: round(a.epsilon(event, 1e-5), 2) for a in (A.Moments(), A.Strong(), A.RDP(), A.PLD())}
    assert said == {"Moments": 1.26, "Strong": 9.34, "RDP": 1.04, "PLD": 0.95}
    assert A.Strong(valid=True).epsilon(event, 1e-5) > A.Advanced().epsilon(event, 1e-5) > 14


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "printed"),
    [(1 / 240, 1.1, 7200, 1.769), (0.004, 1.1, 7500, 1.729), (0.004, 1.1, 12500, 2.268), (0.004, 2.6, 7500, 0.538)],
)
def test_the_thesis_figures_are_rdp_of_poisson_sampling(q, sigma, steps, printed):
    assert round(A.RDP().epsilon(Repeat(Poisson(q, Gaussian(sigma)), steps), 1e-5), 3) == printed


@pytest.mark.parametrize("accountant", ALL, ids=lambda a: a.name)
def test_the_release_of_nothing_costs_nothing(accountant):
    assert accountant.epsilon(Together(), 1e-5) == 0.0


def test_many_phases_are_composed_together_not_added():
    parts = [Repeat(Poisson(0.01, Gaussian(1.0 + 0.01 * i)), 20) for i in range(60)]
    whole = A.PLD().bounds(Together(*parts), 1e-5)
    least = A.PLD().epsilon(Repeat(Poisson(0.01, Gaussian(1.6)), 1200), 1e-5)
    most = A.PLD().epsilon(Repeat(Poisson(0.01, Gaussian(1.0)), 1200), 1e-5)
    assert least < whole[0] <= whole[1] < most
    assert whole[1] - whole[0] < 1e-3 * whole[1]


def test_searching_costs_what_random_stopping_says():
    base = Repeat(Poisson(0.01, Gaussian(4.0)), 10_000)
    from sordino.events import TuneNegativeBinomial, TunePoisson

    geometric = A.RDP().epsilon(TuneNegativeBinomial(base, 1.0, 0.01), 1e-5)
    assert geometric == pytest.approx(2.772, rel=1e-3)
    assert A.RDP().epsilon(base, 1e-5) < A.RDP().epsilon(TunePoisson(base, 10.0), 1e-5) < geometric
    assert A.PLD().epsilon(base, 1e-5) < A.PLD().epsilon(TunePoisson(base, 10.0), 1e-5)
    assert A.liu_talwar(0.5) == 1.5

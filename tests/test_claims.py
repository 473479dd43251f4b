"""Claims: numbers with their origin, printed never below their value."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sordino as sd
from sordino.events import FixedSize, Gaussian, Laplace, NonPrivate, Poisson, Relation, Repeat, Shuffle, Together
from sordino.ledger.claims import describe_event, make_claim, round_up

PLD = sd.accounting.PLD()
N, BATCH, SIGMA, STEPS, DELTA = 60_000, 250, 1.1, 7200, 1e-5


def planned(sampler) -> sd.Claim:
    query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(SIGMA))
    return make_claim(sd.dry_run(query, sampler, dataset_size=N, steps=STEPS), DELTA, PLD)


def test_poisson_at_the_thesis_setting():
    """1.6142 by three implementations (reference value thesis_mnist_30ep_pld)."""
    said = planned(sd.Poisson(BATCH / N))
    assert said.epsilon == pytest.approx(1.614, abs=0.01)
    assert said.relation is Relation.ADD_OR_REMOVE


def test_shuffled_batches_at_the_thesis_setting_are_not_poisson():
    """32.913 without amplification; at least 7.83 is certain (reference value shuffle_lb_s1.1_T240_E30)."""
    said = planned(sd.Shuffle(BATCH))
    assert said.epsilon == pytest.approx(32.913, abs=0.01)
    assert said.epsilon > 7.83
    assert said.relation is Relation.ZERO_OUT
    assert said.event == Repeat(Shuffle(Repeat(Gaussian(SIGMA), 240)), 30)


def test_balls_in_bins_at_the_thesis_setting_cost_about_what_poisson_does():
    """Within [1.546, 1.604] by another implementation of random allocation."""
    said = planned(sd.BallsInBins(N // BATCH))
    assert 1.546 < said.epsilon < 1.604
    assert said.relation is Relation.ADD_OR_REMOVE


def test_fixed_size_batches_at_the_thesis_setting_are_about_replacement():
    said = planned(sd.FixedSize(BATCH))
    assert said.relation is Relation.REPLACE
    assert said.epsilon > 1.8 * planned(sd.Poisson(BATCH / N)).epsilon  # one record replaced is one out and one in


def test_fixed_size_sampling_counts_twice_the_bound():
    """20.987 by RDP with sensitivity 2C; 3.576 would be with C (reference value wor_n1000_m10_s1_T1000_replace)."""
    said = make_claim(Repeat(FixedSize(10, 1000, Gaussian(1.0)), 1000), DELTA, PLD)
    assert 10 < said.epsilon <= 20.988


def test_a_pass_cut_short_is_a_pass():
    short = sd.dry_run(sd.NoisySum(sd.Flat(1.0), sd.Gaussian(SIGMA)), sd.Shuffle(250), N, steps=241)
    assert make_claim(short, DELTA, PLD).epsilon == pytest.approx(
        make_claim(Repeat(Gaussian(SIGMA), 2), DELTA, PLD).epsilon, rel=1e-6
    )


def test_releases_on_one_draw_are_composed_before_they_are_amplified():
    """Two Gaussians on one draw are one of multiplier (σ₁⁻² + σ₂⁻²)^(−½): 3.37 against 2.35 on fresh draws."""
    one = make_claim(Repeat(Poisson(1 / 240, Repeat(Gaussian(1.1), 2)), STEPS), DELTA, PLD)
    two = make_claim(Repeat(Poisson(1 / 240, Gaussian(1.1)), 2 * STEPS), DELTA, PLD)
    assert one.epsilon == pytest.approx(3.37, abs=0.01)
    assert two.epsilon == pytest.approx(2.35, abs=0.01)


def test_laplace_is_pure():
    assert make_claim(Laplace(2.0), 1e-12, PLD).epsilon == pytest.approx(0.5, rel=1e-3)
    assert make_claim(Repeat(Laplace(2.0), 3), 1e-12, PLD).epsilon == pytest.approx(1.5, rel=1e-3)


@given(st.floats(1e-6, 1e3))
def test_printed_epsilon_is_never_below_its_value(epsilon):
    assert float(round_up(epsilon)) >= epsilon
    assert float(round_up(epsilon)) <= epsilon + 1.001e-3


def test_a_claim_prints_what_it_says():
    said = sd.Guarantee(
        1.61401, 1e-5, Relation.ADD_OR_REMOVE, "PLD", Repeat(Poisson(0.01, Gaussian(1.1)), 7), ("seed",)
    )
    assert str(said).splitlines() == [
        "(1.615, 1e-05)-differential privacy",
        "  neighbours   add-or-remove-one: one record added or removed",
        "  accountant   PLD",
        "  event        7 × Poisson(0.01, Gaussian(1.1))",
        "  not covered  seed: the random stream can be repeated by anyone who knows the seed; leave it out for a real "
        "release",
    ]


def test_a_run_of_many_phases_prints_on_one_short_line():
    many = Together(*(Gaussian(1.0 + k) for k in range(1000)))
    text = describe_event(many)
    assert text.startswith("(Gaussian(1) + Gaussian(2) + ")
    assert text.endswith("… 994 more)")
    assert len(text) < 120


def test_no_guarantee_has_no_epsilon_to_read():
    names = {field.name for field in dataclasses.fields(sd.NoGuarantee)}
    assert names == {"reason"}


def test_claims_cannot_be_changed():
    said = make_claim(Gaussian(1.0), DELTA, PLD)
    with pytest.raises(dataclasses.FrozenInstanceError):
        said.epsilon = 0.1


@pytest.mark.parametrize(
    "event",
    [
        NonPrivate("why"),
        Poisson(0.1, NonPrivate("why")),
        Together(Gaussian(1.0), Repeat(Poisson(0.1, Together(Gaussian(1.0), NonPrivate("why"))), 3)),
        Shuffle(Repeat(NonPrivate("why"), 3)),
    ],
)
def test_nothing_private_survives_a_non_private_part(event):
    assert make_claim(event, DELTA, PLD) == sd.NoGuarantee("why")


def test_no_delta_is_too_small_for_an_honest_answer():
    assert make_claim(Repeat(Poisson(0.01, Gaussian(0.3)), 3), 0.0, PLD) == sd.NoGuarantee(
        "δ=0 is below what the noise supports: its values end, and over this event that costs δ=2.7e-08; ask at a larger δ"
    )

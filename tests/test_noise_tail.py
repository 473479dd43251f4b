"""Noise that ends: what that adds to δ is bounded, and nothing is claimed below it."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import sordino as sd
from sordino.accounting import PLD
from sordino.events import Exponential, FixedSize, Gaussian, Group, Laplace, Poisson, Relation, Repeat, Shuffle
from sordino.ledger import claims
from sordino.privacy_loss import noise_ends
from sordino.release import noise_tail
from sordino.release.noise_tail import delta_of_noise_end
from sordino.release.release import choose
from sordino.release.sealed import Sealed
from sordino.rng import normals
from sordino.rng.streams import Rng
from tests.problems import linear, private

END = math.sqrt(2 * 64 * math.log(2))
ONE = Relation.ADD_OR_REMOVE


class Stuck(Rng):
    """Every bit is the same."""

    def __init__(self, word):
        super().__init__(bytes(32))
        self.word = word

    def words(self, n):
        return np.full(n, self.word, dtype=np.uint64)


def test_the_ends_are_those_of_the_generators():
    cosine, sine = np.empty((2, 1), dtype=np.float32)
    smallest = np.array([normals.refine_uniform(0, 0)])
    normals.box_muller(smallest, np.zeros(1, dtype=np.uint32), 1.0, cosine, sine)
    assert float(cosine[0]) == pytest.approx(noise_ends.GAUSSIAN_END, rel=1e-6)
    assert float(smallest[0]) * 2.0**-31 == 2.0**-noise_ends.RADIUS_BITS
    assert Stuck(0).laplace(1).abs().item() == pytest.approx(noise_ends.LAPLACE_BITS * math.log(2))


@pytest.mark.parametrize("s", [0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 9.0])
@pytest.mark.parametrize("pairs", [1, 2, 30, 10**4, 10**7])
def test_the_bound_is_above_what_leaves_the_reach_of_a_neighbour(s, pairs):
    """A shift spread evenly over some of the pairs; P(|x + v| > R) of a normal pair is that of a noncentral χ²."""
    bound = delta_of_noise_end(Gaussian(1 / s), 0.0, ONE, 2 * pairs)
    for over in {1, *(10**k for k in range(8) if 10**k <= pairs)}:
        a = s / math.sqrt(over)
        ring = np.exp(-((END - a) ** 2) / 2) - 2.0**-64  # all that could leave, whatever its angle
        leaves = stats.ncx2.sf(END**2, 2, a**2) - 2.0**-64
        assert over * leaves <= over * ring * (1 + 1e-9) <= bound * (1 + 1e-6)


def test_the_share_of_the_exponential_over_the_square_grows():
    """On which the second step of the bound rests: Σ φ(aⱼ) ≤ φ(s) when Σ aⱼ² ≤ s²."""
    a = np.linspace(0.01, END - 0.25, 20_000)
    share = (np.expm1(a * END - a**2 / 2) - a * END) / a**2
    assert (np.diff(share) > 0).all()


def test_noise_smaller_than_its_end_supports_nothing():
    assert delta_of_noise_end(Gaussian(0.1), 1e-5, ONE, 100) == 1.0
    assert delta_of_noise_end(Group(Gaussian(1.0), 10), 1e-5, ONE, 100) == 1.0


def test_it_adds_up_over_a_run_and_counts_how_far_a_record_moves_the_sum():
    one = delta_of_noise_end(Gaussian(1.0), 0.0, ONE, 1000)
    assert delta_of_noise_end(Repeat(Poisson(0.01, Gaussian(1.0)), 50), 0.0, ONE, 1000) == pytest.approx(50 * one)
    assert delta_of_noise_end(Shuffle(Repeat(Gaussian(1.0), 50)), 0.0, Relation.ZERO_OUT, 1000) == pytest.approx(one)
    twice = delta_of_noise_end(Gaussian(0.5), 0.0, ONE, 1000)
    assert delta_of_noise_end(FixedSize(2, 9, Gaussian(1.0)), 0.0, Relation.REPLACE, 1000) == pytest.approx(twice)
    assert delta_of_noise_end(Group(Gaussian(1.0), 2), 0.0, ONE, 1000) == pytest.approx(twice)


def test_more_coordinates_cost_more():
    few, many = (delta_of_noise_end(Gaussian(1.0), 1e-5, ONE, d) for d in (10, 10**9))
    assert few < many < delta_of_noise_end(Gaussian(1.0), 1e-5, ONE)


def test_estimated_norms_are_between_exact_ones_and_twice_as_much():
    exact, estimated, twice = (
        delta_of_noise_end(event, 0.0, ONE, 1000)
        for event in (Gaussian(1.0), sd.events.ProjectedClip(1.0, 200), Gaussian(0.5))
    )
    assert exact < estimated < twice


@pytest.mark.parametrize(
    "event", [Laplace(1.0), Gaussian(1.0), Exponential(0.5), Repeat(Poisson(0.1, Gaussian(2.0)), 9)], ids=str
)
def test_nothing_is_claimed_below_what_the_noise_supports(event):
    least = delta_of_noise_end(event, 1e-12, ONE, 1000)
    assert 0 < least < 1e-9
    for delta in (0.0, least / 2):
        said = claims.make_claim(event, delta, PLD(), coordinates=1000)
        assert isinstance(said, sd.NoGuarantee)
        assert "below what the noise supports" in said.reason
        assert "ask at a larger δ" in said.reason
    assert isinstance(claims.make_claim(event, 1e-6, PLD(), coordinates=1000), sd.Guarantee)


def test_near_it_the_rest_of_delta_is_what_the_theorem_gets():
    event = Repeat(Poisson(0.01, Gaussian(0.4)), 10_000)
    missing = delta_of_noise_end(event, 1e-6, ONE, 1000)
    assert 1e-7 < missing < 1e-6
    said = claims.make_claim(event, 1e-6, PLD(), coordinates=1000)
    assert said.epsilon == PLD().epsilon(event, 1e-6 - missing) > PLD().epsilon(event, 1e-6)


def test_ordinary_claims_are_what_they_were():
    event = Repeat(Poisson(0.01, Gaussian(1.1)), 2000)
    assert claims.make_claim(event, 1e-5, PLD(), coordinates=10**6).epsilon == PLD().epsilon(event, 1e-5)


def test_a_run_knows_how_many_numbers_it_puts_noise_on():
    run = private()
    assert run._ledger.coordinates == noise_tail.MOST_COORDINATES
    run.backward(next(run.draws(linear(), sd.Poisson(0.5), steps=1)))
    assert run._ledger.coordinates == sum(p.numel() for p in run._model.parameters())
    other = sd.Ledger()
    other.load_state_dict(run._ledger.state_dict())
    assert other.coordinates == run._ledger.coordinates


def test_too_little_noise_has_no_guarantee_and_says_why():
    run = private(query=sd.NoisySum(sd.Flat(1.0), sd.Gaussian(0.1)))
    run.backward(next(run.draws(linear(), sd.Poisson(0.5), steps=1)))
    assert "its values end" in run.claim(1e-5).reason


@pytest.mark.parametrize("word", [0, 2**64 - 1])
def test_a_choice_is_made_at_either_end_of_the_stream(word):
    assert choose(Sealed(torch.tensor([0.0, 50.0])), 1.0, 2.0, Stuck(word))[0] == 1

"""Privacy in words: figures that no attack exceeds, rounded so that none is told too small."""

import math

import pytest
from scipy.stats import norm

from sordino.accounting import meaning as words
from sordino.events import FixedSize, Gaussian, Poisson, Repeat


def test_the_best_guess_against_one_gaussian_release_is_the_likelihood_ratio_test():
    for sigma in (0.5, 1.0, 4.0):
        exact = norm.cdf(1 / (2 * sigma))  # two normals, 1/σ apart, a fair coin between them
        assert words.attack(Gaussian(sigma)).coin == pytest.approx(exact, rel=1e-6)


def test_hits_are_bounded_below_by_guessing_and_above_by_one():
    for false_alarm, hit in words.attack(Repeat(Poisson(0.01, Gaussian(1.0)), 100)).hits:
        assert false_alarm < hit < 1


@pytest.mark.parametrize("share", [0.5, 0.50001, 0.123, 0.0004, 0.99999, 1.0, 0.3])
def test_percentages_are_never_below_the_share(share):
    told = float(words.percent(share).removesuffix(" %"))
    assert 100 * share - 1e-9 <= told <= 100 * share + 0.11


def test_the_question_follows_the_neighbours():
    assert "whether one record was used" in str(words.attack(Gaussian(2.0)))
    assert "which of two records" in str(words.attack(FixedSize(10, 100, Gaussian(2.0))))


def test_tiers_are_those_of_the_field():
    assert [words.tier(e).split(" ")[0] for e in (0.5, 1.0, 1.01, 10.0, 10.1, math.inf)] == [
        "strong", "strong", "reasonable", "reasonable", "weak:", "weak:",
    ]  # fmt: skip

"""No attack ends in a claim: each is refused, or void within its first hundred lots."""

import warnings

import pytest

from tests.honesty.attacks import ATTACKS
from tests.honesty.attacks.wrappers import WRAPPERS
from tests.honesty.breach import breach
from tests.honesty.script import LOTS, outcome, verdict

FAST = (0, 1)
SLOW = 100
LEAST = 99
"""Of a hundred seeds: what the standing test finds by chance it may miss once."""
CLEAR = 1.05
"""A breach that no rounding explains."""


def measured(case):
    return f"one record moves a sum by {breach(case):.1f} times the bound" if case.moves else "not a breach of one sum"


@pytest.mark.parametrize("case", [case for case in ATTACKS if case.moves], ids=str)
def test_the_attack_is_one(case):
    worst = breach(case)
    assert worst > CLEAR, f"{case}: {worst:.2f} times the bound, which is no attack"


@pytest.mark.parametrize("seed", FAST)
@pytest.mark.parametrize("case", ATTACKS, ids=str)
def test_the_attack_ends_without_a_claim(case, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the strangers' own code
        ends, words = outcome(case, seed)
        assert ends != "claimed", f"{case}, seed {seed}: {measured(case)}, and this was printed:\n{words}"


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in ATTACKS if case not in WRAPPERS], ids=str)
def test_the_attack_ends_without_a_claim_in_99_of_100_seeds(case):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        claimed = [seed for seed in range(SLOW) if verdict(case, seed, LOTS) == "claimed"]
    assert len(claimed) <= SLOW - LEAST, f"{case}: {measured(case)}; claimed with seeds {claimed}"

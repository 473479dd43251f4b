"""Honest scripts are claimed, always: whoever voids one of them has made the product useless to its user."""

import pytest

from tests.honesty.honest import HONEST
from tests.honesty.script import outcome

FAST = (0,)
RUNS = 1000


@pytest.mark.parametrize("seed", FAST)
@pytest.mark.parametrize("case", HONEST, ids=str)
def test_an_honest_script_is_claimed(case, seed):
    ends, words = outcome(case, seed)
    assert ends == "claimed", f"{case}, seed {seed}: {ends}: {words}"


@pytest.mark.slow
@pytest.mark.parametrize("case", HONEST, ids=str)
def test_no_honest_script_is_voided_over_a_thousand_runs(case):
    """Of all scripts together: a false alarm in a thousand runs is one too many."""
    each = -(-RUNS // len(HONEST))
    ends = [outcome(case, 100 + seed) for seed in range(each)]
    assert all(end == "claimed" for end, _ in ends), [(k, *end) for k, end in enumerate(ends) if end[0] != "claimed"]

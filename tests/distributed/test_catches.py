"""What goes wrong on many ranks elsewhere is noticed: by the ranks themselves before anything is released, or by bits."""

import re
from dataclasses import replace

import pytest

from tests.distributed import jobs, mutations
from tests.distributed.gang import Failed
from tests.distributed.jobs import Case

STOPPED = {
    "ranks draw by themselves": "the ranks do not agree",
    "ranks compute the same records": "computed twice, or by nobody",
    "one chunk twice": "computed twice, or by nobody",
    "an empty rank skips the lot": "the ranks do not agree",
    "another learning rate": "the ranks do not agree",
    "a rank's phase is a step ahead": "the ranks do not agree",
}
"""Stopped by the meeting before the sum, on every rank."""

OTHER_NOISE = [
    "every rank adds noise to all",
    "σ/W",
    "σ/√W",
    "σ/√W with a dead rank",
    "a rank adds no noise",
    "noise at other coordinates",
    "a rank's correlated noise is a step ahead",
]
"""After the meeting all ranks hold the same wrong numbers; one process has others."""


DIVIDED = [name for name in STOPPED if name != "another learning rate"]
"""Of rows that one rank alone holds nobody else knows how far they were to go."""


@pytest.mark.parametrize(
    ("name", "size", "divided"),
    [*((name, size, False) for name in STOPPED for size in (2, 3)), *((name, 2, True) for name in DIVIDED)],
)
def test_a_disagreement_stops_every_rank_before_the_door(gang, name, size, divided):
    rate, is_correlated = 0.05 if "empty" in name else 0.2, "phase" in name
    case = Case(rate, steps=8, physical_batch=4, broken=name, divided=divided, correlated=is_correlated)
    with pytest.raises(Failed) as caught:
        gang(jobs.train, size, case)
    assert len(re.findall(f"Disagreement: .*{STOPPED[name]}", str(caught.value))) == size


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("name", OTHER_NOISE)
def test_other_noise_has_other_bits(gang, name, divided):
    is_correlated = "correlated" in name
    wanted = gang(jobs.train, 1, Case(broken="σ/W", correlated=is_correlated))[0]  # of one rank this is no change
    found = gang(jobs.train, 2, Case(broken=name, divided=divided, correlated=is_correlated))
    assert {came.parameters for came in found}.isdisjoint({wanted.parameters})


@pytest.mark.parametrize("divided", [False, True])
def test_an_error_on_one_rank_ends_all_of_them(gang, divided):
    with pytest.raises(Failed) as caught:
        gang(jobs.train, 3, Case(broken="one rank fails", divided=divided))
    said = str(caught.value)
    assert said.count("ValueError: a record that cannot be read") == 1
    assert said.count("StoppedElsewhere: another rank met an error") == 2


def test_the_ranks_go_on_after_that(gang):
    """A meeting that failed leaves no message behind that a later one would take for its own."""
    for is_correlated in (False, True):
        case = Case(correlated=is_correlated)
        cases = [(1, case), (3, case), (3, replace(case, divided=True))]
        assert len({came.parameters for size, each in cases for came in gang(jobs.train, size, each)}) == 1


def test_every_mutation_is_tried():
    assert set(mutations.ALL) == {*STOPPED, *OTHER_NOISE, "one rank fails"}

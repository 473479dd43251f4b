"""Ranks that were given different things say so, on every rank and by name, before anything is drawn or released."""

import re

import pytest

from sordino.distributed.claim_facts import ClaimFacts, describe_differences
from tests.distributed import agreement_jobs as jobs
from tests.distributed.gang import Failed


@pytest.mark.parametrize("name", jobs.DIFFERENT)
def test_ranks_that_were_given_something_else_stop_before_the_first_draw(gang, name):
    for steps, event, said in gang(jobs.differing, 2, name):
        assert steps == 0
        assert event in (str(jobs.sd.Ledger().event()), "Gaussian(multiplier=5.0)")
        assert said.startswith("the ranks do not agree, so nothing was drawn or released")
        assert re.search(f"\n  {jobs.DIFFERENT[name][2]}", said), said


def test_one_of_three_is_found_too(gang):
    assert all("rank 0 has 1.1, rank 2 has 0.1" in said for _, _, said in gang(jobs.differing, 3, "noise"))


@pytest.mark.parametrize("name", jobs.HONEST)
def test_ranks_that_were_given_the_same_train(gang, name):
    for steps, _, said in gang(jobs.agreeing, 2, name):
        assert (steps, said) == (2, "")


def test_records_that_change_by_themselves_are_not_called_other_data(gang):
    """They cannot be compared; whether they may be trained on is for other checks to say."""
    for _, _, said in gang(jobs.agreeing, 2, "random by itself"):
        assert said == ""


@pytest.mark.parametrize("what", ["ledger", "noise"])
def test_what_changes_on_the_way_stops_all_ranks_before_the_next_release(gang, what):
    for steps, released, said in gang(jobs.changed_on_the_way, 2, what):
        assert (steps, released) == (3, 2)
        assert "the ranks do not agree" in said


def test_a_site_that_several_ranks_hold_has_the_same_records_on_each(gang):
    assert gang(jobs.at_sites, 2, False) == [(2, ""), (2, "")]
    for steps, said in gang(jobs.at_sites, 2, True):
        assert steps == 0
        assert "Site 1 is held by several ranks" in said


def test_an_argument_that_one_rank_refuses_stops_the_others(gang):
    with pytest.raises(Failed) as caught:
        gang(jobs.refused_on_one, 2)
    assert str(caught.value).count("TypeError: sampler=") == 1
    assert str(caught.value).count("StoppedElsewhere: another rank met an error before the first draw") == 1


def test_no_record_is_shown_in_what_ranks_say():
    """An error quotes public settings; what is in a tensor is compared by a keyed digest and never shown."""
    one, two = ClaimFacts(b"key"), ClaimFacts(b"key")
    for facts, value in ((one, 123.456), (two, 654.321)):
        facts.add("records", jobs.torch.tensor([value]))
    assert describe_differences([one.facts, two.facts]) == ["records: not the same on rank 1"]


def test_a_digest_follows_the_key():
    one, two = ClaimFacts(b"key"), ClaimFacts(b"another")
    for facts in (one, two):
        facts.add("records", jobs.torch.tensor([1.0]))
    assert one.digest() != two.digest()


@pytest.mark.parametrize(
    ("what", "named"),
    [("records", "records of the dataset"), ("noise", "statistic.*: rank 0 has 5.0"), ("quantile", "values")],
)
def test_ranks_that_ask_a_statistic_ask_the_same_of_the_same_records(gang, what, named):
    """One noise on two sums would tell their difference to whoever sees both results."""
    for event, said in gang(jobs.asking, 3, what):
        assert event == str(jobs.sd.Ledger().event())
        assert re.search(named, said), said


def test_they_are_answered_if_they_do(gang):
    assert all(said == "" for _, said in gang(jobs.asking, 3, "nothing"))


def test_what_one_rank_finds_all_ranks_know(gang):
    assert gang(jobs.finding_on_one, 3, 1) == [True, True, True]
    assert gang(jobs.finding_on_one, 3, None) == [False, False, False]


def test_a_mesh_of_two_dimensions_is_refused_and_one_of_its_dimensions_is_taken(gang):
    for said, size in gang(jobs.given_a_mesh, 3):
        assert said.startswith("mesh of 2 dimensions: need one")
        assert size == 3

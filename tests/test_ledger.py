"""The ledger: append-only, one amplification per draw, passes put together."""

import json

import pytest

from sordino import events
from sordino.accounting import PLD
from sordino.events import BallsInBins, Batch, Gaussian, NonPrivate, Poisson, Repeat, Shuffle, Together
from sordino.events.codec import to_json
from sordino.ledger.ledger import Ledger
from sordino.ledger.lot_counts import LotCounts
from sordino.ledger.voiding import ClaimVoided
from sordino.refusal import Refusal
from sordino.release.noise_tail import MOST_COORDINATES


def halved(event):
    return Poisson(0.5, event)


def planned():
    return Gaussian(1.0)


def test_an_open_draw_is_charged_as_planned_until_something_is_released_on_it():
    ledger = Ledger()
    ledger.open(halved, planned)
    assert ledger.event() == Poisson(0.5, Gaussian(1.0))
    ledger.release(Gaussian(3.0))
    assert ledger.event() == Poisson(0.5, Gaussian(3.0))


def test_releases_on_one_draw_are_grouped_then_amplified():
    ledger = Ledger()
    ledger.open(halved, planned)
    ledger.release(Gaussian(3.0))
    ledger.release(Gaussian(2.0))
    assert ledger.event() == Poisson(0.5, Together(Gaussian(3.0), Gaussian(2.0)))


def test_a_release_outside_any_draw_is_on_all_the_data():
    ledger = Ledger()
    ledger.release(Gaussian(3.0))
    assert ledger.event() == Gaussian(3.0)


def test_a_million_equal_steps_are_one_entry():
    ledger = Ledger()
    for _ in range(10_000):
        ledger.open(halved, planned)
    assert len(ledger.state_dict()["entries"]) == 1
    assert ledger.event() == Repeat(Poisson(0.5, Gaussian(1.0)), 10_000)


def test_the_batches_of_a_pass_are_one_event():
    ledger = Ledger()
    for k in range(5):
        ledger.open(lambda event: event, planned, cover=str(k // 3))
    one = Shuffle(Repeat(Gaussian(1.0), 3))
    assert ledger.event() == Together(one, Shuffle(Repeat(Gaussian(1.0), 2)))


def test_several_releases_on_one_batch_of_a_pass_are_met_together():
    ledger = Ledger()
    for _ in range(3):
        ledger.open(lambda event: event, planned, cover="0")
        ledger.release(Gaussian(1.0))
        ledger.release(Gaussian(1.0))
    both = Repeat(Gaussian(1.0), 2)
    assert ledger.event() == Shuffle(Repeat(Batch(both), 3))
    pld = PLD()
    assert pld.epsilon(ledger.event(), 1e-5) == pytest.approx(pld.epsilon(both, 1e-5), rel=1e-9)


def test_the_bins_of_a_pass_are_one_event_and_a_mixed_pass_is_charged_for_all_on_each():
    ledger = Ledger()
    for k in range(6):
        ledger.open(lambda event: event, planned, str(k // 3), 3)
        if k == 5:
            ledger.release(Gaussian(2.0))
    mixed = BallsInBins(3, Together(Gaussian(1.0), Gaussian(2.0)))
    assert ledger.event() == Together(BallsInBins(3, Gaussian(1.0)), mixed)


def test_what_was_voided_stays_voided():
    ledger = Ledger()
    ledger.void("told")
    for _ in range(3):
        ledger.open(halved, planned)
    assert ledger.event() == NonPrivate("told")


def test_state_goes_through_json():
    ledger = Ledger()
    ledger.open(halved, planned)
    ledger.release(Gaussian(3.0))
    ledger.disclose("size")
    saved = json.loads(json.dumps(ledger.state_dict()))
    other = Ledger()
    other.load_state_dict(saved)
    assert (other.event(), other.disclosed) == (ledger.event(), ("size",))
    other.release(Gaussian(2.0))
    with pytest.raises(ValueError, match="not empty"):
        other.load_state_dict(saved)


def test_pages_have_draws_of_their_own():
    ledger = Ledger()
    one, other = ledger.new_section(), ledger.new_section()
    ledger.open(halved, planned, section=one)
    ledger.open(lambda event: event, planned, section=other)
    ledger.release(Gaussian(3.0), one)
    ledger.release(Gaussian(2.0), other)
    ledger.release(Gaussian(7.0))  # on the whole data
    assert ledger.event() == Together(Gaussian(7.0), Poisson(0.5, Gaussian(3.0)), Gaussian(2.0))


def test_passes_of_different_pages_are_different_passes():
    ledger = Ledger()
    for section in (ledger.new_section(), ledger.new_section()):
        ledger.open(lambda event: event, planned, "0", section=section)
    assert ledger.event() == Repeat(Shuffle(Gaussian(1.0)), 2)


def test_a_state_is_loaded_once_and_a_new_page_after_it_is_new():
    ledger = Ledger()
    ledger.open(halved, planned, "0", section=ledger.new_section())
    saved = ledger.state_dict()
    other = Ledger()
    other.load_state_dict(saved)
    other.load_state_dict(saved)
    assert other.event() == ledger.event()
    assert other.page() == ledger.new_section() == "1"
    other.release(Gaussian(2.0))
    with pytest.raises(ValueError, match="not empty"):
        other.load_state_dict(saved)


def test_there_is_no_way_to_take_an_entry_back():
    public = {name for name in dir(Ledger) if not name.startswith("_")}
    assert public == {
        "page",
        "open",
        "close",
        "close_all",
        "release",
        "void",
        "disclose",
        "disclosed",
        "record_coordinates",
        "new_section",
        "noised",  # the name of `record_coordinates` in 0.2
        "coordinates",
        "declare",
        "count",
        "uses",
        "trains",
        "rests_on",
        "empty",
        "length",
        "event",
        "claim",
        "state_dict",
        "load_state_dict",
    }
    assert events.canonical(Ledger().event()) == Together()


def test_looking_at_a_ledger_charges_nothing():
    ledger = Ledger()
    ledger.open(halved, planned)
    first = ledger.event()
    for _ in range(3):
        assert ledger.event() == first
        ledger.state_dict()
        assert ledger.length == 1
    ledger.close()
    ledger.close()
    assert ledger.event() == first
    assert (ledger.length, ledger.empty) == (1, False)


def test_the_length_counts_open_draws_and_nothing_without_a_guarantee():
    ledger = Ledger()
    assert (ledger.length, ledger.empty) == (0, True)
    for _ in range(3):
        ledger.open(halved, planned)
    ledger.release(Gaussian(2.0), "another section")
    ledger.void("told")
    assert ledger.length == 4


def test_what_making_a_draw_cost_is_charged_on_all_of_the_data():
    ledger = Ledger()
    ledger.open(halved, planned, spent=[Gaussian(9.0), Gaussian(8.0)])
    assert ledger.event() == Together(Gaussian(9.0), Gaussian(8.0), Poisson(0.5, Gaussian(1.0)))


def test_the_first_reason_is_told_and_every_reason_is_entered_once():
    ledger = Ledger()
    for reason in ("one", "other", "one"):
        ledger.void(reason)
    assert ledger.voided == "one"
    assert [row[0] for row in ledger.state_dict()["entries"]] == [to_json(NonPrivate(r)) for r in ("one", "other")]
    strict = Ledger()
    strict.is_strict = True
    with pytest.raises(ClaimVoided):
        strict.void("one")
    assert strict.voided == "one"
    strict.void("other")  # only the first reason stops a strict run


def test_the_most_coordinates_of_a_ledger_count_wherever_they_come_from():
    ledger = Ledger()
    assert ledger.coordinates == MOST_COORDINATES
    ledger.record_coordinates(5)
    ledger.record_coordinates(3)
    assert ledger.coordinates == 5
    for own, loaded in ((3, 5), (7, 7)):
        other = Ledger()
        other.record_coordinates(own)
        other.load_state_dict(ledger.state_dict())
        assert other.coordinates == loaded


def test_a_loaded_ledger_knows_what_either_side_knew():
    saved = Ledger()
    saved.uses([1, 2], "person", "a person is a name")
    section = saved.new_section()
    saved.release(Gaussian(1.0), section)
    saved.disclose("size")
    saved.count(section, LotCounts(5, 2))
    saved.count("9", LotCounts(7, 3))
    other = Ledger()
    other.disclose("labels")
    other.declare("mine")
    other.count(section, LotCounts(6, 4))
    other.load_state_dict(json.loads(json.dumps(saved.state_dict())))
    state = other.state_dict()
    assert state["disclosed"] == ["size", "labels"]
    assert state["declared"] == ["a person is a name", "mine"]
    assert state["counts"] == {section: [6, 4, 0, 0, 0], "9": [7, 3, 0, 0, 0]}
    assert state["unit"] == "person"
    assert other.new_section() == "1"


def test_two_units_do_not_share_a_ledger():
    ledger = Ledger()
    ledger.uses([1, 2], "person")
    ledger.uses([1, 2], "household")  # nothing was released yet
    ledger.release(Gaussian(1.0))
    ledger.uses([1, 2], "household")
    with pytest.raises(Refusal, match="one household more or fewer"):
        ledger.uses([1, 2], "person")


def test_a_phase_that_is_charged_as_a_whole_is_charged_once():
    phase = events.FixedOrder(4, 2, Gaussian(1.0))
    ledger = Ledger()
    for _ in range(3):
        ledger.open(lambda event: phase, planned, cover="0")
    assert ledger.event() == phase

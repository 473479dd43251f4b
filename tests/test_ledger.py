"""The ledger: append-only, one amplification per draw, passes put together."""

import json

import pytest

from sordino import events
from sordino.events import Gaussian, NonPrivate, Poisson, Repeat, Shuffle, Together
from sordino.ledger import Ledger


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
    with pytest.raises(ValueError, match="not empty"):
        other.load_state_dict(saved)


def test_there_is_no_way_to_take_an_entry_back():
    public = {name for name in dir(Ledger) if not name.startswith("_")}
    assert public == {
        "open",
        "release",
        "void",
        "disclose",
        "disclosed",
        "empty",
        "event",
        "state_dict",
        "load_state_dict",
    }
    assert events.canonical(Ledger().event()) == Together()

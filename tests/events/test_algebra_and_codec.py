"""Events: frozen, comparable, JSON in and out, composed without loss."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino import events
from sordino.events import (
    Event,
    Exponential,
    FixedSize,
    Gaussian,
    Laplace,
    NonPrivate,
    Poisson,
    Repeat,
    Shuffle,
    Together,
    canonical,
    compose,
    from_json,
)

scale = st.floats(1e-3, 1e3)
leaves = st.one_of(
    scale.map(Gaussian), scale.map(Laplace), scale.map(Exponential), st.sampled_from("ab").map(NonPrivate)
)


def larger(inner: st.SearchStrategy[Event]) -> st.SearchStrategy[Event]:
    return st.one_of(
        st.builds(Poisson, st.floats(1e-6, 1.0), inner),
        st.builds(FixedSize, st.integers(1, 10), st.integers(10, 100), inner),
        st.builds(Shuffle, inner),
        st.builds(Repeat, inner, st.integers(1, 1000)),
        st.lists(inner, max_size=4).map(lambda found: Together(*found)),
    )


trees = st.recursive(leaves, larger, max_leaves=8)


@given(trees)
def test_json_and_back_is_the_same_event(event):
    assert from_json(json.dumps(event.to_json())) == event
    assert from_json(event.to_json()) == event
    assert hash(from_json(event.to_json())) == hash(event)


@given(trees)
def test_the_canonical_form_is_its_own(event):
    assert canonical(canonical(event)) == canonical(event)


def counted(event: Event, times: int = 1) -> dict[Event, int]:
    """How often each release happens outside of any sampling: the multiset that composition must keep."""
    if isinstance(event, Repeat):
        return counted(event.event, times * event.count)
    if isinstance(event, Together):
        total: dict[Event, int] = {}
        for part in event.events:
            for key, count in counted(part, times).items():
                total[key] = total.get(key, 0) + count
        return total
    return {event: times}


flat_trees = st.recursive(
    scale.map(Gaussian),
    lambda inner: st.one_of(
        st.builds(Repeat, inner, st.integers(1, 9)), st.lists(inner, max_size=4).map(lambda found: Together(*found))
    ),
    max_leaves=8,
)


@given(flat_trees)
def test_the_canonical_form_loses_no_release(event):
    assert counted(canonical(event)) == counted(event)


@given(trees)
def test_a_part_without_privacy_absorbs_the_rest(event):
    absorbed = compose([event, NonPrivate("told"), event])
    assert isinstance(absorbed, NonPrivate)
    assert "told" in absorbed.reason


def test_runs_are_run_length_coded():
    step = Poisson(0.1, Gaussian(1.0))
    assert compose([step] * 7200) == Repeat(step, 7200)
    assert compose([step, step, Gaussian(2.0), step]) == Together(Repeat(step, 2), Gaussian(2.0), step)


def test_one_draw_twice_is_not_two_draws():
    assert canonical(Poisson(0.1, Repeat(Gaussian(1.0), 2))) != canonical(Repeat(Poisson(0.1, Gaussian(1.0)), 2))


def test_a_rate_of_one_is_no_sampling():
    assert canonical(Poisson(1.0, Gaussian(1.0))) == Gaussian(1.0)


def test_events_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Gaussian(1.0).multiplier = 2.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gaussian(0.0),
        lambda: Gaussian(float("nan")),
        lambda: Laplace(-1.0),
        lambda: Poisson(0.0, Gaussian(1.0)),
        lambda: Poisson(1.1, Gaussian(1.0)),
        lambda: FixedSize(11, 10, Gaussian(1.0)),
        lambda: Repeat(Gaussian(1.0), 0),
        lambda: NonPrivate(""),
        lambda: from_json("{}"),
        lambda: from_json('{"type": "Gaussian", "multiplier": -1}'),
        lambda: from_json('{"type": "Gaussian", "sigma": 1}'),
        lambda: from_json('{"type": "__import__"}'),
        lambda: from_json("[1]"),
    ],
)
def test_events_that_make_no_sense_are_refused(make):
    with pytest.raises(ValueError):
        make()


def test_walk_finds_everything():
    tree = Together(Repeat(Poisson(0.1, Gaussian(1.0)), 3), Laplace(2.0))
    assert [type(e).__name__ for e in events.walk(tree)] == ["Together", "Repeat", "Poisson", "Gaussian", "Laplace"]

"""The event types the accountants know: frozen, validated, and the same after a trip through JSON."""

import pytest

from sordino.events import (
    BallsInBins,
    Batch,
    DiscreteGaussian,
    Gaussian,
    Group,
    Laplace,
    Mixture,
    NonPrivate,
    Poisson,
    ProjectedClip,
    RandomisedResponse,
    Repeat,
    Shuffle,
    Together,
    TruncatedPoisson,
    TuneNegativeBinomial,
    TunePoisson,
    canonical,
    from_json,
    to_json,
)

EVENTS = [
    DiscreteGaussian(2.0),
    RandomisedResponse(0.3, 4),
    ProjectedClip(1.1, 50),
    Mixture((0.5, 0.4), (Gaussian(1.0), Laplace(2.0))),
    TruncatedPoisson(0.1, 100, 20, Gaussian(1.0)),
    BallsInBins(10, Gaussian(1.0)),
    Shuffle(Repeat(Batch(Together(Gaussian(1.0), Gaussian(2.0))), 5)),
    Group(Poisson(0.1, Gaussian(1.0)), 3),
    TunePoisson(Gaussian(1.0), 5.0),
    TuneNegativeBinomial(Gaussian(1.0), 0.0, 0.1),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_survives_json_and_canonical_form(event):
    assert from_json(to_json(event)) == event
    assert canonical(canonical(event)) == canonical(event)
    assert canonical(Together(event, event)) == Repeat(canonical(event), 2)


@pytest.mark.parametrize("event", EVENTS[3:], ids=lambda event: type(event).__name__)
def test_something_non_private_inside_is_found(event):
    data = to_json(event)
    key = "events" if "events" in data else "event"
    bad = to_json(NonPrivate("no"))
    data[key] = [bad] * len(data[key]) if key == "events" else bad
    assert canonical(from_json(data)) == NonPrivate("no")


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomisedResponse(0.0),
        lambda: RandomisedResponse(0.5, 1),
        lambda: Mixture((0.9, 0.2), (Gaussian(1.0), Gaussian(2.0))),
        lambda: Mixture((1.0,), ()),
        lambda: TuneNegativeBinomial(Gaussian(1.0), -1.0, 0.5),
        lambda: TuneNegativeBinomial(Gaussian(1.0), 1.0, 1.0),
        lambda: TunePoisson(Gaussian(1.0), 0.0),
        lambda: BallsInBins(0, Gaussian(1.0)),
        lambda: Group(Gaussian(1.0), 0),
    ],
)
def test_a_meaningless_event_cannot_be_made(make):
    with pytest.raises(ValueError, match=r"must|need"):
        make()


def test_releases_of_one_batch_are_not_mixed_with_those_of_others():
    kept = Shuffle(Repeat(Batch(Repeat(Gaussian(1.0), 2)), 3))
    assert canonical(kept) == kept

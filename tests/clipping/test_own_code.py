"""A rule passes as proved by what its code is, not by what it calls itself."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any

import pytest
import torch

import sordino as sd
from sordino.clipping.clipping_rule import is_own_code
from tests.honesty.data import cross_entropy, network, vectors

LENGTHS = sd.per_sample.Norms(torch.tensor([[0.25], [4.0], [64.0], [9.0]]), ("weight",))


@dataclass(frozen=True)
class Disguised:
    """A rule that clips at the lot's median, and looks like the one of `Flat` that it wraps."""

    disguise: Callable[[Any], Any]

    def init(self) -> None:
        return None

    def rule(self, state: object, lot: Callable[[], Any]) -> Any:
        proven = sd.Flat(1.0).rule(None, lot)
        return replace(proven, weights=self.disguise(proven.weights))

    def advance(self, state: object, tally: object, expected_batch: float, rng: object) -> tuple[tuple[()], object]:
        return (), state


def clip_at_median(norms):
    r = norms.total()
    if not len(r):
        return r.unsqueeze(1)
    bound = r.median() / (1 + r.median())  # below the bound that is promised, and another for every lot
    return (bound / r).clamp(max=1.0).unsqueeze(1)


def wrapped(proven):
    return wraps(proven)(lambda norms: clip_at_median(norms))


def renamed(proven):
    def weights(norms):
        return clip_at_median(norms)

    weights.__module__, weights.__qualname__ = proven.__module__, proven.__qualname__
    return weights


def partially(proven):
    made = partial(clip_at_median)
    made.__module__ = proven.__module__
    return made


class FlatAtMedian(sd.Flat):
    """A subclass of the library's own class, whose module says that it is the library's."""

    def weigh(self, norms):
        return clip_at_median(norms)


FlatAtMedian.__module__ = sd.Flat.__module__


def of_a_subclass(proven):
    return FlatAtMedian(1.0).weigh


DISGUISES = [wrapped, renamed, partially, of_a_subclass]


@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_stranger_under_the_name_of_a_proved_rule_is_watched_and_the_run_has_no_claim(disguise):
    model = network()
    query = sd.NoisySum(Disguised(disguise), sd.Gaussian(1.0))
    private = sd.Private(model, cross_entropy, query)
    for lot in private.draws(vectors(0), sd.Poisson(0.4), steps=2, expected_batch=25):
        private.backward(lot)
    said = private.claim(1e-5)
    assert isinstance(said, sd.NoGuarantee), str(said)
    assert "change with other rows" in said.reason


OWN = [
    sd.Flat(1.0),
    sd.Automatic(1.0),
    sd.PSAC(1.0),
    sd.Normalised(1.0),
    sd.BandPass(1.0, 0.1),
    sd.Global(1.0, 10.0),
    sd.GlobalAdapt(1.0, 10.0),
    sd.Layerwise([1.0]),
    sd.Scheduled(lambda step: 1.0 / (1 + step)),
    sd.AdaptiveQuantile(1.0, 0.5, 5.0),
]


@pytest.mark.parametrize("clipping", OWN, ids=lambda clipping: type(clipping).__name__)
def test_the_library_s_own_rules_are_known(clipping):
    """Otherwise every batch would be tried again for nothing."""
    rule = clipping.rule(clipping.init(), lambda: LENGTHS)
    assert is_own_code(rule.weights)
    assert rule.tally is None or is_own_code(rule.tally)


def test_a_stranger_s_function_inside_a_closure_of_the_library_is_a_stranger():
    def around(inner):
        return lambda norms: inner(norms)

    assert not is_own_code(around(clip_at_median))
    own = sd.Flat(1.0).rule(None, lambda: LENGTHS).weights
    assert not is_own_code(partial(own, clip_at_median))

"""Events are open: an event and a sampler that are written in this file work with everything that asks events.

`TwoLooks` is a new mechanism that only says its dominating pair and its noise. `SharedCoin` is a new way of sampling with a
theorem of its own: its pair and its Rényi divergence are written here from the definition. Each has an oracle: the same
release, said with the events of the package.
"""

import json
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from scipy.special import logsumexp, ndtr

from sordino import accounting as A
from sordino.events import (
    Event,
    Gaussian,
    Group,
    NonPrivate,
    Poisson,
    Relation,
    Repeat,
    Together,
    TunePoisson,
    canonical,
    compose,
    event_counts,
    from_json,
    is_private,
    register_event,
    relations,
    to_json,
)
from sordino.events.base import require_event, require_noise, set_field
from sordino.ledger.claims import Guarantee, NoGuarantee, make_claim
from sordino.ledger.ledger import Ledger
from sordino.privacy_loss.lattice import Sampled
from sordino.privacy_loss.noise_ends import gaussian_end
from sordino.privacy_loss.pairs import GaussianPair, Pair, cell_masses_from_tails
from sordino.release.noise_tail import delta_of_noise_end

DELTA = 1e-6


@register_event
@dataclass(frozen=True)
class TwoLooks(Event):
    """The same sum released twice, with noise of two sizes: one Gaussian release with μ² = 1/σ₁² + 1/σ₂²."""

    first: float
    second: float

    def __post_init__(self):
        set_field(self, "first", require_noise("first", self.first))
        set_field(self, "second", require_noise("second", self.second))

    def dominating_pair(self, moves):
        return GaussianPair(moves * math.hypot(1 / self.first, 1 / self.second))

    def noise_end(self, moves, delta, coordinates):
        return math.fsum(gaussian_end(moves / sigma, delta, coordinates) for sigma in (self.first, self.second))

    def scale_noise(self, factor):
        return TwoLooks(self.first * factor, self.second * factor)


@dataclass(frozen=True)
class SharedCoinPair(Pair):
    """(1−q)N(0, I) + qN(μ, I) against N(0, I), in the direction of μ: λ = log(1 − q + q·e^{μz − μ²/2})."""

    rate: float
    mu: float
    symmetric: ClassVar[bool] = False

    def masses(self, edges):
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.log(np.maximum(np.expm1(edges) + self.rate, 0.0) / self.rate)
        z = ratio / self.mu + self.mu / 2
        without = cell_masses_from_tails(ndtr(z), ndtr(-z))
        with_record = cell_masses_from_tails(ndtr(z - self.mu), ndtr(self.mu - z))
        return without, (1 - self.rate) * without + self.rate * with_record

    def native_edges(self):
        z = np.linspace(-37.5, 37.5 + self.mu, 1500)
        edges = np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + self.mu * z - self.mu**2 / 2)
        return np.unique(np.concatenate(([edges[0] - 1e-9], edges)))

    def renyi_divergence(self, order):
        """E_Q[(1 − q + q·r)^α] by a fine sum; it is the larger of both directions (Mironov, Talwar & Zhang 2019)."""
        z, step = np.linspace(-14, order * self.mu + 14, 40_001, retstep=True)
        loss = np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + self.mu * z - self.mu**2 / 2)
        total = logsumexp(order * loss - z**2 / 2) + math.log(step / math.sqrt(2 * math.pi))
        return float(total) / (order - 1)


@register_event
@dataclass(frozen=True)
class SharedCoin(Event):
    """`event`, `releases` times on one draw: each record has one secret coin for all of them."""

    rate: float
    releases: int
    event: Event
    assumes: ClassVar[str] = "each record has one secret coin for several releases"
    relation: ClassVar[Relation] = Relation.ADD_OR_REMOVE
    is_one_draw: ClassVar[bool] = True

    def __post_init__(self):
        set_field(self, "event", require_event(self.event))

    def add_phases(self, collector, count):
        collector.require_relation(self, Relation.ADD_OR_REMOVE, Relation.ZERO_OUT)
        pair = self.event.dominating_pair(1)
        assert isinstance(pair, GaussianPair)
        collector.add(Sampled(SharedCoinPair(self.rate, math.sqrt(self.releases) * pair.mu)), count)

    def noise_end(self, moves, delta, coordinates):
        return self.releases * self.event.noise_end(moves, delta, coordinates)


LOOKS, LOOKS_ORACLE = TwoLooks(2.0, 3.0), Together(Gaussian(2.0), Gaussian(3.0))
COIN, COIN_ORACLE = SharedCoin(0.05, 4, Gaussian(2.0)), Poisson(0.05, Repeat(Gaussian(2.0), 4))
SAME = [
    (LOOKS, LOOKS_ORACLE),
    (COIN, COIN_ORACLE),
    (Repeat(LOOKS, 5), Repeat(LOOKS_ORACLE, 5)),
    (Repeat(COIN, 30), Repeat(COIN_ORACLE, 30)),
    (Poisson(0.1, LOOKS), Poisson(0.1, LOOKS_ORACLE)),
    (Together(LOOKS, Repeat(COIN, 20), Gaussian(4.0)), Together(LOOKS_ORACLE, Repeat(COIN_ORACLE, 20), Gaussian(4.0))),
]
events_and_oracles = pytest.mark.parametrize(("event", "oracle"), SAME, ids=lambda event: event.describe())


@events_and_oracles
def test_json_holds_a_new_event(event, oracle):
    assert from_json(json.dumps(to_json(event))) == event
    assert from_json(json.dumps(to_json(oracle))) == oracle


@events_and_oracles
def test_pld_bounds_a_new_event_as_the_oracle(event, oracle):
    low, high = A.PLD().bounds(event, DELTA)
    oracle_low, oracle_high = A.PLD().bounds(oracle, DELTA)
    # Both are certified, so each lower bound is below the other's upper bound; and both are tight.
    assert low <= oracle_high * (1 + 1e-9)
    assert oracle_low <= high * (1 + 1e-9)
    assert high == pytest.approx(oracle_high, rel=2e-3)
    assert A.PLD().delta(event, 1.0) == pytest.approx(A.PLD().delta(oracle, 1.0), rel=2e-2)


@events_and_oracles
def test_rdp_moments_and_live_know_a_new_event(event, oracle):
    assert A.RDP().epsilon(event, DELTA) == pytest.approx(A.RDP().epsilon(oracle, DELTA), rel=1e-3)
    assert A.Moments().epsilon(event, DELTA) == pytest.approx(A.Moments().epsilon(oracle, DELTA), rel=1e-3)
    assert A.Live().epsilon(event, DELTA) == pytest.approx(A.Live().epsilon(oracle, DELTA), rel=2e-3)


def test_composition_theorems_and_groups_ask_a_new_event():
    assert A.Basic().epsilon(LOOKS, DELTA) == pytest.approx(A.PLD().epsilon(LOOKS_ORACLE, DELTA))
    with pytest.raises(A.Unsupported, match="no theorem for groups"):
        A.PLD().epsilon(Group(LOOKS, 2), DELTA)


@pytest.mark.parametrize(
    ("make", "make_oracle"),
    [
        (lambda s: TwoLooks(s, 2 * s), lambda s: Together(Gaussian(s), Gaussian(2 * s))),
        (lambda s: Repeat(SharedCoin(0.05, 4, Gaussian(s)), 30), lambda s: Repeat(Poisson(0.05, Gaussian(s / 2)), 30)),
    ],
)
def test_calibration_finds_the_noise_of_a_new_event(make, make_oracle):
    sigma = A.calibrate(make, A.PLD(), 1.0, DELTA)
    assert A.PLD().epsilon(make(sigma), DELTA) <= 1.0
    assert sigma == pytest.approx(A.calibrate(make_oracle, A.PLD(), 1.0, DELTA), rel=2e-3)


def test_the_tradeoff_curve_of_a_new_event_is_the_oracles():
    alpha = np.array([0.01, 0.1, 0.5])
    for event, oracle in SAME[:2]:
        curves = [A.tradeoff(one, points=12)(alpha) for one in (event, oracle)]
        assert curves[0] == pytest.approx(curves[1], abs=2e-3)


def test_a_search_over_runs_of_a_new_event():
    search, oracle = TunePoisson(Repeat(COIN, 10), 3.0), TunePoisson(Repeat(COIN_ORACLE, 10), 3.0)
    assert A.PLD().epsilon(search, 1e-5) == pytest.approx(A.PLD().epsilon(oracle, 1e-5), rel=5e-3)


@events_and_oracles
def test_the_end_of_the_noise_and_louder_noise_of_a_new_event(event, oracle):
    ours, theirs = (delta_of_noise_end(one, DELTA, Relation.ADD_OR_REMOVE, 1000) for one in (event, oracle))
    assert ours == pytest.approx(theirs)
    louder, oracle_louder = event.scale_noise(0.5), oracle.scale_noise(0.5)
    assert louder != event
    assert A.PLD().epsilon(louder, DELTA) == pytest.approx(A.PLD().epsilon(oracle_louder, DELTA), rel=2e-3)


def test_the_algebra_composes_and_shortens_a_new_event():
    assert canonical(Together(COIN, Together(COIN, Repeat(COIN, 2)))) == Repeat(COIN, 4)
    assert compose([LOOKS]) is LOOKS
    assert canonical(SharedCoin(0.1, 2, Together(Gaussian(1.0)))) == SharedCoin(0.1, 2, Gaussian(1.0))
    assert list(event_counts(Repeat(Together(LOOKS, COIN), 3))) == [(LOOKS, 3), (COIN, 3)]
    assert relations(Together(LOOKS, COIN)) == {Relation.ADD_OR_REMOVE}
    assert A.relation_of(COIN) is Relation.ADD_OR_REMOVE
    assert Repeat(COIN, 3).describe() == "3 × SharedCoin(0.05, 4, Gaussian(2))"


def test_what_is_not_private_inside_a_new_event_is_found():
    hidden = SharedCoin(0.1, 2, Poisson(0.5, NonPrivate("the largest loss was printed")))
    assert not is_private(hidden)
    assert canonical(Together(LOOKS, hidden)) == NonPrivate("the largest loss was printed")
    assert A.PLD().epsilon(hidden, DELTA) == math.inf


def test_the_ledger_charges_a_new_way_of_sampling_and_claims_it():
    ledger = Ledger()
    for _ in range(20):
        ledger.open(lambda event: SharedCoin(0.05, 4, event), lambda: Gaussian(2.0))
        ledger.release(Gaussian(2.0))
    ledger.close()
    ledger.release(LOOKS)
    claim = ledger.claim(delta=1e-5)
    assert isinstance(claim, Guarantee)
    assert claim.event == Together(Repeat(COIN, 20), LOOKS)
    assert claim.relation is Relation.ADD_OR_REMOVE
    oracle = make_claim(Together(Repeat(COIN_ORACLE, 20), LOOKS_ORACLE), 1e-5, A.PLD())
    assert claim.epsilon == pytest.approx(oracle.epsilon, rel=2e-3)
    again = Ledger()
    again.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    assert again.event() == ledger.event()


@register_event
@dataclass(frozen=True)
class SaysNothing(Event):
    """An event whose author wrote no theorem."""


@pytest.mark.parametrize("accountant", [A.PLD(), A.RDP(), A.Moments(), A.Basic(), A.Advanced(), A.GaussianCLT()])
def test_an_event_that_says_nothing_is_refused(accountant):
    for event in (SaysNothing(), Repeat(SaysNothing(), 2), Poisson(0.1, SaysNothing())):
        with pytest.raises(A.Unsupported, match="no theorem for this event"):
            accountant.epsilon(event, DELTA)
    assert isinstance(make_claim(SaysNothing(), DELTA, accountant), NoGuarantee)


def test_noise_whose_end_is_not_bounded_is_not_claimed():
    @dataclass(frozen=True)
    class Endless(Event):
        multiplier: float

        def dominating_pair(self, moves):
            return GaussianPair(moves / self.multiplier)

    assert A.PLD().epsilon(Endless(5.0), 1e-5) == A.PLD().epsilon(Gaussian(5.0), 1e-5)
    claim = make_claim(Poisson(0.1, Endless(5.0)), 1e-5, A.PLD())
    assert isinstance(claim, NoGuarantee)
    assert "the end of its noise" in claim.reason


def test_only_frozen_events_with_a_name_of_their_own_are_registered():
    @dataclass
    class Changing(Event):
        size: float

    with pytest.raises(TypeError, match="frozen"):
        register_event(Changing)

    @dataclass(frozen=True)
    class Gaussian(Event):
        multiplier: float

    with pytest.raises(ValueError, match="has an event of this name"):
        register_event(Gaussian)

"""What was done to the data: a small algebra of frozen, comparable events, JSON in and out.

An event holds no ε. Its class knows the theorems about it, and accountants make numbers of them. A *multiplier* or
*scale* is always relative to the largest contribution of one record, so events do not know clip bounds or models.

    Gaussian(σ)            a sum with one record's L2 contribution ≤ 1, plus N(0, σ²) on every coordinate
    Laplace(b)             a sum with one record's L1 contribution ≤ 1, plus Lap(b) on every coordinate
    Exponential(ε)         a choice by the exponential mechanism, ε-DP and ε-bounded-range
    DiscreteGaussian(σ)    an integer sum with one record's contribution ≤ 1, plus discrete Gaussian noise
    RandomisedResponse     one record's answer among k, replaced by a uniform one with probability `flip`
    Mixture(w, (e, …))     one of the events, drawn with public weights and made known; the weight missing to 1 is lost
    ProjectedClip(σ, r)    Gaussian(σ) with one record's contribution ≤ √(r/χ²_r): clipped by norms from r directions
    Poisson(q, e)          e on a draw in which each record takes part by its own coin of probability q
    FixedSize(b, n, e)     e on a uniform subset of exactly b of the n records
    TruncatedPoisson       a Poisson draw cut to a largest size by dropping records at random
    BallsInBins(t, e)      e on each of t batches; every record is in one of them, chosen by its own uniform draw
    Shuffle(e)             the releases e, each on another of the disjoint batches of one random pass over the data
    Batch(e)               inside Shuffle: all that was released on one and the same batch
    CyclicPoisson(q, b, n, e)  n steps with e in each, on Poisson draws from one of b groups of records after the other
    FixedOrder(n, b, e)    n steps with e in each; a record takes part in every b-th
    Correlated(σ, C)       a step of these with noise of which other steps cancel a part, factored by C
    Together(e, …)         all of these, one after the other or on the same draw: composition
    Repeat(e, k)           e, k times: composition
    Group(e, k)            e as seen by k records together
    TunePoisson(e, m)      the best of K runs of e, K ~ Poisson(m), nothing else released
    TuneNegativeBinomial   the best of K runs of e, K ~ truncated negative binomial (geometric when shape is 1)
    NonPrivate(reason)     something no theorem covers; it absorbs every event it is composed with

Privacy: `Poisson(q, Together(a, b))` and `Together(Poisson(q, a), Poisson(q, b))` are different events. The first is
two releases on one draw, amplified once; the second two independent draws.
"""

from typing import Any

from sordino.events.algebra import canonical, children, compose, is_private, relations, walk
from sordino.events.balls_in_bins_pass import BallsInBins
from sordino.events.base import Event, register_event
from sordino.events.codec import from_json, to_json
from sordino.events.correlated_steps import Correlated
from sordino.events.cyclic_draws import CyclicPoisson
from sordino.events.discrete_gaussian_noise import DiscreteGaussian
from sordino.events.exponential_choice import Exponential
from sordino.events.fixed_order_draws import FixedOrder
from sordino.events.fixed_size_draw import FixedSize
from sordino.events.gaussian_noise import Gaussian
from sordino.events.laplace_noise import Laplace
from sordino.events.mixture import Mixture
from sordino.events.non_private import NonPrivate
from sordino.events.poisson_draw import Poisson
from sordino.events.projected_clipping import ProjectedClip
from sordino.events.randomised_response import RandomisedResponse
from sordino.events.record_group import Group
from sordino.events.relation import Relation
from sordino.events.search_of_runs import TuneNegativeBinomial, TunePoisson
from sordino.events.sequential_composition import Repeat, Together, event_counts
from sordino.events.shuffled_pass import Batch, Shuffle
from sordino.events.truncated_poisson_draw import TruncatedPoisson
from sordino.former_names import find_former_name

_FORMER_NAMES = {"counted": "event_counts"}
"""Functions by the names they had in 0.2."""

__all__ = [
    "BallsInBins",
    "Batch",
    "Correlated",
    "CyclicPoisson",
    "DiscreteGaussian",
    "Event",
    "Exponential",
    "FixedOrder",
    "FixedSize",
    "Gaussian",
    "Group",
    "Laplace",
    "Mixture",
    "NonPrivate",
    "Poisson",
    "ProjectedClip",
    "RandomisedResponse",
    "Relation",
    "Repeat",
    "Shuffle",
    "Together",
    "TruncatedPoisson",
    "TuneNegativeBinomial",
    "TunePoisson",
    "canonical",
    "children",
    "compose",
    "event_counts",
    "from_json",
    "is_private",
    "register_event",
    "relations",
    "to_json",
    "walk",
]


def __getattr__(name: str) -> Any:
    """Returns the function that had the given name in 0.2."""
    return find_former_name(__name__, _FORMER_NAMES, name)

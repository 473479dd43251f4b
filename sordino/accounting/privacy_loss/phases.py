"""From an event to the sampled releases that compose it, under one neighbouring relation.

**Privacy:** a multiplier is relative to one record's contribution. Under replace-one a sum moves by two contributions,
so plain releases count with twice the sensitivity; under zero-out a record's contribution vanishes, as if removed.
Poisson sampling speaks about add/remove (and zero-out alike); fixed-size subsets about replace-one; shuffled passes
about zero-out: in a pass a record meets one release, so the worst single release per pass is a valid bound, without
amplification. What a relation does not cover is refused.
"""

from __future__ import annotations

import math
from functools import lru_cache

from scipy.special import bdtrc

from sordino.accounting.accountant import Unsupported
from sordino.accounting.privacy_loss.allocation import allocation
from sordino.accounting.privacy_loss.lattice import Sampled
from sordino.accounting.privacy_loss.pairs import (
    LARGE_SIGMA,
    LARGEST_SIGMA,
    BoundedRangePair,
    GaussianPair,
    LaplacePair,
    MixturePair,
    Pair,
    discrete_gaussian_groups,
    discrete_gaussian_pair,
    response_pair,
)
from sordino.accounting.privacy_loss.projection import projected_clipping
from sordino.accounting.privacy_loss.saddle import Phases
from sordino.accounting.privacy_loss.sampled_pairs import Between, GroupPair, PoissonReplacePair, SampledPair, product
from sordino.events import (
    BallsInBins,
    Batch,
    DiscreteGaussian,
    Event,
    Exponential,
    FixedSize,
    Gaussian,
    Group,
    Laplace,
    Mixture,
    NonPrivate,
    Poisson,
    ProjectedClip,
    RandomisedResponse,
    Relation,
    Repeat,
    Shuffle,
    Together,
    TruncatedPoisson,
    TuneNegativeBinomial,
    TunePoisson,
    canonical,
    counted,
    relations,
    walk,
)


def is_private(event: Event) -> bool:
    """Whether no part of the event is outside every theorem."""
    return not any(isinstance(inner, NonPrivate) for inner in walk(event))


def relation_of(event: Event, asked: Relation | None = None) -> Relation:
    """The one relation about which an event can be accounted; refused when its samplers speak about different ones.

    Args:
        event: anything that was done to the data.
        asked: the relation that is wanted; refused where the event speaks about another.

    Returns:
        The relation.

    Examples:
        >>> from sordino.events import Gaussian, Poisson
        >>> str(relation_of(Poisson(0.1, Gaussian(1.0))))
        'add-or-remove-one'

    """
    if asked is not None:
        return Relation(asked)
    found = relations(event)
    if not found:
        return Relation.ADD_OR_REMOVE
    if found <= {Relation.ADD_OR_REMOVE, Relation.ZERO_OUT}:
        return Relation.ZERO_OUT if Relation.ZERO_OUT in found else Relation.ADD_OR_REMOVE
    if found == {Relation.REPLACE}:
        return Relation.REPLACE
    names = ", ".join(sorted(found))
    raise Unsupported(event, f"its ways of sampling speak about different neighbours ({names}); account them apart")


class Collector:
    """Gathers the phases of one event."""

    def __init__(self, relation: Relation, delta: float, passes: int) -> None:
        self.relation = relation
        self.delta = delta
        self.passes = passes
        self.mu_squared = 0.0
        self.phases: dict[Sampled, int] = {}

    @property
    def moves(self) -> int:
        """How many contributions a plain sum moves by."""
        return 2 if self.relation is Relation.REPLACE else 1

    def result(self) -> Phases:
        """The phases, with all plain Gaussians as one."""
        plain = ((Sampled(GaussianPair(math.sqrt(self.mu_squared))), 1),) if self.mu_squared > 0 else ()
        return plain + tuple(self.phases.items())

    def put(self, sampled: Sampled, count: int) -> None:
        """One more phase."""
        self.phases[sampled] = self.phases.get(sampled, 0) + count

    def add(self, event: Event, count: int) -> None:
        """Gather an event that happens `count` times."""
        match event:
            case Together(events=events):
                for inner in events:
                    self.add(inner, count)
            case Repeat(event=inner, count=times):
                self.add(inner, count * times)
            case Gaussian(multiplier=sigma):
                self.mu_squared += count * (self.moves / sigma) ** 2
            case Poisson(rate=rate, event=inner):
                self._poisson(event, rate, inner, count)
            case FixedSize(batch_size=size, dataset_size=total, event=inner):
                self._need(event, Relation.REPLACE)
                self.put(Sampled(base_pair(inner, 2), size / total, subset=True), count)
            case TruncatedPoisson():
                self._need(event, Relation.ADD_OR_REMOVE)
                self.put(Sampled(_truncated(event)), count)
            case BallsInBins(bins=bins, event=inner):
                self._need(event, Relation.ADD_OR_REMOVE, Relation.ZERO_OUT)
                if bins == 1:
                    self.add(inner, count)
                    return
                cut = 1e-4 * self.delta / max(self.passes, 1)
                self.put(Sampled(allocation(base_pair(inner, 1), bins, cut)), count)
            case Batch(event=inner):
                self.add(inner, count)
            case Shuffle(event=inner):
                self._need(event, Relation.ZERO_OUT, Relation.REPLACE)
                self._shuffle(inner, count)
            case Group(event=inner, size=size):
                self._group(event, inner, size, count)
            case _:
                self.put(Sampled(base_pair(event, self.moves)), count)

    def _need(self, event: Event, *fine: Relation) -> None:
        if self.relation not in fine:
            raise Unsupported(event, f"has no theorem under {self.relation}")

    def _poisson(self, event: Event, rate: float, inner: Event, count: int) -> None:
        inner = canonical(inner)
        if isinstance(inner, Poisson):
            self._poisson(event, rate * inner.rate, inner.event, count)
        elif rate == 1.0:
            self.add(inner, count)
        elif self.relation is Relation.REPLACE:
            pair = base_pair(inner, 1)
            if not isinstance(pair, GaussianPair):
                raise Unsupported(event, "Poisson sampling under replace-one is known for Gaussian releases only")
            self.put(Sampled(PoissonReplacePair(rate, pair.mu)), count)
        else:
            self.put(Sampled(base_pair(inner, 1), rate), count)

    def _shuffle(self, inner: Event, count: int) -> None:
        """The worst single release of a pass; of releases that cannot be ranked, one of each kind."""
        inner = canonical(inner)
        units = inner.events if isinstance(inner, Together) else (inner,)
        largest, others = 0.0, set()
        for unit in {unit.event if isinstance(unit, Repeat) else unit for unit in units}:
            one = Collector(self.relation, self.delta, self.passes)
            one.add(unit, 1)
            if one.phases:
                others.add(unit)
            else:
                largest = max(largest, one.mu_squared)
        self.mu_squared += count * largest
        for unit in others:
            self.add(unit, count)

    def _group(self, event: Event, inner: Event, size: int, count: int) -> None:
        match inner:
            case Together(events=events):
                for part in events:
                    self._group(event, part, size, count)
            case Repeat(event=part, count=times):
                self._group(event, part, size, count * times)
            case Gaussian(multiplier=sigma):
                self.mu_squared += count * (size * self.moves / sigma) ** 2
            case Poisson(rate=rate, event=base):
                self._need(event, Relation.ADD_OR_REMOVE, Relation.ZERO_OUT)
                pair = base_pair(base, 1)
                if not isinstance(pair, GaussianPair):
                    raise Unsupported(event, "group privacy under sampling is known for Gaussian releases only")
                self.put(Sampled(GroupPair(rate, pair.mu, size)), count)
            case Laplace() | Exponential() | DiscreteGaussian():
                self.put(Sampled(base_pair(inner, size * self.moves)), count)
            case _:
                raise Unsupported(event, "no theorem for groups of this event")


def base_pair(event: Event, moves: int) -> Pair:
    """The pair of one or several unsampled releases, when the sum moves by `moves` contributions."""
    match event:
        case Gaussian(multiplier=sigma):
            return GaussianPair(moves / sigma)
        case Laplace(scale=scale):
            return LaplacePair(moves / scale)
        case Exponential(epsilon=epsilon):
            return BoundedRangePair(moves * epsilon)
        case DiscreteGaussian(multiplier=sigma):
            if sigma > LARGEST_SIGMA:
                raise Unsupported(event, f"a discrete Gaussian is summed up to a multiplier of {LARGEST_SIGMA:g}")
            return Between(*discrete_gaussian_groups(sigma, moves)) if sigma > LARGE_SIGMA else _discrete(sigma, moves)
        case RandomisedResponse(flip=flip, buckets=buckets):
            return response_pair(flip, buckets)
        case Mixture(weights=weights, events=events):
            return MixturePair(weights, tuple(base_pair(inner, moves) for inner in events))
        case ProjectedClip(multiplier=sigma, projections=projections):
            if moves != 1:  # two records are read short by two different factors
                raise Unsupported(event, "clipping by estimated norms has a theorem for one record there or not only")
            return base_pair(projected_clipping(sigma, projections), 1)
        case Together() | Repeat():
            return _joint(event, moves)
        case TunePoisson() | TuneNegativeBinomial():
            raise Unsupported(event, "a search is accounted for as a whole, not as a part of a draw")
        case _:
            raise Unsupported(event, "no theorem for this event here")


@lru_cache(maxsize=64)
def _discrete(sigma: float, moves: int) -> Pair:
    return discrete_gaussian_pair(sigma, moves)


def _joint(event: Event, moves: int) -> Pair:
    parts = list(counted(event))
    squared = math.fsum(n * (moves / e.multiplier) ** 2 for e, n in parts if isinstance(e, Gaussian))
    pairs = [(base_pair(e, moves), n) for e, n in parts if not isinstance(e, Gaussian)]
    if squared:
        pairs.append((GaussianPair(math.sqrt(squared)), 1))
    if not pairs:
        raise Unsupported(event, "releases nothing")
    return pairs[0][0] if len(pairs) == 1 and pairs[0][1] == 1 else product(pairs)


def _truncated(event: TruncatedPoisson) -> Pair:
    """Ganesh et al. 2025 (arXiv:2508.15089): Poisson unless the draw was cut; then one record replaces another."""
    pair = base_pair(event.event, 1)
    if not isinstance(pair, GaussianPair):
        raise Unsupported(event, "truncated Poisson sampling is known for Gaussian releases only")
    size, rate, most = event.dataset_size, event.rate, event.max_batch
    plain = SampledPair(pair, rate)
    if most >= size:
        return plain
    cut = float(bdtrc(most - 1, size - 1, rate))  # P[Binomial(n−1, q) ≥ B]
    if cut == 0.0:
        return plain
    kept = min(1.0 - 1e-12, float(bdtrc(most, size, rate)) * most / (cut * size))
    return MixturePair((1 - cut, cut), (plain, PoissonReplacePair(kept, 2 * pair.mu)))


def collect(event: Event, relation: Relation, delta: float) -> Phases:
    """The phases of an event under a relation. δ only decides how far out in its tails a pass is resolved."""
    event = canonical(event)
    passes = sum(1 for _ in walk(event))
    for inner in walk(event):
        if isinstance(inner, Repeat):
            passes = max(passes, inner.count)
    collector = Collector(relation, delta, passes)
    collector.add(event, 1)
    return collector.result()

"""ε from dp_accounting's privacy loss distributions (Doroshenko et al. 2022), behind the `Accountant` protocol.

    Poisson, Full      PLD, one record added or removed
    Shuffle            the worst single release of each pass, unamplified, composed over passes as PLD; zero-out
    FixedSize          RDP of sampling without replacement (Wang, Balle & Kasiviswanathan 2019), one record replaced, the
                       multiplier halved because the sum then moves by twice a contribution

Privacy: several Gaussian releases on one draw are one Gaussian of multiplier (Σ σ_k⁻²)^(−½), exactly. What has no theorem
here raises `Unsupported`, naming the part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from sordino import events
from sordino.accounting.accountant import Unsupported
from sordino.events import Event, Relation

_INTERVAL = 1e-4
"""dp_accounting's own default lattice for privacy losses."""


@dataclass(frozen=True)
class PLD:
    """Upper bounds on ε by numerical composition."""

    name: str = "PLD by dp_accounting (RDP for fixed-size draws)"

    def epsilon(self, event: Event, delta: float) -> float:
        """The smallest ε of the composed privacy loss at this δ."""
        return _epsilon(events.canonical(event), delta)


@lru_cache(maxsize=256)
def _epsilon(event: Event, delta: float) -> float:
    for inner in events.walk(event):
        if isinstance(inner, events.NonPrivate):
            return math.inf
    if Relation.REPLACE in events.relations(event):
        return _by_rdp(event, delta)
    return _by_pld(event, delta)


def _by_pld(event: Event, delta: float) -> float:
    from dp_accounting.pld import common, pld_privacy_accountant, privacy_loss_distribution

    accountant = pld_privacy_accountant.PLDAccountant(value_discretization_interval=_INTERVAL)
    pure = 0.0
    for phase, count in _phases(event):
        if isinstance(phase, events.Exponential):
            pure += phase.epsilon * count  # basic composition; loose and rare
        else:
            accountant.compose(_translated(phase), count)
    if not pure:
        return float(accountant.get_epsilon(delta))
    parameters = common.DifferentialPrivacyParameters(pure, 0.0)
    chosen = privacy_loss_distribution.from_privacy_parameters(parameters, value_discretization_interval=_INTERVAL)
    return float(accountant._pld.compose(chosen).get_epsilon_for_delta(delta))


def _by_rdp(event: Event, delta: float) -> float:
    import dp_accounting
    from dp_accounting.rdp import rdp_privacy_accountant

    accountant = rdp_privacy_accountant.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    for phase, count in _phases(event):
        inner = _single(phase.event if isinstance(phase, events.FixedSize) else phase)
        if not isinstance(inner, events.Gaussian) or not isinstance(phase, events.FixedSize | events.Gaussian):
            raise Unsupported(phase, "beside fixed-size draws only Gaussian releases are accounted for")
        halved = dp_accounting.GaussianDpEvent(inner.multiplier / 2)
        if isinstance(phase, events.FixedSize) and phase.batch_size < phase.dataset_size:
            halved = dp_accounting.SampledWithoutReplacementDpEvent(phase.dataset_size, phase.batch_size, halved)
        accountant.compose(halved, count)
    return float(accountant.get_epsilon(delta))


def _phases(event: Event) -> Iterator[tuple[Event, int]]:
    """The event as (sampled or plain release, count), passes reduced to their worst release."""
    if isinstance(event, events.Together):
        for part in event.events:
            yield from _phases(part)
    elif isinstance(event, events.Repeat):
        for phase, count in _phases(event.event):
            yield phase, count * event.count
    elif isinstance(event, events.Shuffle):
        yield _worst(event), 1
    else:
        yield event, 1


def _worst(shuffled: events.Shuffle) -> Event:
    """A record meets at most one release of the pass; the one with the least noise bounds it."""
    releases = [_single(phase) for phase, _ in _phases(shuffled.event)]
    gaussian = [release for release in releases if isinstance(release, events.Gaussian)]
    if len(gaussian) == len(releases):
        return min(gaussian, key=lambda release: release.multiplier)
    laplace = [release for release in releases if isinstance(release, events.Laplace)]
    if len(laplace) == len(releases):
        return min(laplace, key=lambda release: release.scale)
    raise Unsupported(shuffled, "a pass with releases of different kinds")


def _single(event: Event) -> Event:
    """Several Gaussian releases on one draw, as the one they amount to."""
    if isinstance(event, events.Gaussian | events.Laplace):
        return event
    inverse = 0.0
    for part, count in _phases(event):
        if not isinstance(part, events.Gaussian):
            raise Unsupported(part, "only Gaussian releases can share a draw here")
        inverse += count / part.multiplier**2
    return events.Gaussian(1 / math.sqrt(inverse))


def _translated(phase: Event) -> object:
    import dp_accounting

    if isinstance(phase, events.Gaussian):
        return dp_accounting.GaussianDpEvent(phase.multiplier)
    if isinstance(phase, events.Laplace):
        return dp_accounting.LaplaceDpEvent(phase.scale)
    if isinstance(phase, events.Poisson):
        return dp_accounting.PoissonSampledDpEvent(phase.rate, _translated(_single(phase.event)))
    raise Unsupported(phase, "no privacy loss distribution is known here")

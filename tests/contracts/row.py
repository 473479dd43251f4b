"""What a row of the table of variants is, and how the common kinds of rows are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import sordino as sd
from sordino.clipping import ClippingRule
from sordino.per_sample import JL, Backend, Captured, Loop, Vmap
from sordino.queries import Query
from sordino.sampling import Sampler
from tests.contracts.hunter import Catch, Units, World, compare
from tests.contracts.neighbours import one_record_more

EXACT: dict[str, Backend] = {"loop": Loop(), "vmap-chunk": Vmap(chunk=2), "captured": Captured()}
BACKENDS: dict[str, Backend] = {**EXACT, "jl": JL(20)}
FAST = ("captured",)
"""For what differs from an earlier row in its clipping only: that a rule meets every backend alike is shown there."""


@dataclass(frozen=True)
class Witness:
    """Two neighbouring runs, and what they show in one sentence."""

    says: str
    worlds: Callable[[], tuple[World, World]]

    def catch(self, row: Variant) -> Catch:
        """What the hunter finds between the two."""
        here, there = self.worlds()
        return compare(row.query, here, there, BACKENDS[row.backends[0]], options=row.options)


@dataclass(frozen=True)
class Variant:
    """One method. `query(multiplier)` asks it; `unclipped()` is the same without bound and noise, which is plain SGD.

    `noun` is what docs/claims.md calls it. `clipping` is given where the query is a NoisySum of one: then its weights are
    tested too. `sampler` is given where the method is one; such a row runs the contracts that need no scripted lots.
    `options` go to `Private`: a penalty. `units` where something else than a record is drawn and bounded. `without` names
    the contracts a row cannot keep, each with the reason.
    """

    name: str
    noun: str
    query: Callable[..., Query]
    unclipped: Callable[[], Query] | None = None
    clipping: Callable[[], ClippingRule] | None = None
    sampler: Callable[[], Sampler] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    units: Units | None = None
    backends: tuple[str, ...] = tuple(EXACT)
    guarantee: bool = True
    witness: Witness | None = None
    without: Mapping[str, str] = field(default_factory=dict)


def clips(
    name: str,
    noun: str,
    clipping: Callable[[], ClippingRule],
    unclipped: Callable[[], ClippingRule] | None = None,
    **more: Any,
) -> Variant:
    """A row for a clipping rule under Gaussian noise; `unclipped` where a large enough bound makes it plain SGD."""

    def query(multiplier: float = 1.0) -> sd.NoisySum:
        return sd.NoisySum(clipping(), sd.Gaussian(multiplier))

    plain = None if unclipped is None else lambda: sd.NoisySum(unclipped(), sd.Gaussian(0.0))
    return Variant(name, noun, query, plain, clipping, **more)


def speakers(n: int) -> tuple[int, sd.Unit]:
    """Units of one to three records; the last has eight, of which three are in a lot."""
    own = [*range(n), *(u for u in range(n) for _ in range(u % 3)), *([n - 1] * 5)]
    return len(own), sd.Unit(own, records=3, name="speaker")


def by_unit(name: str, noun: str, units: Units, backends: tuple[str, ...]) -> Variant:
    """A row for lots of units, under flat clipping."""

    def query(multiplier: float = 1.0) -> sd.NoisySum:
        return sd.NoisySum(sd.Flat(0.5), sd.Gaussian(multiplier))

    return Variant(name, noun, query, units=units, backends=backends)


def draws(name: str, noun: str, sampler: Callable[[], Sampler], **more: Any) -> Variant:
    """A row for a sampler, under flat clipping."""

    def query(multiplier: float = 1.0) -> sd.NoisySum:
        return sd.NoisySum(sd.Flat(0.5), sd.Gaussian(multiplier))

    return Variant(name, noun, query, sampler=sampler, **more)


def correlates(name: str, strategy: Callable[[], Any], sampler: Callable[[], Sampler], **more: Any) -> Variant:
    """A row for noise that is correlated between steps, with draws that its theorem covers."""

    def query(multiplier: float = 1.0) -> sd.NoisySum:
        return sd.NoisySum(sd.Flat(0.5), sd.Correlated(multiplier, strategy()))

    return Variant(name, type(strategy()).__name__, query, sampler=sampler, backends=FAST, **more)


def lookahead(name: str, noun: str, make: Callable[..., Query], **more: Any) -> Variant:
    """A row for a query that takes virtual steps; without steps, bound and noise it is plain SGD."""

    def query(multiplier: float = 1.0) -> Query:
        return make(sd.Flat(0.5), sd.Gaussian(multiplier), learning_rate=0.05)

    def plain() -> Query:
        return make(sd.Flat(float("inf")), sd.Gaussian(0.0), learning_rate=0.0)

    return Variant(name, noun, query, plain, **more)


def releases_loss(name: str, clipping: Callable[[float], ClippingRule]) -> Variant:
    """A row for losses released beside the noisy sum of a clipping rule, which is made for a noise multiplier."""

    def query(multiplier: float = 1.0) -> sd.WithLoss:
        inner = sd.NoisySum(clipping(multiplier), sd.Gaussian(multiplier))
        return sd.WithLoss(inner, bound=0.7, noise=sd.Gaussian(20.0 * multiplier))

    return Variant(name, "WithLoss", query, backends=FAST)


def per_layer(multiplier: float = 1.0) -> sd.NoisySum:
    """Bounds and multipliers of their own; `multiplier` scales all of them."""
    if multiplier:
        return sd.NoisySum.per_layer({"0.": (0.5, 2.0 * multiplier), "2.": (0.2, 4.0 * multiplier)})
    return sd.NoisySum(sd.Layerwise({"0.": 0.5, "2.": 0.2}), sd.Gaussian(0.0))


def by_sign(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A class for records that have none."""
    return (y[:, 0] > 0).long()


def sorts(name: str, sampler: Callable[[], Sampler]) -> Variant:
    """A row for a way of sorting, which has no guarantee."""
    says = "a record that comes in pushes another one out of the lot, and out of all later ones"
    witness = Witness(says, one_record_more(sampler))
    return draws(name, "Sorted", sampler, backends=("captured",), guarantee=False, witness=witness)


def clips_by(name: str, clipping: Callable[[], ClippingRule], witness: Witness) -> Variant:
    """A row for a bound taken from the lot, which has no guarantee."""

    def query(multiplier: float = 1.0) -> sd.NoisySum:
        return sd.NoisySum(clipping(), sd.Gaussian(multiplier))

    return Variant(name, "BatchStatistic", query, backends=("captured",), guarantee=False, witness=witness)

"""The table of variants: every contract is run for every row. A new variant adds one row.

A row is any combination of query, sampler, penalty and backends. It says whether it has a guarantee; one without names a
witness, two neighbouring runs whose sums lie further apart than the scale its noise was calibrated to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.algorithms import Query
from sordino.gradients import JL, Backend, Captured, Loop, Vmap
from sordino.sampling import Band, Sampler
from sordino.schedules import Cosine, Logarithmic
from sordino.weigh import Weigher
from tests.contracts.broken import MedianOfTheLot
from tests.contracts.hunter import Catch, Scripted, World, compare, network

HUGE = 1e9
EXACT: dict[str, Backend] = {"loop": Loop(), "vmap-chunk": Vmap(chunk=2), "captured": Captured()}
BACKENDS: dict[str, Backend] = {**EXACT, "jl": JL(20)}
FAST = ("captured",)
"""For what differs from an earlier row at the waist only: that a weigher meets every backend alike is shown there."""


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

    `noun` is what docs/claims.md calls it. `weigher` is given where the query is a NoisySum of one: then its weights are
    tested too. `sampler` is given where the method is one; such a row runs the contracts that need no scripted lots.
    `options` go to `Private`: a penalty. `without` names the contracts a row cannot keep, each with the reason.
    """

    name: str
    noun: str
    query: Callable[..., Query]
    unclipped: Callable[[], Query] | None = None
    weigher: Callable[[], Weigher] | None = None
    sampler: Callable[[], Sampler] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    backends: tuple[str, ...] = tuple(EXACT)
    guarantee: bool = True
    witness: Witness | None = None
    without: Mapping[str, str] = field(default_factory=dict)


def weighs(
    name: str, noun: str, weigher: Callable[[], Weigher], unclipped: Callable[[], Weigher] | None = None, **more: Any
) -> Variant:
    """A row for a weigher under Gaussian noise; `unclipped` where a large enough bound makes it plain SGD."""

    def query(multiplier: float = 1.0) -> sd.NoisySum:
        return sd.NoisySum(weigher(), sd.Gaussian(multiplier))

    plain = None if unclipped is None else lambda: sd.NoisySum(unclipped(), sd.Gaussian(0.0))
    return Variant(name, noun, query, plain, weigher, **more)


def draws(name: str, noun: str, sampler: Callable[[], Sampler], **more: Any) -> Variant:
    """A row for a sampler, under flat clipping."""

    def query(multiplier: float = 1.0) -> sd.NoisySum:
        return sd.NoisySum(sd.Flat(0.5), sd.Gaussian(multiplier))

    return Variant(name, noun, query, sampler=sampler, **more)


def one_long_record_among_short_ones() -> tuple[World, World]:
    """Eleven records, one of them a thousand times as long; the neighbour lacks it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(11, 5, generator=generator, dtype=torch.float64)
    y = torch.randn(11, 3, generator=generator, dtype=torch.float64)
    y[10] *= 1000
    dataset, everyone = TensorDataset(x, y), tuple(range(11))
    return World(dataset, Scripted((everyone,))), World(dataset, Scripted((everyone[:10],)))


def kinks_between_two_virtual_points() -> tuple[World, World]:
    """Twenty losses |θ − k| with the kink k between where the lot leads with and without one more record.

    At θ = 0 every gradient is −½ after clipping; half a step of rate 0.05 over L = 4 leads to n/320. With 21 records that
    is past k = 20.5/320, and the twenty turn round; with 20 it is not.
    """
    kink, past = 20.5 / 320, torch.arange(21, dtype=torch.float64).eq(20).unsqueeze(1)

    def losses(model: torch.nn.Module, last: torch.Tensor) -> torch.Tensor:
        theta = model(torch.ones_like(last))
        return torch.where(last > 0, -theta, (theta - kink).abs()).squeeze(1)

    def model() -> torch.nn.Module:
        one = torch.nn.Linear(1, 1, bias=False).double()
        torch.nn.init.zeros_(one.weight)
        return one

    dataset, everyone = TensorDataset(past.double()), tuple(range(21))
    here, there = (Scripted((lot,)) for lot in (everyone, everyone[:20]))
    return World(dataset, here, model=model, loss=losses), World(dataset, there, model=model, loss=losses)


def lookahead(name: str, noun: str, make: Callable[..., Query], **more: Any) -> Variant:
    """A row for a query that takes virtual steps; without steps, bound and noise it is plain SGD."""

    def query(multiplier: float = 1.0) -> Query:
        return make(sd.Flat(0.5), sd.Gaussian(multiplier), learning_rate=0.05)

    def plain() -> Query:
        return make(sd.Flat(float("inf")), sd.Gaussian(0.0), learning_rate=0.0)

    return Variant(name, noun, query, plain, **more)


def following(bound: float, kind: Callable[[float, float], Weigher]) -> sd.AdaptiveQuantile:
    """A fixed bound, and a threshold that follows the 0.9-quantile."""
    return sd.AdaptiveQuantile(2.0, quantile=0.9, count_noise=1.0, weigher=partial(kind, bound))


def microbatches(grouping: Any) -> Callable[..., sd.Microbatches]:
    """Flat clipping of the groups' means."""
    return lambda multiplier=1.0: sd.Microbatches(sd.Flat(0.5), sd.Gaussian(multiplier), grouping)


def groups_that_shift() -> tuple[World, World]:
    """Gradients L, −L, s, s, L, −L, …: pairs of them mean 0 and s; without the first, pairs of −L, s and s, L.

    Clipped to s = 0.5 the first sum is 0.5 for every four records, the second 0.
    """
    x = torch.tensor([1000.0, -1000.0, 0.5, 0.5] * 6, dtype=torch.float64)[:, None]
    dataset, everyone = TensorDataset(x), tuple(range(len(x)))

    def model() -> torch.nn.Module:
        return torch.nn.Linear(1, 1, bias=False).double()

    def loss(m: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return m(x).sum(1)  # its gradient is x

    return tuple(World(dataset, Scripted((lot,)), 1, model, loss) for lot in (everyone, everyone[1:]))


def per_layer(multiplier: float = 1.0) -> sd.NoisySum:
    """Bounds and multipliers of their own; `multiplier` scales all of them."""
    if multiplier:
        return sd.NoisySum.per_layer({"0.": (0.5, 2.0 * multiplier), "2.": (0.2, 4.0 * multiplier)})
    return sd.NoisySum(sd.Layerwise({"0.": 0.5, "2.": 0.2}), sd.Gaussian(0.0))


def one_short_record_among_long_ones() -> tuple[World, World]:
    """Eleven records, one of them with almost no gradient; the neighbour lacks it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(11, 5, generator=generator, dtype=torch.float64)
    y = torch.randn(11, 3, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        y[10] = network()(x[10]) + 1e-3
    dataset, everyone = TensorDataset(x, y), tuple(range(11))
    return World(dataset, Scripted((everyone,))), World(dataset, Scripted((everyone[:10],)))


def one_record_more(sampler: Callable[[], Sampler]) -> Callable[[], tuple[World, World]]:
    """Twelve records, the last the longest; the neighbour lacks it. The first eleven have the same coins in both."""

    def worlds() -> tuple[World, World]:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(12, 5, generator=generator, dtype=torch.float64)
        y = 5 * torch.randn(12, 3, generator=generator, dtype=torch.float64)
        y[11] *= 10
        here, there = TensorDataset(x, y), TensorDataset(x[:11], y[:11])
        return World(here, sampler(), steps=3), World(there, sampler(), steps=3)

    return worlds


def sorts(name: str, sampler: Callable[[], Sampler]) -> Variant:
    """A row for a way of sorting, which has no guarantee."""
    says = "a record that comes in pushes another one out of the lot, and out of all later ones"
    witness = Witness(says, one_record_more(sampler))
    return draws(name, "Sorted", sampler, backends=("captured",), guarantee=False, witness=witness)


def clips_by(name: str, weigher: Callable[[], Weigher], witness: Witness) -> Variant:
    """A row for a bound taken from the lot, which has no guarantee."""

    def query(multiplier: float = 1.0) -> sd.NoisySum:
        return sd.NoisySum(weigher(), sd.Gaussian(multiplier))

    return Variant(name, "BatchStatistic", query, backends=("captured",), guarantee=False, witness=witness)


def by_sign(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A class for records that have none."""
    return (y[:, 0] > 0).long()


LONG = Witness("one long record moves the bound of all the others", one_long_record_among_short_ones)
SHORT = Witness("one short record moves the bound of all the others", one_short_record_among_long_ones)

VARIANTS = [
    weighs("flat", "Flat", lambda: sd.Flat(0.5), lambda: sd.Flat(float("inf"))),
    weighs(
        "layerwise", "Layerwise", lambda: sd.Layerwise([0.5, 0.1, 0.3, 1.0]), lambda: sd.Layerwise([float("inf")] * 4)
    ),
    weighs(
        "layerwise-groups",
        "Layerwise",
        lambda: sd.Layerwise({"0.": 0.5, "2.": 0.2}),
        lambda: sd.Layerwise({"0.": HUGE, "2.": HUGE}),
    ),
    weighs(
        "flat-l1",
        "FlatL1",
        lambda: sd.FlatL1(3.0, 39),
        lambda: sd.FlatL1(float("inf"), 39),
        without={"noise": "the model there has more parameters than the bound is proved for"},
    ),
    Variant(
        "flat-l1-laplace",
        "FlatL1",
        lambda multiplier=1.0: sd.NoisySum(sd.FlatL1(3.0, 39), sd.Laplace(multiplier)),
        backends=("captured",),
    ),
    weighs("automatic", "Automatic", lambda: sd.Automatic(0.5), lambda: sd.Automatic(HUGE, gamma=HUGE)),
    weighs("global", "Global", lambda: sd.Global(0.5, threshold=2.0), lambda: sd.Global(float("inf"), float("inf"))),
    weighs(
        "scheduled",
        "Scheduled",
        lambda: sd.Scheduled(Cosine(1.0, 0.1, 3)),
        lambda: sd.Scheduled(Cosine(HUGE, HUGE, 3)),
    ),
    weighs(
        "scheduled-log-automatic",
        "Scheduled",
        lambda: sd.Scheduled(Logarithmic(1.0, 0.3, 4), sd.Automatic),
        lambda: sd.Scheduled(Cosine(HUGE, HUGE, 3), lambda bound: sd.Automatic(bound, gamma=HUGE)),
    ),
    weighs(
        "adaptive-quantile",
        "AdaptiveQuantile",
        lambda: sd.AdaptiveQuantile(0.5, quantile=0.5, count_noise=1.0),
        lambda: sd.AdaptiveQuantile(HUGE, quantile=0.5, count_noise=1.0, learning_rate=0.0),
    ),
    weighs("psac", "PSAC", lambda: sd.PSAC(0.5), backends=FAST),
    weighs("normalised", "Normalised", lambda: sd.Normalised(0.5), backends=FAST),
    weighs(
        "band-pass",
        "BandPass",
        lambda: sd.BandPass(0.5, threshold=0.1),
        lambda: sd.BandPass(float("inf"), 0.0),
        backends=FAST,
    ),
    weighs(
        "global-adapt",
        "GlobalAdapt",
        lambda: sd.GlobalAdapt(0.5, threshold=2.0),
        lambda: sd.GlobalAdapt(float("inf"), float("inf")),
        backends=FAST,
    ),
    *[
        weighs(f"{name}-following", name_of, lambda kind=kind: following(0.5, kind), backends=FAST)
        for name, name_of, kind in (
            ("global", "AdaptiveQuantile", sd.Global),
            ("global-adapt", "AdaptiveQuantile", sd.GlobalAdapt),
        )
    ],
    weighs(
        "layerwise-equal-share",
        "Layerwise",
        lambda: sd.Layerwise([0.5, 0.1, 0.3, 1.0], sd.EqualShare()),
        lambda: sd.Layerwise([float("inf")] * 4, sd.EqualShare()),
        backends=FAST,
    ),
    weighs(
        "layerwise-least-noise",
        "Layerwise",
        lambda: sd.Layerwise({"0.": 0.5, "2.": 0.2}, sd.LeastNoise()),
        lambda: sd.Layerwise({"0.": HUGE, "2.": HUGE}, sd.LeastNoise()),
        backends=FAST,
    ),
    Variant("per-layer", "NoisySum.per_layer", per_layer, backends=FAST),
    weighs(
        "adaptive-layerwise",
        "AdaptiveLayerwise",
        lambda: sd.AdaptiveLayerwise({"0.": 0.5, "2.": 0.2}, quantile=0.5, count_noise=1.0),
        lambda: sd.AdaptiveLayerwise([HUGE] * 4, quantile=0.5, count_noise=1.0, learning_rate=0.0),
        backends=FAST,
    ),
    weighs(
        "jl",
        "JL",
        lambda: sd.Flat(0.5),
        lambda: sd.Flat(float("inf")),
        backends=("jl",),
        without={
            "hunt": "its bound is a random number, whose law is tested in tests/gradients/test_jl.py",
            "chunked": "every chunk has directions of its own",
            "oracle": "its norms are not those of the loop",
            "divisor": "its weights are not those of the exact norms",
        },
    ),
    Variant(
        "microbatches",
        "Microbatches(…, ByCoin",
        microbatches(sd.ByCoin(3)),
        backends=FAST,
    ),
    Variant(
        "microbatches-by-position",
        "Microbatches(…, ByPosition",
        microbatches(sd.ByPosition(2)),
        backends=FAST,
        guarantee=False,
        witness=Witness("one record fewer moves all later ones into other groups", groups_that_shift),
        without={"order": "the groups are made by the order", "poison": "a record that is left out still has a place"},
    ),
    weighs("l2", "L2", lambda: sd.Flat(0.5), lambda: sd.Flat(float("inf")), options={"penalty": sd.L2(0.3)}),
    weighs(
        "l2-groups-automatic",
        "L2",
        lambda: sd.Automatic(0.5),
        lambda: sd.Automatic(HUGE, gamma=HUGE),
        options={"penalty": sd.L2({"0.": 0.3, "2.weight": 2.0})},
    ),
    lookahead("noisy-lookahead", "NoisyLookahead", sd.NoisyLookahead),
    lookahead(
        "noisy-lookahead-rounds",
        "NoisyLookahead",
        partial(sd.NoisyLookahead, rho=1.5, rounds=2),
        backends=("captured",),
    ),
    Variant(
        "noisy-lookahead-adaptive",
        "NoisyLookahead",
        lambda multiplier=1.0: sd.NoisyLookahead(
            sd.AdaptiveQuantile(0.5, quantile=0.5, count_noise=1.0), [sd.Gaussian(multiplier)] * 2, Cosine(0.1, 0.0, 5)
        ),
        backends=("captured",),
    ),
    lookahead("optimistic-lookahead", "OptimisticLookahead", sd.OptimisticLookahead, backends=("captured",)),
    lookahead(
        "projected",
        "Projected",
        sd.Projected,
        backends=("captured",),  # test_lookahead.py has every backend beside a loop written by hand
        guarantee=False,
        witness=Witness("one record turns the gradients of all the others round", kinks_between_two_virtual_points),
    ),
    weighs(
        "looks-first",
        "any weigher that looks at the lot first",
        MedianOfTheLot,
        lambda: MedianOfTheLot(at_least=HUGE),
        guarantee=False,
        witness=LONG,
        without={
            "noise": "its scale follows the lot",
            "divisor": "its weights follow the lot",
            "bound": "none is declared",
        },
    ),
    clips_by("median-of-the-lot", lambda: sd.BatchStatistic.median(cap=50.0), LONG),
    clips_by("minimum-of-the-lot", lambda: sd.BatchStatistic.minimum(cap=50.0), SHORT),
    clips_by("mean-of-the-lot", lambda: sd.BatchStatistic.mean(cap=50.0), LONG),
    sorts("sorted-top-k", lambda: sd.Sorted.top_k(4)),
    sorts("sorted-top-k-refresh", lambda: sd.Sorted.top_k(4, refresh=3)),
    sorts("sorted-top-k-pool", lambda: sd.Sorted.top_k(4, pool=2)),
    sorts("sorted-quantile", lambda: sd.Sorted.quantile(4)),
    sorts("sorted-class-diverse", lambda: sd.Sorted.class_diverse(4, label=by_sign)),
    sorts("sorted-similar-length", lambda: sd.Sorted.similar_length(4)),
    draws("threshold", "Threshold", lambda: sd.Threshold(2.0, low=0.2, high=0.8, refresh=3), backends=("captured",)),
    draws(
        "threshold-released",
        "Threshold",
        lambda: sd.Threshold(sd.PrivateQuantile(0.75, ceiling=10.0, epsilon=0.5), low=0.2, high=0.8, refresh=3),
        backends=("captured",),
    ),
    draws(
        "by-length",
        "ByLength",
        lambda: sd.ByLength(Band(0.5, 20.0, inside=0.7, outside=0.3), most=0.7, refresh=2),
        backends=("captured",),
    ),
]


NEEDS_A_WEIGHER = ("noise", "divisor", "bound")


def rows(contract: str, *, scripted: bool = True) -> list[Variant]:
    """The rows that a contract is run for; a row that is a sampler cannot be given scripted lots."""
    found = [row for row in VARIANTS if contract not in row.without and not (scripted and row.sampler)]
    if contract in NEEDS_A_WEIGHER:
        found = [row for row in found if row.weigher]
    return [row for row in found if row.unclipped] if contract == "plain" else found


def rows_and_backends(contract: str, *, scripted: bool = True) -> dict[str, tuple[Variant, Backend]]:
    """Every such row with each backend it knows, by a name for the test."""
    return {f"{row.name}-{b}": (row, BACKENDS[b]) for row in rows(contract, scripted=scripted) for b in row.backends}

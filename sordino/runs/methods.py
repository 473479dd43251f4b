"""Every variant of the library by name, so that one command trains with any of them: `--method automatic`.

A method makes the query asked of each lot from the public setting of the run. Its own parameters have defaults that are
functions of that setting, and are given by `--parameter name=value` or in the [parameters] table of a TOML file.

Privacy: names decide nothing here. What a run may claim is read from the events its query really released; a method that
has no guarantee ends in `NoGuarantee`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from sordino.algorithms import (
    ByCoin,
    ByPosition,
    Microbatches,
    NoisyLookahead,
    NoisySum,
    OptimisticLookahead,
    Projected,
    Query,
)
from sordino.door.noise import Gaussian, Laplace
from sordino.gradients import JL, Backend
from sordino.sampling import Full, Sampler, Sorted, Threshold
from sordino.schedules import Cosine, Logarithmic, Schedule
from sordino.weigh import (
    PSAC,
    AdaptiveLayerwise,
    AdaptiveQuantile,
    Automatic,
    BandPass,
    BatchStatistic,
    Flat,
    FlatL1,
    Global,
    GlobalAdapt,
    Layerwise,
    LeastNoise,
    Normalised,
    Scheduled,
    Weigher,
)


@dataclass(frozen=True)
class Setting:
    """What a method may look at: public numbers of the run."""

    bound: float
    multiplier: float
    rate: float
    steps: int
    records: int
    tensors: int
    """Trainable tensors of the model."""
    numbers: int
    """Trainable numbers in them."""
    learning_rate: Schedule

    @property
    def lot(self) -> float:
        """Records in a lot, on average."""
        return self.rate * self.records

    @property
    def size(self) -> int:
        """The same, as a whole number."""
        return max(1, round(self.lot))

    @property
    def passing(self) -> int:
        """Lots in one pass over the data."""
        return max(1, round(1 / self.rate))


Parameters: TypeAlias = Mapping[str, float]


@dataclass(frozen=True)
class Method:
    """One variant."""

    about: str
    query: Callable[[Setting, Parameters], Query]
    parameters: Callable[[Setting], dict[str, float]] = field(default=lambda setting: {})
    """Names and defaults."""
    sampler: Callable[[Setting, Parameters], Sampler] | None = None
    """Where the method is a way to draw lots; otherwise any sampler will do."""
    backend: Callable[[Setting, Parameters], Backend] | None = None
    """Where the method is a way to measure gradients; otherwise they are measured exactly."""

    def complete(self, setting: Setting, given: Parameters) -> dict[str, float]:
        """The defaults, with what was given in their place."""
        known = self.parameters(setting)
        for name in given:
            if name not in known:
                there = ", ".join(known) or "none"
                raise ValueError(f"parameter {name!r}: not one of this method's; there is {there}")
        return {**known, **given}


def _weighed(weigher: Callable[[Setting, Parameters], Weigher]) -> Callable[[Setting, Parameters], Query]:
    """DP-SGD with this weigher."""
    return lambda s, p: NoisySum(weigher(s, p), Gaussian(s.multiplier))


def _sorted(fill: Callable[..., Sorted]) -> Callable[[Setting, Parameters], Sampler]:
    return lambda s, p: fill(s.size, refresh=int(p["refresh"]), pool=int(p["pool"]) or None)


METHODS: Mapping[str, Method] = {
    "dpsgd": Method(
        "every gradient shortened to the bound (Abadi et al. 2016)",
        _weighed(lambda s, p: Flat(s.bound)),
    ),
    "jl": Method(
        "norms estimated from random directions, and charged for how often they are short (Bu et al. 2021)",
        _weighed(lambda s, p: Flat(s.bound)),
        lambda s: {"projections": 50.0},
        backend=lambda s, p: JL(int(p["projections"])),
    ),
    "layerwise": Method(
        "every tensor has its own bound, together they make the bound (McMahan et al. 2018)",
        _weighed(lambda s, p: Layerwise([s.bound / math.sqrt(s.tensors)] * s.tensors)),
    ),
    "automatic": Method(
        "every gradient normalised to the bound (Bu et al. 2022)",
        _weighed(lambda s, p: Automatic(s.bound, p["gamma"])),
        lambda s: {"gamma": 0.01},
    ),
    "global": Method(
        "one factor for gradients up to a threshold, nothing above it (Bu, Wang & Long 2021)",
        _weighed(lambda s, p: Global(s.bound, p["threshold"])),
        lambda s: {"threshold": 10 * s.bound},
    ),
    "scheduled": Method(
        "the bound falls by a cosine over the run",
        _weighed(lambda s, p: Scheduled(Cosine(s.bound, p["end"], s.steps))),
        lambda s: {"end": s.bound / 10},
    ),
    "logarithmic": Method(
        "the bound falls within each pass and starts again",
        _weighed(lambda s, p: Scheduled(Logarithmic(s.bound, p["steepness"], s.passing))),
        lambda s: {"steepness": 0.5 * s.bound / math.log(max(2, s.passing))},
    ),
    "adaptive-quantile": Method(
        "the bound follows a quantile of the norms, privately (Andrew et al. 2021)",
        _weighed(
            lambda s, p: AdaptiveQuantile(s.bound, p["quantile"], p["count_noise"], learning_rate=p["learning_rate"])
        ),
        lambda s: {"quantile": 0.5, "count_noise": s.lot / 20, "learning_rate": 0.2},
    ),
    "microbatches-by-position": Method(
        "clipped means of groups in the order of the lot: no guarantee",
        lambda s, p: Microbatches(Flat(s.bound), Gaussian(s.multiplier), ByPosition(int(p["size"]))),
        lambda s: {"size": 8.0},
    ),
    "batch-median": Method(
        "the bound is the median length of the lot: no guarantee",
        _weighed(lambda s, p: BatchStatistic.median(p["cap"])),
        lambda s: {"cap": s.bound},
    ),
    "batch-minimum": Method(
        "the bound is the least length of the lot: no guarantee",
        _weighed(lambda s, p: BatchStatistic.minimum(p["cap"])),
        lambda s: {"cap": s.bound},
    ),
    "noisy-lookahead": Method(
        "each lot in two parts, the second where the noisy first one leads",
        lambda s, p: NoisyLookahead(Flat(s.bound), Gaussian(s.multiplier), s.learning_rate, p["rho"], int(p["rounds"])),
        lambda s: {"rho": 2.0, "rounds": 1.0},
    ),
    "optimistic-lookahead": Method(
        "each lot where the last released gradient leads: free",
        lambda s, p: OptimisticLookahead(Flat(s.bound), Gaussian(s.multiplier), s.learning_rate, p["rho"]),
        lambda s: {"rho": 1.0},
    ),
    "projected": Method(
        "lookahead without noise on the way, as published: no guarantee",
        lambda s, p: Projected(Flat(s.bound), Gaussian(s.multiplier), s.learning_rate, p["rho"], int(p["rounds"])),
        lambda s: {"rho": 2.0, "rounds": 1.0},
    ),
    "psac": Method(
        "normalised, but short gradients are not blown up (Xia et al. 2023)",
        _weighed(lambda s, p: PSAC(s.bound, p["gamma"])),
        lambda s: {"gamma": 0.01},
    ),
    "normalised": Method(
        "every gradient stretched or shortened to the bound",
        _weighed(lambda s, p: Normalised(s.bound)),
    ),
    "band-pass": Method(
        "gradients below a threshold are left out, the others shortened to the bound",
        _weighed(lambda s, p: BandPass(s.bound, p["threshold"])),
        lambda s: {"threshold": s.bound / 2},
    ),
    "global-adapt": Method(
        "one factor for gradients up to a threshold, the bound above it (Esipova et al. 2023)",
        _weighed(lambda s, p: GlobalAdapt(s.bound, p["threshold"])),
        lambda s: {"threshold": 10 * s.bound},
    ),
    "layerwise-least-noise": Method(
        "every tensor has its own bound, and the noise is divided so that its total is least",
        _weighed(lambda s, p: Layerwise([s.bound / math.sqrt(s.tensors)] * s.tensors, LeastNoise())),
    ),
    "adaptive-layerwise": Method(
        "every tensor's bound follows a quantile of its norms, privately (Andrew et al. 2021)",
        _weighed(
            lambda s, p: AdaptiveLayerwise(
                [s.bound / math.sqrt(s.tensors)] * s.tensors, p["quantile"], p["count_noise"], p["learning_rate"]
            )
        ),
        lambda s: {"quantile": 0.5, "count_noise": s.lot / 20 * math.sqrt(s.tensors), "learning_rate": 0.2},
    ),
    "microbatches": Method(
        "the clipped means of groups that each record chooses for itself, at twice the sensitivity",
        lambda s, p: Microbatches(Flat(s.bound), Gaussian(s.multiplier), ByCoin(max(1, round(p["groups"])))),
        lambda s: {"groups": max(1.0, round(s.lot / 4))},
    ),
    "dp-gd": Method(
        "all records in every step, no amplification",
        _weighed(lambda s, p: Flat(s.bound)),
        sampler=lambda s, p: Full(),
    ),
    "dp-gd-laplace": Method(
        "all records in every step, bounded in L1, with Laplace noise",
        lambda s, p: NoisySum(FlatL1(s.bound, s.numbers), Laplace(s.multiplier)),
        sampler=lambda s, p: Full(),
    ),
    "threshold": Method(
        "records with long gradients take part more often, and are charged for it",
        _weighed(lambda s, p: Flat(s.bound)),
        lambda s: {"threshold": s.bound, "low": s.rate / 2, "high": min(1.0, 2 * s.rate), "refresh": s.passing},
        sampler=lambda s, p: Threshold(p["threshold"], p["low"], p["high"], int(p["refresh"])),
    ),
    **{
        f"sorted-{name}": Method(
            f"{about}, as published: no guarantee",
            _weighed(lambda s, p: Flat(s.bound)),
            lambda s: {"refresh": 1.0, "pool": 0.0},
            sampler=_sorted(fill),
        )
        for name, about, fill in (
            ("top-k", "lots of the longest gradients", Sorted.top_k),
            ("quantile", "lots from above a quantile of the lengths", Sorted.quantile),
            ("class-diverse", "lots of the longest of each class in turn", Sorted.class_diverse),
            ("similar-length", "lots of gradients of like lengths", Sorted.similar_length),
        )
    },
}


def method(name: str) -> Method:
    """The method of this name.

    >>> method("automatic").about
    'every gradient normalised to the bound (Bu et al. 2022)'
    """
    if name not in METHODS:
        raise ValueError(f"method={name!r}: there is {', '.join(METHODS)}")
    return METHODS[name]


def plain() -> Query:
    """The non-private baseline: nothing is shortened and no noise is added."""
    return NoisySum(Flat(math.inf), Gaussian(0.0))

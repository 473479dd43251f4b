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

from sordino.algorithms.dpsgd import NoisySum, Query
from sordino.noise import Gaussian
from sordino.schedules import Cosine, Logarithmic
from sordino.weigh import AdaptiveQuantile, Automatic, Flat, Global, Layerwise, Scheduled, Weigher


@dataclass(frozen=True)
class Setting:
    """What a method may look at: public numbers of the run."""

    bound: float
    multiplier: float
    rate: float
    steps: int
    expected_batch: float
    tensors: int
    """Trainable tensors of the model."""

    @property
    def pass_steps(self) -> int:
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
    sampler: str = "poisson"
    """Of samplers.py, unless another is asked for."""

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


METHODS: Mapping[str, Method] = {
    "dpsgd": Method(
        "every gradient shortened to the bound (Abadi et al. 2016)",
        _weighed(lambda s, p: Flat(s.bound)),
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
        _weighed(lambda s, p: Scheduled(Logarithmic(s.bound, p["steepness"], s.pass_steps))),
        lambda s: {"steepness": 0.5 * s.bound / math.log(max(2, s.pass_steps))},
    ),
    "adaptive-quantile": Method(
        "the bound follows a quantile of the norms, privately (Andrew et al. 2021)",
        _weighed(
            lambda s, p: AdaptiveQuantile(s.bound, p["quantile"], p["count_noise"], learning_rate=p["learning_rate"])
        ),
        lambda s: {"quantile": 0.5, "count_noise": s.expected_batch / 20, "learning_rate": 0.2},
    ),
    "dp-gd": Method(
        "all records in every step, no amplification",
        _weighed(lambda s, p: Flat(s.bound)),
        sampler="full",
    ),
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

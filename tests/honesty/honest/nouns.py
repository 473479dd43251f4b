"""Every sampler, clipping rule and query that has a guarantee, on one honest script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sordino as sd
from sordino.sampling import Band
from sordino.schedules import Cosine
from tests.honesty.data import cross_entropy, network, vectors
from tests.honesty.script import Cases, Script

NOUNS = Cases()

SAMPLERS: dict[str, Callable[[], Any]] = {
    "shuffle": lambda: sd.Shuffle(8),
    "fixed size": lambda: sd.FixedSize(12),
    "balls in bins": lambda: sd.BallsInBins(6),
    "full": sd.Full,
    "poisson that often draws nobody": lambda: sd.Poisson(0.01),
    "poisson that draws everybody": lambda: sd.Poisson(1.0),
    "threshold": lambda: sd.Threshold(1.0, 0.05, 0.2, refresh=10),
    "by length": lambda: sd.ByLength(Band(0.5, 2.0, 0.2, 0.05), 0.2, refresh=10),
    "a private threshold": lambda: sd.Threshold(sd.PrivateQuantile(0.5, 10.0, 0.1), 0.05, 0.2, refresh=20),
}

CLIPPING_RULES: dict[str, Callable[[], Any]] = {
    "layerwise": lambda: sd.Layerwise([0.5, 0.1, 0.3, 1.0]),
    "automatic": lambda: sd.Automatic(0.5),
    "psac": lambda: sd.PSAC(0.5),
    "normalised": lambda: sd.Normalised(0.5),
    "global": lambda: sd.Global(0.5, threshold=2.0),
    "global adapt": lambda: sd.GlobalAdapt(0.5, threshold=2.0),
    "band pass": lambda: sd.BandPass(0.5, threshold=0.1),
    "scheduled": lambda: sd.Scheduled(Cosine(1.0, 0.1, 100)),
    "adaptive quantile": lambda: sd.AdaptiveQuantile(0.5, quantile=0.5, count_noise=2.0),
    "adaptive layerwise": lambda: sd.AdaptiveLayerwise([0.5, 0.1, 0.3, 1.0], quantile=0.5, count_noise=4.0),
}

QUERIES: dict[str, Callable[[], Any]] = {
    "noisy lookahead": lambda: sd.NoisyLookahead(sd.Flat(0.5), sd.Gaussian(1.0), learning_rate=0.05),
    "optimistic lookahead": lambda: sd.OptimisticLookahead(sd.Flat(0.5), sd.Gaussian(1.0), learning_rate=0.05),
    "microbatches": lambda: sd.Microbatches(sd.Flat(0.5), sd.Gaussian(2.0), sd.ByCoin(4)),
    "per layer": lambda: sd.NoisySum.per_layer({"0.": (0.5, 2.0), "2.": (0.2, 4.0)}),
    "laplace": lambda: sd.NoisySum(sd.FlatL1(1.0, 83), sd.Laplace(3.0)),
}


def _named(kind: str, name: str, build: Callable[[int], Script]) -> None:
    build.__name__ = f"{kind} {name}"
    NOUNS(build)


for _name, _sampler in SAMPLERS.items():
    _named(
        "sampler", _name, lambda seed, make=_sampler: Script(network(), cross_entropy, vectors(seed), sampler=make())
    )
for _name, _rule in CLIPPING_RULES.items():
    _named(
        "clipping",
        _name,
        lambda seed, make=_rule: Script(
            network(), cross_entropy, vectors(seed), query=sd.NoisySum(make(), sd.Gaussian(1.0))
        ),
    )
for _name, _query in QUERIES.items():
    _named("query", _name, lambda seed, make=_query: Script(network(), cross_entropy, vectors(seed), query=make()))

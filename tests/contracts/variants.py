"""The table of variants: every contract is run for every row. A new variant adds one row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import sordino as sd
from sordino.gradients import Backend, Captured, Loop, Vmap
from sordino.schedules import Cosine, Logarithmic
from sordino.weigh import Weigher

HUGE = 1e9


@dataclass(frozen=True)
class Variant:
    """A weigher to test, and the same one with a bound so large that it does nothing."""

    name: str
    weigher: Callable[[], Weigher]
    unclipped: Callable[[], Weigher]

    def query(self, multiplier: float = 1.0) -> sd.NoisySum:
        return sd.NoisySum(self.weigher(), sd.Gaussian(multiplier))


VARIANTS = [
    Variant("flat", lambda: sd.Flat(0.5), lambda: sd.Flat(float("inf"))),
    Variant("layerwise", lambda: sd.Layerwise([0.5, 0.1, 0.3, 1.0]), lambda: sd.Layerwise([float("inf")] * 4)),
    Variant(
        "layerwise-groups", lambda: sd.Layerwise({"0.": 0.5, "2.": 0.2}), lambda: sd.Layerwise({"0.": HUGE, "2.": HUGE})
    ),
    Variant("automatic", lambda: sd.Automatic(0.5), lambda: sd.Automatic(HUGE, gamma=HUGE)),
    Variant("global", lambda: sd.Global(0.5, threshold=2.0), lambda: sd.Global(float("inf"), float("inf"))),
    Variant(
        "scheduled",
        lambda: sd.Scheduled(Cosine(1.0, 0.1, 3)),
        lambda: sd.Scheduled(Cosine(HUGE, HUGE, 3)),
    ),
    Variant(
        "scheduled-log-automatic",
        lambda: sd.Scheduled(Logarithmic(1.0, 0.3, 4), sd.Automatic),
        lambda: sd.Scheduled(Cosine(HUGE, HUGE, 3), lambda bound: sd.Automatic(bound, gamma=HUGE)),
    ),
    Variant(
        "adaptive-quantile",
        lambda: sd.AdaptiveQuantile(0.5, quantile=0.5, count_noise=1.0),
        lambda: sd.AdaptiveQuantile(HUGE, quantile=0.5, count_noise=1.0, learning_rate=0.0),
    ),
]

BACKENDS: dict[str, Backend] = {"loop": Loop(), "vmap-chunk": Vmap(chunk=2), "captured": Captured()}

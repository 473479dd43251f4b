"""The table of variants: every contract is run for every row. A new variant adds one row.

A row is any combination of query, sampler, penalty and backends. It says whether it has a guarantee; one without names a
witness, two neighbouring runs whose sums lie further apart than the scale its noise was calibrated to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import sordino as sd
from sordino.clipping import ClippingRule
from sordino.sampling import Band
from sordino.schedules import Cosine, Logarithmic
from tests.contracts.broken import MedianOfTheLot
from tests.contracts.neighbours import (
    groups_that_shift,
    kinks_between_two_virtual_points,
    one_long_record_among_short_ones,
    one_short_record_among_long_ones,
)
from tests.contracts.row import (
    FAST,
    Variant,
    Witness,
    by_sign,
    by_unit,
    clips,
    clips_by,
    correlates,
    draws,
    lookahead,
    per_layer,
    releases_loss,
    sorts,
    speakers,
)

HUGE = 1e9


def following(bound: float, kind: Callable[[float, float], ClippingRule]) -> sd.AdaptiveQuantile:
    """A fixed bound, and a threshold that follows the 0.9-quantile."""
    return sd.AdaptiveQuantile(2.0, quantile=0.9, count_noise=1.0, clipping=partial(kind, bound))


def microbatches(grouping: Any) -> Callable[..., sd.Microbatches]:
    """Flat clipping of the groups' means."""
    return lambda multiplier=1.0: sd.Microbatches(sd.Flat(0.5), sd.Gaussian(multiplier), grouping)


LONG = Witness("one long record moves the bound of all the others", one_long_record_among_short_ones)
SHORT = Witness("one short record moves the bound of all the others", one_short_record_among_long_ones)


VARIANTS = [
    clips("flat", "Flat", lambda: sd.Flat(0.5), lambda: sd.Flat(float("inf"))),
    clips(
        "layerwise", "Layerwise", lambda: sd.Layerwise([0.5, 0.1, 0.3, 1.0]), lambda: sd.Layerwise([float("inf")] * 4)
    ),
    clips(
        "layerwise-groups",
        "Layerwise",
        lambda: sd.Layerwise({"0.": 0.5, "2.": 0.2}),
        lambda: sd.Layerwise({"0.": HUGE, "2.": HUGE}),
    ),
    clips(
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
    Variant(
        "l1-sum-laplace",
        "L1Sum",
        lambda multiplier=1.0: sd.L1Sum(sd.Flat(0.5), sd.Laplace(multiplier)),
        lambda: sd.L1Sum(sd.Flat(float("inf")), sd.Laplace(0.0)),
        backends=("loop", "captured"),
    ),
    Variant(
        "l1-sum-following",
        "L1Sum",
        lambda multiplier=1.0: sd.L1Sum(sd.AdaptiveQuantile(0.5, 0.5, 1.0), sd.Laplace(multiplier)),
        backends=FAST,
    ),
    clips("automatic", "Automatic", lambda: sd.Automatic(0.5), lambda: sd.Automatic(HUGE, gamma=HUGE)),
    clips("global", "Global", lambda: sd.Global(0.5, threshold=2.0), lambda: sd.Global(float("inf"), float("inf"))),
    clips(
        "scheduled",
        "Scheduled",
        lambda: sd.Scheduled(Cosine(1.0, 0.1, 3)),
        lambda: sd.Scheduled(Cosine(HUGE, HUGE, 3)),
    ),
    clips(
        "scheduled-log-automatic",
        "Scheduled",
        lambda: sd.Scheduled(Logarithmic(1.0, 0.3, 4), sd.Automatic),
        lambda: sd.Scheduled(Cosine(HUGE, HUGE, 3), lambda bound: sd.Automatic(bound, gamma=HUGE)),
    ),
    clips(
        "adaptive-quantile",
        "AdaptiveQuantile",
        lambda: sd.AdaptiveQuantile(0.5, quantile=0.5, count_noise=1.0),
        lambda: sd.AdaptiveQuantile(HUGE, quantile=0.5, count_noise=1.0, learning_rate=0.0),
    ),
    clips("psac", "PSAC", lambda: sd.PSAC(0.5), backends=FAST),
    clips("normalised", "Normalised", lambda: sd.Normalised(0.5), backends=FAST),
    clips(
        "band-pass",
        "BandPass",
        lambda: sd.BandPass(0.5, threshold=0.1),
        lambda: sd.BandPass(float("inf"), 0.0),
        backends=FAST,
    ),
    clips(
        "global-adapt",
        "GlobalAdapt",
        lambda: sd.GlobalAdapt(0.5, threshold=2.0),
        lambda: sd.GlobalAdapt(float("inf"), float("inf")),
        backends=FAST,
    ),
    *[
        clips(f"{name}-following", name_of, lambda kind=kind: following(0.5, kind), backends=FAST)
        for name, name_of, kind in (
            ("global", "AdaptiveQuantile", sd.Global),
            ("global-adapt", "AdaptiveQuantile", sd.GlobalAdapt),
        )
    ],
    clips(
        "layerwise-equal-share",
        "Layerwise",
        lambda: sd.Layerwise([0.5, 0.1, 0.3, 1.0], sd.EqualShare()),
        lambda: sd.Layerwise([float("inf")] * 4, sd.EqualShare()),
        backends=FAST,
    ),
    clips(
        "layerwise-least-noise",
        "Layerwise",
        lambda: sd.Layerwise({"0.": 0.5, "2.": 0.2}, sd.LeastNoise()),
        lambda: sd.Layerwise({"0.": HUGE, "2.": HUGE}, sd.LeastNoise()),
        backends=FAST,
    ),
    Variant("per-layer", "NoisySum.per_layer", per_layer, backends=FAST),
    clips(
        "adaptive-layerwise",
        "AdaptiveLayerwise",
        lambda: sd.AdaptiveLayerwise({"0.": 0.5, "2.": 0.2}, quantile=0.5, count_noise=1.0),
        lambda: sd.AdaptiveLayerwise([HUGE] * 4, quantile=0.5, count_noise=1.0, learning_rate=0.0),
        backends=FAST,
    ),
    clips(
        "global-layerwise",
        "GlobalLayerwise",
        lambda: sd.GlobalLayerwise([0.5, 0.1, 0.3, 1.0], [2.0, 0.4, 1.0, 3.0], sd.EqualShare()),
        lambda: sd.GlobalLayerwise([float("inf")] * 4, [float("inf")] * 4),
        backends=FAST,
    ),
    clips(
        "global-layerwise-following",
        "AdaptiveLayerwise",
        lambda: sd.AdaptiveLayerwise(
            {"0.": 2.0, "2.": 1.0}, 0.9, 1.0, clipping=partial(sd.GlobalLayerwise, {"0.": 0.5, "2.": 0.2})
        ),
        backends=FAST,
    ),
    clips(
        "jl",
        "JL",
        lambda: sd.Flat(0.5),
        lambda: sd.Flat(float("inf")),
        backends=("jl",),
        without={
            "hunt": "its bound is a random number, whose law is tested in tests/per_sample/test_jl.py",
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
    releases_loss("with-loss", lambda multiplier: sd.Flat(0.5)),
    releases_loss(
        "with-loss-adaptive",
        lambda multiplier: sd.AdaptiveQuantile(0.5, quantile=0.6, count_noise=2.0 * multiplier),
    ),
    clips("l2", "L2", lambda: sd.Flat(0.5), lambda: sd.Flat(float("inf")), options={"penalty": sd.L2(0.3)}),
    clips(
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
    clips(
        "looks-first",
        "any clipping rule that looks at the lot first",
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
    by_unit("unit", "Unit", speakers, ("loop", "vmap-chunk", "captured")),
    by_unit("views", "Views", lambda n: (n, sd.Views(3)), FAST),
    draws("poisson", "Poisson", lambda: sd.Poisson(0.3), backends=FAST),
    draws("shuffle", "Shuffle", lambda: sd.Shuffle(5), backends=FAST),
    draws("fixed-size", "FixedSize", lambda: sd.FixedSize(4), backends=FAST),
    draws("full", "Full", lambda: sd.Full(), backends=FAST),
    draws("cyclic-poisson", "CyclicPoisson", lambda: sd.CyclicPoisson(0.6, 3), backends=FAST),
    draws("fixed-order", "FixedOrder", lambda: sd.FixedOrder(5), backends=FAST),
    draws("truncated-poisson", "TruncatedPoisson", lambda: sd.TruncatedPoisson(0.3, 4), backends=FAST),
    correlates("banded", lambda: sd.Banded(3), lambda: sd.CyclicPoisson(0.6, 3)),
    correlates("inverse-banded", lambda: sd.InverseBanded(3), lambda: sd.FixedOrder(5)),
    correlates("buffered", lambda: sd.Buffered((0.9, 0.5), (0.2, 0.3)), lambda: sd.FixedOrder(5)),
    draws("balls-in-bins", "BallsInBins", lambda: sd.BallsInBins(3), backends=FAST),
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

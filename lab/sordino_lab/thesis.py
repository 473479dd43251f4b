"""Plans of source 001: MNIST_Net on MNIST and Conv_CIFAR_Net on CIFAR-10, by the words of the thesis.

full      the thesis' own: 30 epochs, lots of 250 and 200, all records
middle    MNIST 20,000 records and 15 epochs; CIFAR-10 10,000 records and 10 epochs
quick     MNIST 2,500 records, 8 epochs; CIFAR-10 1,500 records, 9 epochs, 64 hidden units for the convolutions
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sordino_lab.curve_plan import CurvePlan
from sordino_lab.workbench import Workbench

RATES = (0.01, 0.1, 1.0)
BEST = {0.01: 10.0, 0.1: 9.5, 1.0: 1.0}
"""Table 4.4: the best bound for each learning rate on CIFAR-10."""
MNIST = "2,500 records in lots of 125, 8 epochs, 2 seeds"
MNIST_MIDDLE = "20,000 records, 15 epochs, 3 seeds"
CIFAR = "1,500 records in lots of 100, 9 epochs (15 for 50), 64 hidden units for the convolutions, 2 seeds"
CIFAR_MIDDLE = "10,000 records, 10 epochs (17 for 50), 2 seeds"
TERMS = "SortedDPSGD, Learningrate, Clipping-Bound, Noise-Multiplier"

WAYS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "DP-SGD": ("dpsgd", {}),
    "sorted": ("sorted", {"sampler": "sorted-top-k"}),
    "sorted, median": ("median", {"sampler": "sorted-top-k", "weigher": "batch-median"}),
    "sorted, minimum": ("minimum", {"sampler": "sorted-top-k", "weigher": "batch-minimum"}),
    "sorted, log": ("logarithmic", {"sampler": "sorted-top-k", "weigher": "logarithmic"}),
    "quantile-sorted, minimum": ("quantile-sorted", {"sampler": "sorted-quantile", "weigher": "batch-minimum"}),
    "quantile-sorted, median": ("quantile-sorted", {"sampler": "sorted-quantile", "weigher": "batch-median"}),
    "class-diverse": ("class-diverse", {"sampler": "sorted-class-diverse"}),
    "similar length": ("similar-length", {"sampler": "sorted-similar-length"}),
    "projected": ("projected", {"query": "projected"}),
    "threshold": ("threshold", {"sampler": "threshold"}),
    "noisy lookahead": ("noisy-lookahead", {"query": "noisy-lookahead"}),
    "optimistic lookahead": ("optimistic-lookahead", {"query": "optimistic-lookahead"}),
}
"""A method of the thesis: whose colour, and its words."""


def label(way: str, rate: float) -> str:
    """As tables are keyed."""
    return f"{way}, lr {rate:g}"


def mnist(bench: Workbench, way: str, rate: float, bound: float, **given: Any) -> CurvePlan:
    """One curve on MNIST."""
    method, words = WAYS[way]
    return CurvePlan(
        label=label(way, rate),
        method=method,
        recipe="thesis-mnist",
        batch=bench.pick(250, 125, 250, 250),
        records=bench.pick(None, 2_500, 20_000, None),
        epochs=bench.pick(1, 8, 15, 30),
        seeds=bench.pick(1, 2, 3, 3),
        evaluations=bench.pick(1, 4, 15, 30),
        variant=_variant(rate),
        given={"learning_rate": rate, "bound": bound, **words, **given},
    )


def cifar(bench: Workbench, way: str, rate: float, bound: float, *, epochs: int = 30, **given: Any) -> CurvePlan:
    """One curve on CIFAR-10."""
    method, words = WAYS[way]
    small = {"model": "mlp", "widths": (64,)} if bench.size.value == "quick" else {}
    return CurvePlan(
        label=label(way, rate),
        method=method,
        recipe="thesis-cifar",
        batch=bench.pick(200, 100, 200, 200),
        records=bench.pick(None, 1_500, 10_000, None),
        epochs=bench.pick(1, 0.3, 1 / 3, 1) * epochs,
        seeds=bench.pick(1, 2, 2, 3),
        evaluations=bench.pick(1, 3, 10, 30),
        variant=_variant(rate),
        given={**small, "learning_rate": rate, "bound": bound, **words, **given},
    )


def _variant(rate: float) -> int:
    return {0.001: 3, 0.01: 0, 0.1: 1, 1.0: 2}.get(rate, 4)


def pairs(
    rows: Mapping[str, Sequence[tuple[float, float] | None]], rates: Sequence[float] = RATES
) -> dict[str, tuple[float, float]]:
    """Published (loss, accuracy) by label, from rows in the order of the rates."""
    return {
        label(way, rate): pair
        for way, row in rows.items()
        for rate, pair in zip(rates, row, strict=False)
        if pair is not None
    }

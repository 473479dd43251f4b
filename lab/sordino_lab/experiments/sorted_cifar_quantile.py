"""Quantilesort against topk, with bounds from the lot.

source     001, T4.7, F4.15, lines 676–700
setting    minimum at the best C: quantilesort against topk; quantilesort with the median
reduced    see lab/sordino_lab/thesis.py
"""

from __future__ import annotations

from sordino_lab.experiment import Experiment, Outcome
from sordino_lab.sorted_table import SortedTable
from sordino_lab.thesis import BEST, CIFAR, CIFAR_MIDDLE, TERMS
from sordino_lab.workbench import Workbench

TABLE = SortedTable(
    "cifar",
    {
        "quantile-sorted, minimum": [(1.89, 32.73), (1.43, 54.89), (1.75, 55.96)],
        "sorted, minimum": [(1.9, 31.98), (1.45, 52.58), (1.79, 54.79)],
    },
    "T4.7, 001:690",
    bound=BEST,
    title="CIFAR-10, best C, minimum",
)


def run(bench: Workbench) -> Outcome:
    """Train, draw, compare."""
    return TABLE.outcome(
        bench,
        [
            (
                "quantile-sorted, minimum",
                "sorted, minimum",
                0.1,
                "quantilesort reaches better accuracy than topk",
                "001:810",
            ),
        ],
        [],
    )


EXPERIMENT = Experiment(
    id="sorted-cifar-quantile",
    source="001",
    figure="T4.7, F4.15",
    lines="676–700",
    title="Quantilesort against topk",
    shows="the coarser order of quantilesort is better than topk",
    setting="minimum at the best C: quantilesort against topk; quantilesort with the median",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("Sorted", "BatchStatistic"),
    terms=TERMS,
    seconds=60,
    run=run,
    plans=TABLE.plans,
)

"""Quantilesort with the median bound against DP-SGD.

source     001, F4.15, lines 687–699
setting    C=5, quantilesort with the batch median capped at C, σ=1.1, 30 epochs
reduced    see lab/sordino_lab/thesis.py
"""

from __future__ import annotations

from sordino_lab.experiment import Experiment, Outcome
from sordino_lab.sorted_table import SortedTable
from sordino_lab.thesis import CIFAR, CIFAR_MIDDLE, TERMS
from sordino_lab.workbench import Workbench

TABLE = SortedTable(
    "cifar",
    {"DP-SGD": [], "quantile-sorted, median": []},
    "F4.15",
    bound=5.0,
    title="CIFAR-10, C = 5",
)


def run(bench: Workbench) -> Outcome:
    """Trains what is not there, draws, compares and judges."""
    return TABLE.outcome(
        bench,
        [],
        [
            "The source prints no numbers for this figure, and under it ε = 2.268, which belongs to 50 epochs.",
        ],
    )


EXPERIMENT = Experiment(
    id="sorted-cifar-quantile-median",
    source="001",
    figure="F4.15",
    lines="687–699",
    title="Quantilesort with the median bound",
    shows="quantilesort's loss rises less at first than topk's",
    setting="C=5, quantilesort with the batch median capped at C, σ=1.1, 30 epochs",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("Sorted", "BatchStatistic"),
    terms=TERMS,
    seconds=50,
    run=run,
    plans=TABLE.plans,
)

"""Sorted lots with a bound from the lot itself, capped at 5: median and minimum.

source     001, T4.6, F4.13, T4.9, FA.5, lines 644–671, 714–722
setting    topk, median or minimum capped at C=5, 30 epochs
reduced    see lab/sordino_lab/thesis.py
"""

from __future__ import annotations

from sordino_lab.experiment import Experiment, Outcome
from sordino_lab.sorted_table import SortedTable
from sordino_lab.thesis import CIFAR, CIFAR_MIDDLE, TERMS
from sordino_lab.workbench import Workbench

TABLE = SortedTable(
    "cifar",
    {
        "DP-SGD": [(1.95, 31.15), (1.62, 50.95), (2.4, 17.29)],
        "sorted, median": [(1.99, 29.68), (1.57, 51.4), (2.19, 35.54)],
        "sorted, minimum": [(1.99, 29.68), (1.56, 51.16), (2.08, 38.22)],
    },
    "T4.6, 001:654; T4.9, 001:713",
    bound=5.0,
    title="CIFAR-10, cap 5",
)


def run(bench: Workbench) -> Outcome:
    """Train, draw, compare."""
    return TABLE.outcome(
        bench,
        [
            ("sorted, median", "DP-SGD", 0.1, "SortedDPSGD is better at learning rates 1 and 0.1", "001:664"),
            ("sorted, median", "DP-SGD", 1.0, "SortedDPSGD is better at learning rates 1 and 0.1", "001:664"),
        ],
        [],
    )


EXPERIMENT = Experiment(
    id="sorted-cifar-median",
    source="001",
    figure="T4.6, F4.13, T4.9, FA.5",
    lines="644–671, 714–722",
    title="Bounds from the lot itself",
    shows="median and minimum of the lot differ little, and beat DP-SGD at C = 5 for large rates",
    setting="topk, median or minimum capped at C=5, 30 epochs",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("Sorted", "BatchStatistic"),
    terms=TERMS,
    seconds=70,
    run=run,
    plans=TABLE.plans,
)

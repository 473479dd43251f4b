"""Sorted lots at DP-SGD's best bound for each learning rate.

source     001, T4.5, F4.5, F4.6, lines 526–572
setting    best C per lr (10, 9.5, 1), 30 epochs
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
        "DP-SGD": [(1.85, 34.27), (1.56, 56.09), (1.93, 56.04)],
        "sorted": [(1.87, 33.77), (1.47, 53.23), (1.8, 54.75)],
    },
    "T4.5, 001:564",
    bound=BEST,
    title="CIFAR-10, best C",
)


def run(bench: Workbench) -> Outcome:
    """Train, draw, compare."""
    return TABLE.outcome(
        bench,
        [
            ("DP-SGD", "sorted", 0.1, "sorted has the smaller loss and the weaker accuracy", "001:806"),
        ],
        [],
    )


EXPERIMENT = Experiment(
    id="sorted-cifar-best",
    source="001",
    figure="T4.5, F4.5, F4.6",
    lines="526–572",
    title="Sorted lots at the best bounds",
    shows="at its best bounds DP-SGD is ahead in accuracy, sorting in loss",
    setting="best C per lr (10, 9.5, 1), 30 epochs",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("Sorted", "Flat", "Poisson"),
    terms=TERMS,
    seconds=50,
    run=run,
    plans=TABLE.plans,
)

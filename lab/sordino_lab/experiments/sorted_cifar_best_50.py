"""Sorted lots with the median bound at the best C over 50 epochs.

source     001, T4.8, lines 702–712
setting    best C, median, 50 epochs
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
        "DP-SGD": [(1.75, 37.84), (1.6, 57.35), (2.04, 57.35)],
        "sorted, median": [(1.75, 38.04), (1.33, 57.92), (1.75, 57.77)],
    },
    "T4.8, 001:702",
    bound=BEST,
    epochs=50,
    title="CIFAR-10, best C, 50 epochs",
)


def run(bench: Workbench) -> Outcome:
    """Train, draw, compare."""
    return TABLE.outcome(
        bench,
        [
            (
                "sorted, median",
                "DP-SGD",
                0.1,
                "a higher number of epochs shows a clear advantage over DPSGD",
                "001:816",
            ),
        ],
        [],
    )


EXPERIMENT = Experiment(
    id="sorted-cifar-best-50",
    source="001",
    figure="T4.8",
    lines="702–712",
    title="Median bound at the best C, 50 epochs",
    shows="over 50 epochs the sorted runs are ahead in loss and a little in accuracy",
    setting="best C, median, 50 epochs",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("Sorted", "BatchStatistic"),
    terms=TERMS,
    seconds=70,
    run=run,
    plans=TABLE.plans,
)

"""Sorted lots and DP-SGD on CIFAR-10 at C = 5 over 50 epochs.

source     001, T4.3, F4.4, lines 522–541
setting    C=5, 50 epochs, ε printed 2.268
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
        "DP-SGD": [(1.86, 33.78), (1.59, 55.52)],
        "sorted": [(1.87, 33.94), (1.45, 57.24)],
    },
    "T4.3, 001:535",
    bound=5.0,
    rates=(0.01, 0.1),
    epochs=50,
    title="CIFAR-10, C = 5, 50 epochs",
)


def run(bench: Workbench) -> Outcome:
    """Train, draw, compare."""
    return TABLE.outcome(
        bench,
        [
            ("sorted", "DP-SGD", 0.1, "SortedDPSGD reaches a higher accuracy over 50 epochs", "001:524"),
        ],
        [],
    )


EXPERIMENT = Experiment(
    id="sorted-cifar-c5-50",
    source="001",
    figure="T4.3, F4.4",
    lines="522–541",
    title="Sorted lots over 50 epochs",
    shows="with more epochs sorting goes on to improve while DP-SGD stands still",
    setting="C=5, 50 epochs, ε printed 2.268",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("Sorted", "Flat", "Poisson"),
    terms=TERMS,
    seconds=45,
    run=run,
    plans=TABLE.plans,
)

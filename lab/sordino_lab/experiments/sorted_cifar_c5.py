"""Sorted lots and DP-SGD on CIFAR-10 at C = 5 over four learning rates.

source     001, TA.1, lines 1326–1337
setting    C=5, lr .001/.01/.1/1, 30 epochs
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
        "DP-SGD": [(2.3, 12.26), (1.95, 31.15), (1.62, 50.95), (2.4, 17.29)],
        "sorted": [(2.3, 13.16), (1.98, 29.98), (1.56, 52.6), (3.28, 26.78)],
    },
    "TA.1, 001:1326",
    bound=5.0,
    rates=(0.001, 0.01, 0.1, 1.0),
    title="CIFAR-10, C = 5",
)


def run(bench: Workbench) -> Outcome:
    """Train, draw, compare."""
    return TABLE.outcome(
        bench,
        [
            ("sorted", "DP-SGD", 0.1, "sorted reaches 52.6 against 50.95 at lr 0.1", "001:1335"),
        ],
        [
            "The caption of TA.1 says C = 1; the numbers and the text are those of C = 5.",
        ],
    )


EXPERIMENT = Experiment(
    id="sorted-cifar-c5",
    source="001",
    figure="TA.1",
    lines="1326–1337",
    title="Sorted lots on CIFAR-10 at C = 5",
    shows="at C = 5 sorting is a little better at lr .1 and 1",
    setting="C=5, lr .001/.01/.1/1, 30 epochs",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("Sorted", "Flat", "Poisson"),
    terms=TERMS,
    seconds=60,
    run=run,
    plans=TABLE.plans,
)

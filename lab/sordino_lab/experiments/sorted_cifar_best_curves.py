"""Sorted lots at the best fixed bounds over 50 epochs.

source     001, F4.5, F4.6, lines 526–560
setting    C=9.5 at lr .1, C=10 at lr .01, topk, σ=1.1, 50 epochs
reduced    see lab/sordino_lab/thesis.py
"""

from __future__ import annotations

from sordino_lab.experiment import Experiment, Outcome
from sordino_lab.sorted_table import SortedTable
from sordino_lab.thesis import BEST, CIFAR, CIFAR_MIDDLE, TERMS
from sordino_lab.workbench import Workbench

TABLE = SortedTable(
    "cifar",
    {"DP-SGD": [], "sorted": []},
    "F4.5, F4.6",
    bound=BEST,
    rates=(0.01, 0.1),
    epochs=50,
    title="CIFAR-10, best C, 50 epochs",
)


def run(bench: Workbench) -> Outcome:
    """Trains what is not there, draws, compares and judges."""
    return TABLE.outcome(
        bench,
        [
            (
                "DP-SGD",
                "sorted",
                0.1,
                "SortedDPSGD has the weaker accuracy in spite of its smaller loss",
                "001:530",
            ),
        ],
        [
            "The source prints no numbers for these figures.",
        ],
    )


EXPERIMENT = Experiment(
    id="sorted-cifar-best-curves",
    source="001",
    figure="F4.5, F4.6",
    lines="526–560",
    title="Courses at the best bounds over 50 epochs",
    shows="sorted lots reach the smaller loss, and at lr 0.1 the weaker accuracy",
    setting="C=9.5 at lr .1, C=10 at lr .01, topk, σ=1.1, 50 epochs",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("Sorted", "Flat", "Poisson"),
    terms=TERMS,
    seconds=50,
    run=run,
    plans=TABLE.plans,
)

"""Sorted lots and the median bound on CIFAR-10 over 50 epochs.

source     001, F4.14, TA.2, lines 673, 690, 1345–1352
setting    C=5, topk with the batch median capped at C, lr .01/.1, σ=1.1, 50 epochs
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
        "sorted, median": [(1.87, 33.57), (1.44, 56.78)],
    },
    "TA.2, 001:1345",
    bound=5.0,
    rates=(0.01, 0.1),
    epochs=50,
    title="CIFAR-10, C = 5, 50 epochs",
)


def run(bench: Workbench) -> Outcome:
    """Trains what is not there, draws, compares and judges."""
    return TABLE.outcome(
        bench,
        [
            (
                "sorted, median",
                "DP-SGD",
                0.1,
                "SortedDPSGD with the median ends above DPSGD at learning rate 0.1",
                "001:1345",
            ),
        ],
        [],
    )


EXPERIMENT = Experiment(
    id="sorted-cifar-median-50",
    source="001",
    figure="F4.14, TA.2",
    lines="673, 690, 1345–1352",
    title="Sorted lots and the median bound over 50 epochs",
    shows="the median bound with a cap gains a point on DP-SGD in 50 epochs at lr 0.1",
    setting="C=5, topk with the batch median capped at C, lr .01/.1, σ=1.1, 50 epochs",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("Sorted", "BatchStatistic"),
    terms=TERMS,
    seconds=50,
    run=run,
    plans=TABLE.plans,
)

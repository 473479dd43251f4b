"""Sorted lots with the median of their own lengths for a bound, without a cap, on MNIST.

source     001, T4.2, F4.2, lines 427–451
setting    DPSGD C=7.5; topk with the batch median and no cap; lr .01/.1/1
reduced    see lab/sordino_lab/thesis.py
"""

from __future__ import annotations

from sordino_lab.experiment import Experiment, Outcome
from sordino_lab.sorted_table import SortedTable
from sordino_lab.thesis import MNIST, MNIST_MIDDLE, TERMS
from sordino_lab.workbench import Workbench

TABLE = SortedTable(
    "mnist",
    {
        "DP-SGD": [(0.39, 88.87), (0.36, 92.71), (1.94, 80.89)],
        "sorted, median": [(0.32, 90.86), (0.13, 96.0), None],
    },
    "T4.2, 001:440",
    bound=7.5,
    bounds={"sorted, median": 1e9},
    title="MNIST, C = 7.5",
)


def run(bench: Workbench) -> Outcome:
    """Train, draw, compare."""
    return TABLE.outcome(
        bench,
        [
            ("sorted, median", "DP-SGD", 0.1, "the best result of DPSGD is surpassed", "001:449"),
            ("sorted, median", "DP-SGD", 0.01, "SortedDPSGD's loss falls below DPSGD's at lr 0.01", "001:436"),
        ],
        [
            "A cap of 1e9 stands for none. The noise grows with the bound, so nothing keeps a run from diverging: the "
            "source's ends as NaN at lr 1.",
        ],
    )


EXPERIMENT = Experiment(
    id="sorted-mnist-median",
    source="001",
    figure="T4.2, F4.2",
    lines="427–451",
    title="Sorted lots and the median bound on MNIST",
    shows="the median bound without a cap trains well at small rates and breaks off at lr 1",
    setting="DPSGD C=7.5; topk with the batch median and no cap; lr .01/.1/1",
    reduced=MNIST,
    middle=MNIST_MIDDLE,
    nouns=("Sorted", "BatchStatistic"),
    terms=TERMS,
    seconds=60,
    run=run,
    plans=TABLE.plans,
)

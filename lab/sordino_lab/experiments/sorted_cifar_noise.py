"""Lots of the longest gradients against DP-SGD on CIFAR-10 under more noise.

source     001, FA.2, lines 1324
setting    Conv_CIFAR_Net, C=1, topk, σ=2.6, 30 epochs
reduced    see lab/sordino_lab/thesis.py
"""

from __future__ import annotations

from sordino_lab.experiment import Experiment, Outcome
from sordino_lab.sorted_table import SortedTable
from sordino_lab.thesis import CIFAR, CIFAR_MIDDLE, TERMS
from sordino_lab.workbench import Workbench

TABLE = SortedTable(
    "cifar",
    {"DP-SGD": [], "sorted": []},
    "FA.2",
    bound=1.0,
    given={"noise_multiplier": 2.6},
    title="CIFAR-10, C = 1, σ = 2.6",
)


def run(bench: Workbench) -> Outcome:
    """Trains what is not there, draws, compares and judges."""
    return TABLE.outcome(
        bench,
        [],
        [
            "The source prints no numbers for this figure.",
        ],
    )


EXPERIMENT = Experiment(
    id="sorted-cifar-noise",
    source="001",
    figure="FA.2",
    lines="1324",
    title="Sorted lots on CIFAR-10 under more noise",
    shows="what sorting does under more noise",
    setting="Conv_CIFAR_Net, C=1, topk, σ=2.6, 30 epochs",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("Sorted", "Flat", "Poisson"),
    terms=TERMS,
    seconds=50,
    run=run,
    plans=TABLE.plans,
)

"""ProjectedDPSGD against DP-SGD on CIFAR-10.

source     001, T5.1, F5.3, lines 968–990
setting    C=1, ρ=2, lr .01/.1/1, σ=1.1, 30 epochs
reduced    see lab/sordino_lab/thesis.py
"""

from __future__ import annotations

from sordino_lab.experiment import Experiment, Outcome
from sordino_lab.sorted_table import SortedTable
from sordino_lab.thesis import CIFAR, CIFAR_MIDDLE
from sordino_lab.workbench import Workbench

TABLE = SortedTable(
    "cifar",
    {
        "DP-SGD": [(2.07, 25.69), (1.81, 35.8), (1.95, 55.93)],
        "projected": [(2.07, 25.73), (1.81, 35.67), (2.07, 54.38)],
    },
    "T5.1, 001:979",
    bound=1.0,
    title="CIFAR-10, C = 1, ρ = 2",
)


def run(bench: Workbench) -> Outcome:
    """Train, draw, compare."""
    return TABLE.outcome(
        bench,
        [
            ("DP-SGD", "projected", 1.0, "ProjectedDPSGD gives slightly worse results in nearly all cases", "001:1069"),
        ],
        [
            "The source's ε = 1.729 is that of DP-SGD; its lookahead has none. NoisyLookahead is the form with a "
            "guarantee.",
        ],
    )


EXPERIMENT = Experiment(
    id="projected-cifar",
    source="001",
    figure="T5.1, F5.3",
    lines="968–990",
    title="ProjectedDPSGD on CIFAR-10",
    shows="looking ahead changes nearly nothing at small rates and is a little worse at lr 1",
    setting="C=1, ρ=2, lr .01/.1/1, σ=1.1, 30 epochs",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("Projected", "NoisySum"),
    terms="ProjectedDPSGD, Updateschritt",
    seconds=50,
    run=run,
    plans=TABLE.plans,
)

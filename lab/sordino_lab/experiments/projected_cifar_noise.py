"""ProjectedDPSGD against DP-SGD on CIFAR-10 under more noise.

source     001, T5.2, lines 998–1018
setting    C=1, ρ=2, lr .01/.1/1, σ=2.6, 30 epochs
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
        "DP-SGD": [(2.07, 25.6), (1.77, 37.08), (2.12, 30.26)],
        "projected": [(2.07, 25.53), (1.77, 37.29), (2.1, 30.99)],
    },
    "T5.2, 001:1008",
    bound=1.0,
    given={"noise_multiplier": 2.6},
    title="CIFAR-10, C = 1, ρ = 2, σ = 2.6",
)


def run(bench: Workbench) -> Outcome:
    """Trains what is not there, draws, compares and judges."""
    return TABLE.outcome(
        bench,
        [],
        [
            "The source says that the difference at lr 1 is too small to be seen as an advantage (001:998).",
            "Its DP-SGD at lr .1 is better under σ = 2.6 than under 1.1 (37.08 % for 35.8 in T5.1): no effect of noise.",
        ],
    )


EXPERIMENT = Experiment(
    id="projected-cifar-noise",
    source="001",
    figure="T5.2",
    lines="998–1018",
    title="ProjectedDPSGD under more noise",
    shows="looking ahead does not make up for noise",
    setting="C=1, ρ=2, lr .01/.1/1, σ=2.6, 30 epochs",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("Projected", "NoisySum"),
    terms="ProjectedDPSGD, Updateschritt",
    seconds=50,
    run=run,
    plans=TABLE.plans,
)

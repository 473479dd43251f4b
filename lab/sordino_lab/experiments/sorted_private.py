"""The private form of sorting against DP-SGD at equal ε: coins by a record's own length, charged at the largest rate.

source     001, §4.5, lines 797–824
setting    the DP form against DP-SGD at equal total ε = 3
reduced    see lab/sordino_lab/thesis.py
"""

from __future__ import annotations

from sordino.accounting import chance_of_acceptance
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.thesis import CIFAR, CIFAR_MIDDLE, cifar
from sordino_lab.training_curves import against, higher, learning, no_guarantee
from sordino_lab.workbench import Workbench


def plans(bench: Workbench) -> list[CurvePlan]:
    """Every curve."""
    return [cifar(bench, way, 0.1, 5.0, epsilon=3.0) for way in ("DP-SGD", "threshold")]


def run(bench: Workbench) -> Outcome:
    """Train, draw, judge."""
    trained = bench.trained(plans(bench))
    return Outcome(
        learning(trained, "CIFAR-10"),
        against(trained, {}, ""),
        [
            higher(
                bench,
                trained[1],
                trained[0],
                "(ours; no result published) the private form is above DP-SGD at equal ε",
                "001:822",
                why="both at ε = 3, everything that touches the data counted",
            ),
            Finding(
                "batches by rejection sampling need clearly more steps",
                "001:820",
                False,
                "the chance that a random batch of 250 has a median above the 0.75-quantile is "
                f"{chance_of_acceptance(250, 0.75):.1e}: not more steps, but none",
            ),
        ],
        [
            "Thresholding whole Poisson batches as sketched in §4.5 costs 2ε₁ + ε₀ for each step: thousands in "
            "all; docs/sorted.md has the numbers.",
            *no_guarantee(trained),
        ],
        bench.commands(plans(bench)),
    )


EXPERIMENT = Experiment(
    id="sorted-private",
    source="001",
    figure="§4.5",
    lines="797–824",
    title="Sorting with a guarantee, at equal ε",
    shows="records with long gradients may take part more often, if they are charged for it; whether that pays "
    "at equal ε is measured here",
    setting="the DP form against DP-SGD at equal total ε = 3",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("Threshold", "rejection"),
    terms="Rejectionsampling, Threshold",
    seconds=25,
    run=run,
    plans=plans,
)

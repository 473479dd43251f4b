"""The private forms of ProjectedDPSGD against DP-SGD at equal ε.

source     001, §5, DP form, lines 1069–1077
setting    the DP form against DP-SGD at equal total ε = 3
reduced    see lab/sordino_lab/thesis.py
"""

from __future__ import annotations

from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Experiment, Outcome
from sordino_lab.thesis import CIFAR, CIFAR_MIDDLE, cifar
from sordino_lab.training_curves import against, higher, learning, no_guarantee
from sordino_lab.workbench import Workbench


def plans(bench: Workbench) -> list[CurvePlan]:
    """Every curve."""
    return [cifar(bench, way, 0.1, 1.0, epsilon=3.0) for way in ("DP-SGD", "noisy lookahead", "optimistic lookahead")]


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
                "(ours; no result published) the noisy lookahead is above DP-SGD at equal ε",
                "001:1075",
                why="at ε = 3 for all three",
            )
        ],
        no_guarantee(trained),
        bench.commands(plans(bench)),
    )


EXPERIMENT = Experiment(
    id="projected-private",
    source="001",
    figure="§5, DP form",
    lines="1069–1077",
    title="Looking ahead with a guarantee, at equal ε",
    shows="noise on the way makes the lookahead private at the same ε and the same update noise; whether it pays "
    "is measured here",
    setting="the DP form against DP-SGD at equal total ε = 3",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("NoisyLookahead", "OptimisticLookahead"),
    terms="ProjectedDPSGD",
    seconds=25,
    run=run,
    plans=plans,
)

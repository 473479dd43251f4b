"""The logarithmic bound that falls within each epoch and starts again, for several slopes.

source     001, figure 4.19, equation 4.1, lines 766–775
setting    240 batches an epoch, largest bound 5
reduced    nothing
"""

from __future__ import annotations

from sordino.app.report.panels import Panel, Series
from sordino.schedules import Logarithmic
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench

PERIOD, TOP = 240, 5.0


def run(bench: Workbench) -> Outcome:
    """Two epochs of the schedule."""
    slopes = (0.1, 0.3, 0.5, 0.8)
    at = range(2 * PERIOD)
    made = [Logarithmic(TOP, slope, PERIOD) for slope in slopes]
    return Outcome(
        [
            Panel(
                "two epochs of 240 batches, largest bound 5",
                "batches",
                "clip bound C",
                [
                    Series(f"A = {a:g}", at, [one(t) for t in at], method="logarithmic", variant=k)
                    for k, (a, one) in enumerate(zip(slopes, made, strict=True))
                ],
            )
        ],
        findings=[
            Finding(
                "the bound is set independently of the data and keeps differential privacy",
                "001:766",
                True,
                "a function of the batch's number alone: `Scheduled(Logarithmic(…))` has DP-SGD's guarantee on "
                "Poisson lots",
            )
        ],
        notes=[
            "Positive for all batches only if A < top / ln 240 = 0.912 here; larger slopes are refused. A and the "
            "largest "
            "bound must not be tuned on the private data without counting the tuning."
        ],
    )


EXPERIMENT = Experiment(
    id="log-schedule",
    source="001",
    figure="F4.19",
    lines="766–775",
    title="The logarithmic clip bound",
    shows="a bound that falls within the epoch as sorted lengths do, without looking at the data",
    setting="240 batches, v_max = 5",
    reduced="nothing",
    nouns=("Logarithmic", "Scheduled"),
    terms="dynamische Clipping-Bound, Log-Funktion",
    seconds=0.3,
    run=run,
)

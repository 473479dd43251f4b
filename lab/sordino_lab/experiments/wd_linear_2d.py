"""Linear regression with two weights: the panels of wd-linear-1d again.

source     000, "Multiple linear regression", lines 290–309
setting    w = [10, 5], otherwise as wd-linear-1d
reduced    a 25th of the steps, each 25 times as long; one seed
"""

from __future__ import annotations

from sordino_lab.experiment import Experiment, Outcome
from sordino_lab.weight_decay import linear
from sordino_lab.workbench import Workbench


def run(bench: Workbench) -> Outcome:
    """w = [10, 5]."""
    return linear(bench, (10.0, 5.0), "000:295")


EXPERIMENT = Experiment(
    id="wd-linear-2d",
    source="000",
    figure="Multiple linear regression, (a)–(c)",
    lines="290–309",
    title="Linear regression, two weights",
    shows="as with one weight",
    setting="w=[10,5], the same panels",
    reduced="a 25th of the steps, each 25 times as long",
    middle="nothing",
    nouns=("L2", "Flat", "Poisson"),
    seconds=16,
    run=run,
)

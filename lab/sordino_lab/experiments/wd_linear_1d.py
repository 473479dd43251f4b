"""Linear regression with one weight: test loss of decay outside the clip and of L2 inside it.

source     000, "Simple linear regression", lines 269–288
setting    y = 10x + noise, 1000 examples; (R, λ, lr) = (.1, .01, .03), (.01, .01, .1), (.1, .1, .03); σ = 0.1
reduced    a 25th of the steps, each 25 times as long; one seed
"""

from __future__ import annotations

from sordino_lab.experiment import Experiment, Outcome
from sordino_lab.weight_decay import linear
from sordino_lab.workbench import Workbench


def run(bench: Workbench) -> Outcome:
    """w = 10."""
    return linear(bench, (10.0,), "000:274")


EXPERIMENT = Experiment(
    id="wd-linear-1d",
    source="000",
    figure="Simple linear regression, (a)–(c)",
    lines="269–288",
    title="Linear regression, one weight",
    shows="decay outside the clip pulls towards R/λ; L2 inside it goes to the ridge solution",
    setting="y=10x+ε, (R,λ,lr) in three panels, σ=0.1",
    reduced="a 25th of the steps, each 25 times as long",
    middle="nothing",
    nouns=("L2", "Flat", "Poisson"),
    seconds=16,
    run=run,
)

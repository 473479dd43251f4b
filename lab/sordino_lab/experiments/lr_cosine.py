"""The learning rate of the thesis: half a cosine, constant within an epoch.

source     001, figure A.1, equation 2.1, lines 316, 1321
setting    30 epochs, initial rates 0.01, 0.1, 1
reduced    nothing
"""

from __future__ import annotations

from sordino.app.report.panels import Panel, Series
from sordino.schedules import Cosine, Epochs
from sordino_lab.experiment import Experiment, Outcome
from sordino_lab.workbench import Workbench

EPOCHS, BATCHES = 30, 240


def run(bench: Workbench) -> Outcome:
    """Three initial rates."""
    at = range(EPOCHS + 1)
    rates = (0.01, 0.1, 1.0)
    made = [Epochs(Cosine(rate, 0.0, EPOCHS), BATCHES) for rate in rates]
    return Outcome(
        [
            Panel(
                "lr₀ · ½(1 + cos(πE/30))",
                "epoch E",
                "learning rate",
                [
                    Series(f"lr₀ = {rate:g}", at, [one(e * BATCHES) for e in at], method="dpsgd", variant=k)
                    for k, (rate, one) in enumerate(zip(rates, made, strict=True))
                ],
            )
        ],
        notes=["The source gives no number for it: the figure is the formula."],
    )


EXPERIMENT = Experiment(
    id="lr-cosine",
    source="001",
    figure="FA.1",
    lines="316, 1321",
    title="The cosine learning rate",
    shows="a rate that falls to 0 over the run, by epochs",
    setting="30 epochs",
    reduced="nothing",
    nouns=("Cosine", "Epochs"),
    terms="adaptive Learningrate",
    seconds=0.2,
    run=run,
)

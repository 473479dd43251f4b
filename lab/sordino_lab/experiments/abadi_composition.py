"""ε against epochs by strong composition, the moments accountant, Rényi and privacy loss distributions.

source     002, figure 2, line 149
setting    q = 0.01, σ = 4, δ = 1e-5, up to 400 epochs of 100 steps
reduced    nothing
"""

from __future__ import annotations

from sordino.accounting import PLD, RDP, Moments, Strong
from sordino.app.report.panels import Panel, Series
from sordino.events import Gaussian, Poisson, Repeat
from sordino_lab.experiment import Compared, Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench

RATE, NOISE, DELTA = 0.01, 4.0, 1e-5


def run(bench: Workbench) -> Outcome:
    """Four accountants and the valid form of the first."""
    epochs = bench.pick(
        (1, 100), (1, 10, 25, 50, 75, 100, 150, 200, 300, 400), (1, 10, *range(25, 401, 25)), (1, *range(10, 401, 10))
    )
    events = [Repeat(Poisson(RATE, Gaussian(NOISE)), 100 * e) for e in epochs]
    ways = (
        ("strong composition, as printed: no bound", Strong(), "printed", 1),
        ("strong composition, made valid", Strong(valid=True), "strong", 2),
        ("moments accountant, as published", Moments(), "moments", 0),
        ("Rényi", RDP(), "threshold", 3),
        ("privacy loss distributions", PLD(), "pld", 0),
    )
    found = {name: [way.epsilon(event, DELTA) for event in events] for name, way, _, _ in ways}
    at = list(epochs).index(100)
    strong, moments, pld = (found[ways[k][0]][at] for k in (0, 2, 4))
    lines = [Series(name, epochs, found[name], method=key, variant=v) for name, _, key, v in ways]
    return Outcome(
        [
            Panel("q = 0.01, σ = 4, δ = 1e-5", "epochs", "ε", lines, ylim=(0, 25)),
            Panel("without strong composition", "epochs", "ε", lines[2:]),
        ],
        [
            Compared("strong composition, E = 100", strong, 9.34, "002:149"),
            Compared("moments accountant, E = 100", moments, 1.26, "002:149"),
        ],
        [
            Finding(
                "the moments accountant gives a much tighter bound than strong composition",
                "002:146",
                moments < strong / 2,
                f"{moments:.2f} against {strong:.2f} at 100 epochs",
            ),
            Finding(
                "the moments accountant is the best possible (least) privacy cost",
                "002:110",
                pld >= moments,
                f"privacy loss distributions certify {pld:.3f} where it says {moments:.3f}",
            ),
        ],
        [
            "9.34 is figure 2's own reading of strong composition, with qε for amplification; made valid the same "
            "theorem gives "
            f"{found[ways[1][0]][at]:.2f}."
        ],
    )


EXPERIMENT = Experiment(
    id="abadi-composition",
    source="002",
    figure="Figure 2",
    lines="149",
    title="ε against epochs, by four accountants",
    shows="the moments accountant is far below strong composition, and privacy loss distributions are below both",
    setting="q=.01, σ=4, δ=1e-5",
    reduced="nothing",
    nouns=("Strong", "Moments", "RDP", "PLD"),
    seconds=4,
    run=run,
)

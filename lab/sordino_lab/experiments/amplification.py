"""What Poisson sampling saves: ε of one release against the rate, and of k rounds of DP-SGD.

source     003, "Privacy amplification via subsampling", lines 708–763; 004, theorem 4.2, line 188
setting    ε = 1 before sampling; Gaussian σ = 1, δ = 1e-5
reduced    nothing
"""

from __future__ import annotations

import math

import numpy as np

from sordino.accounting import PLD, amplified
from sordino.app.report.panels import Panel, Series
from sordino.events import Gaussian, Poisson, Repeat
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench

DELTA = 1e-5


def run(bench: Workbench) -> Outcome:
    """Rates, then rounds."""
    rates = np.geomspace(1e-3, 1, bench.pick(6, 30, 60, 60))
    true = [amplified(1.0, 0.0, float(q))[0] for q in rates]
    printed = [float(q) for q in rates]
    lecture = [math.log(1 - q + q * math.e) for q in rates]
    rounds = [int(k) for k in np.unique(np.geomspace(1, 10_000, bench.pick(3, 9, 13, 17)).astype(int))]
    chosen = (0.001, 0.01, 0.1)
    curves = [
        Series(
            f"q = {q:g}",
            rounds,
            [PLD().epsilon(Repeat(Poisson(q, Gaussian(1.0)), k), DELTA) for k in rounds],
            method="pld",
            variant=number,
        )
        for number, q in enumerate(chosen)
    ]
    worst = max(t / p for t, p in zip(true, printed, strict=True))
    return Outcome(
        [
            Panel(
                "one release of ε = 1, sampled at rate q",
                "sampling rate q",
                "ε after sampling",
                [
                    Series("log(1 + q(e^ε − 1))", rates, true, method="exact"),
                    Series("qε, as printed in 004: no bound", rates, printed, method="printed", variant=1),
                ],
                xlog=True,
                ylog=True,
            ),
            Panel("k rounds of DP-SGD, σ = 1, δ = 1e-5", "rounds k", "ε (PLD)", curves, xlog=True, ylog=True),
        ],
        findings=[
            Finding(
                "sampling gives log(1 − q + qe^ε)", "003:723", bool(np.allclose(lecture, true)), "the same formula"
            ),
            Finding(
                "sampling reduces ε to qε",
                "004:192",
                worst <= 1.0,
                f"the true ε is up to {worst:.2f} times qε at ε = 1: qε is no bound",
            ),
        ],
        notes=["qε is the limit of small ε and lies below the true value for every ε > 0."],
    )


EXPERIMENT = Experiment(
    id="amplification",
    source="003",
    figure="Subsampling amplification",
    lines="708–763",
    title="Privacy amplification by sampling",
    shows="sampled at rate q, ε becomes log(1 + q(e^ε − 1)), a little more than qε",
    setting="ε=1; Gaussian σ=1, δ=1e-5",
    reduced="nothing",
    nouns=("amplified", "Poisson", "PLD"),
    seconds=3,
    run=run,
)

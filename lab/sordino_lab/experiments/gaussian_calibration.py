"""How much Gaussian noise (ε, δ) needs: the classical formula against the exact one.

source     003, "Analytic vs. programmatic Gaussian mechanism", lines 55–71; 004, definition 2.4, line 134
setting    Δ₂ = 1, δ = 1e-5, ε from 0.05 to 10
reduced    nothing
"""

from __future__ import annotations

import numpy as np

from sordino.accounting import analytic_gaussian, classical_gaussian, gaussian_delta
from sordino.app.report.panels import Panel, Series
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench

DELTA = 1e-5


def run(bench: Workbench) -> Outcome:
    """σ against ε, and what δ the classical σ really has."""
    epsilons = np.geomspace(0.05, 10, bench.pick(8, 60, 60, 60))
    classical = [classical_gaussian(e, DELTA, outside_proof=True) for e in epsilons]
    analytic = [analytic_gaussian(e, DELTA) for e in epsilons]
    real = [gaussian_delta(1 / sigma, e) for e, sigma in zip(epsilons, classical, strict=True)]
    ratio = [c / a for c, a in zip(classical, analytic, strict=True)]
    broken = [e for e, d in zip(epsilons, real, strict=True) if d > DELTA]
    panels = [
        Panel(
            "noise that (ε, 1e-5) needs",
            "ε",
            "σ / Δ₂",
            [
                Series("classical, √(2 ln(1.25/δ))/ε", epsilons, classical, method="classical", variant=1),
                Series("analytic (Balle & Wang 2018)", epsilons, analytic, method="analytic"),
            ],
            xlog=True,
            ylog=True,
        ),
        Panel(
            "δ that the classical noise really has",
            "ε",
            "δ",
            [
                Series("exact δ of the classical σ", epsilons, real, method="classical", variant=1),
                Series("δ that was asked for", [epsilons[0], epsilons[-1]], [DELTA] * 2, method="theory", variant=3),
            ],
            xlog=True,
            ylog=True,
        ),
    ]
    first = broken[0] if broken else float("inf")
    return Outcome(
        panels,
        findings=[
            Finding(
                "the classical σ suffices",
                "003:59",
                all(d <= DELTA for e, d in zip(epsilons, real, strict=True) if e <= 1),
                "true for every ε ≤ 1, where it was proved",
            ),
            Finding(
                "but suboptimal",
                "003:61",
                all(r > 1 for e, r in zip(epsilons, ratio, strict=True) if e <= 1),
                f"{ratio[0]:.2f} times the noise that is needed at ε = 0.05, "
                f"{classical_gaussian(1, DELTA) / analytic_gaussian(1, DELTA):.2f} times at ε = 1",
            ),
            Finding(
                "the classical σ gives (ε, δ) for any ε (definition 2.4 has no condition)",
                "004:134",
                not broken,
                f"from ε = {first:.2f} on its δ is above 1e-5, {real[-1] / DELTA:.2f} times at ε = 10",
            ),
        ],
        notes=[
            "The classical formula is proved for ε ≤ 1; beyond it the noise is too small and what it promises is false."
        ],
        numbers={"epsilon": [round(float(e), 4) for e in epsilons], "analytic": [round(a, 4) for a in analytic]},
    )


EXPERIMENT = Experiment(
    id="gaussian-calibration",
    source="003",
    figure="Analytic vs. programmatic Gaussian mechanism",
    lines="55–71",
    title="Classical and analytic Gaussian mechanism",
    shows="the classical σ is larger than needed for ε ≤ 1 and too small for large ε",
    setting="Δ₂=1, δ=1e-5",
    reduced="nothing",
    nouns=("analytic_gaussian", "classical_gaussian"),
    seconds=0.3,
    run=run,
)

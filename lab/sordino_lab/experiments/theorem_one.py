"""Theorem 1's scaling: σε/(q√(T ln 1/δ)) is a constant where ε is small against q²T.

source     002, theorem 1, lines 88–96; 000, lines 224–226
setting    σ calibrated by PLD to ε for several q, T and δ
reduced    fewer settings
"""

from __future__ import annotations

import math

from sordino.accounting import PLD, calibrate
from sordino.app.report.panels import Panel, Series
from sordino.events import Gaussian, Poisson, Repeat
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench

LARGEST = math.sqrt(2)
"""What c₂ tends to as noise and steps grow: ε ≈ μ√(2 ln 1/δ), μ = q√T/σ."""


def constant(rate: float, steps: int, epsilon: float, delta: float) -> float:
    """c₂ of a setting."""
    sigma = calibrate(lambda s: Repeat(Poisson(rate, Gaussian(s)), steps), PLD(), epsilon=epsilon, delta=delta)
    return float(sigma) * epsilon / (rate * math.sqrt(steps * math.log(1 / delta)))


def run(bench: Workbench) -> Outcome:
    """The constant over T, q and δ."""
    steps = bench.pick(
        (1_000,), (1_000, 10_000, 100_000), (1_000, 4_000, 16_000, 64_000), (1_000, 4_000, 16_000, 64_000, 256_000)
    )
    rates = bench.pick((0.01,), (0.005, 0.01), (0.002, 0.005, 0.01), (0.002, 0.005, 0.01, 0.02))
    deltas = bench.pick((1e-5,), (1e-5, 1e-7), (1e-4, 1e-5, 1e-7), (1e-3, 1e-4, 1e-5, 1e-6, 1e-7))
    small = [[constant(q, t, 0.5 * q * math.sqrt(t), 1e-5) for t in steps] for q in rates]
    by_delta = [constant(0.01, 10_000, 0.5, d) for d in deltas]
    linear = [
        constant(q, 10_000, 1.0, 1e-5)
        for q in bench.pick((0.01,), (0.005, 0.01, 0.02), (0.005, 0.01, 0.02), (0.005, 0.01, 0.02))
    ]
    found = [c for row in small for c in row]
    beyond = [
        constant(rates[-1], steps[-1], e, 1e-5)
        for e in bench.pick((1.0,), (0.25, 1.0, 4.0, 8.0), (0.25, 1.0, 4.0, 8.0), (0.1, 0.25, 1.0, 4.0, 8.0))
    ]
    at = bench.pick((1.0,), (0.25, 1.0, 4.0, 8.0), (0.25, 1.0, 4.0, 8.0), (0.1, 0.25, 1.0, 4.0, 8.0))
    return Outcome(
        [
            Panel(
                "ε = ½ q√T, δ = 1e-5",
                "steps T",
                "σε / (q√(T ln 1/δ))",
                [
                    Series(f"q = {q:g}", steps, row, method="pld", variant=k)
                    for k, (q, row) in enumerate(zip(rates, small, strict=True))
                ],
                xlog=True,
                ylim=(0, 1.6),
            ),
            Panel(
                "q = 0.01, T = 10,000, ε = 0.5",
                "δ",
                "σε / (q√(T ln 1/δ))",
                [Series("", deltas, by_delta, method="pld")],
                xlog=True,
                ylim=(0, 1.6),
            ),
            Panel(
                f"large ε: q = {rates[-1]:g}, T = {steps[-1]:,}",
                "ε",
                "σε / (q√(T ln 1/δ))",
                [Series("", at, beyond, method="pld")],
                xlog=True,
                ylim=(0, 1.6),
            ),
        ],
        findings=[
            Finding(
                "σ ≥ c₂ q√(T ln 1/δ)/ε suffices for a constant c₂",
                "002:90",
                bench.judged(max(found) <= LARGEST),
                f"the smallest σ that is enough needs c₂ of {min(found):.2f} to {max(found):.2f} over q and T, never "
                "above √2",
            ),
            Finding(
                "σ increases linearly with the lot size, the other parameters constant",
                "002:96",
                bench.judged(max(linear) / min(linear) < 1.1),
                f"σ/q at ε = 1 and T = 10,000 differs by a factor of {max(linear) / min(linear):.3f} over three rates",
            ),
        ],
        notes=["For large ε the constant rises above √2: the theorem's condition ε < c₁q²T is needed."],
        numbers={"least": min(found), "most": max(found), "by_delta": by_delta},
    )


EXPERIMENT = Experiment(
    id="theorem-one",
    source="002",
    figure="Theorem 1",
    lines="88–96",
    title="Theorem 1's scaling of the noise",
    shows="σε/(q√(T ln 1/δ)) stays near 1 for small ε: never above √2",
    setting="σ calibrated by PLD",
    reduced="fewer settings of q, T and δ",
    nouns=("calibrate", "PLD"),
    seconds=6,
    run=run,
)

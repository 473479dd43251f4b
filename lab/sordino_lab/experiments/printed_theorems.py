"""The theorems of the slides beside what is certified: qε, qTε, qε√(T log 1/δ), qε√T.

source     004, theorems 4.2, 4.4, 4.5 and "Privacy accounting", lines 186–222
setting    Gaussian mechanism σ = 1.1 at δ = 1e-5 (ε = 4.0), q = 0.01, T to 10,000
reduced    nothing
"""

from __future__ import annotations

import math

import numpy as np

from sordino.accounting import PLD, amplified, gaussian_epsilon
from sordino.app.report.panels import Panel, Series
from sordino.events import Gaussian, Poisson, Repeat
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench

RATE, NOISE, DELTA = 0.01, 1.1, 1e-5


def run(bench: Workbench) -> Outcome:
    """Three printed formulas and the certified curve."""
    steps = [int(t) for t in np.unique(np.geomspace(1, 10_000, bench.pick(4, 13, 17, 25)).astype(int))]
    one = gaussian_epsilon(1 / NOISE, DELTA)
    certified = [PLD().epsilon(Repeat(Poisson(RATE, Gaussian(NOISE)), t), DELTA) for t in steps]
    simple = [RATE * t * one for t in steps]
    strong = [RATE * one * math.sqrt(t * math.log(1 / DELTA)) for t in steps]
    moments = [RATE * one * math.sqrt(t) for t in steps]
    true_one = amplified(one, DELTA, RATE)[0]
    first = certified[0]
    below = [t for t, m, c in zip(steps, moments, certified, strict=True) if m < c]
    return Outcome(
        [
            Panel(
                "q = 0.01, σ = 1.1, δ = 1e-5",
                "steps T",
                "ε",
                [
                    Series("certified (PLD)", steps, certified, method="pld"),
                    Series("qTε, sequential and sampling: no bound", steps, simple, method="basic", variant=1),
                    Series("qε√(T ln 1/δ), strong: no bound", steps, strong, method="printed", variant=2),
                    Series("qε√T, moments: no bound", steps, moments, method="moments", variant=3),
                ],
                xlog=True,
                ylog=True,
            )
        ],
        findings=[
            Finding(
                "querying a fraction q makes an (ε, δ) mechanism (qε, qδ)",
                "004:192",
                RATE * one >= true_one,
                f"qε = {RATE * one:.3f}; the true amplification of ε = {one:.2f} is {true_one:.3f}",
            ),
            Finding(
                "(qTε, qTδ): this privacy bound is guaranteed to hold true, and very loose",
                "004:208",
                false_at_small(simple, certified),
                f"at T = 1 it says {simple[0]:.3f} and {first:.3f} is certified at the same δ; it is built on qε, "
                "which is no bound",
            ),
            Finding(
                "the moments accountant gives (qε√T, δ)",
                "004:222",
                not below,
                f"below the certified ε for {len(below)} of {len(steps)} T tried, up to T = {max(below, default=0)}: "
                "an order of growth, not a bound",
            ),
        ],
    )


def false_at_small(printed: list[float], certified: list[float]) -> bool:
    """Whether a formula is at least the certified ε everywhere."""
    return all(p >= c for p, c in zip(printed, certified, strict=True))


EXPERIMENT = Experiment(
    id="printed-theorems",
    source="004",
    figure="Theorems 4.2–4.5",
    lines="186–222",
    title="The slides' theorems beside the certified ε",
    shows="qε is no bound, and formulas built on it are orders of growth and not guarantees",
    setting="q=.01, σ=1.1, δ=1e-5",
    reduced="nothing",
    nouns=("PLD", "amplified"),
    seconds=2,
    run=run,
)

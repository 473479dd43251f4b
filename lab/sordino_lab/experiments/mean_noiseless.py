"""Is the mean of Gaussian data private without noise? For a secret, random dataset it looks so; for neighbours it is not.

source     003, lines 153–166
setting    x ~ N(μ, σ²), ① output the exact mean; ② output it with noise N(0, ρ²)
reduced    nothing
"""

from __future__ import annotations

import numpy as np

from sordino.accounting import gaussian_epsilon
from sordino.app.report.panels import Panel, Series
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench

DELTA, N = 1e-5, 1000


def run(bench: Workbench) -> Outcome:
    """ε of a shift in the mean, by the noise; and where the shift has no bound."""
    shifts = np.geomspace(0.1, 1000, 25)
    noises = (0.01, 0.1, 1.0)
    lines = [
        Series(
            f"ρ = {rho:g}", shifts, [gaussian_epsilon(s / N / rho, DELTA) for s in shifts], method="gaussian", variant=k
        )
        for k, rho in enumerate(noises)
    ]
    scale = 1 / np.sqrt(N)
    average = gaussian_epsilon((1 / N) / scale, DELTA)
    return Outcome(
        [
            Panel(
                f"mean of n = {N} numbers plus N(0, ρ²), δ = 1e-5",
                "how far one record may be from another",
                "ε",
                lines,
                xlog=True,
                ylog=True,
            )
        ],
        findings=[
            Finding(
                "① the exact mean satisfies some (ε, δ)",
                "003:162",
                False,
                "for two neighbouring datasets the outputs are two different numbers: every δ < 1 is broken",
            ),
            Finding(
                "② the mean plus N(0, ρ²) satisfies some (ε, δ)",
                "003:165",
                False,
                "a Gaussian record is not bounded, so ε grows without end with the record that is exchanged; clipped, "
                "it is",
            ),
        ],
        notes=[
            f"If the other {N - 1} records were secret and random, their own sampling noise σ/√n would hide a shift "
            "of σ/n with "
            f"ε = {average:.2f}. Differential privacy does not grant that secret: the attacker may know them all."
        ],
    )


EXPERIMENT = Experiment(
    id="mean-noiseless",
    source="003",
    figure="Handwritten questions ① and ②",
    lines="153–166",
    title="Is a mean of Gaussian data private by itself?",
    shows="no: without noise never, with noise only as far as records are bounded",
    setting="x ~ N(μ, σ²)",
    reduced="nothing",
    nouns=("gaussian_epsilon", "Mean"),
    seconds=0.3,
    run=run,
)

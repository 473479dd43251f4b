"""The private mean of bits: error against n and ε, with the formula drawn.

source     003, "Binary mean estimation", lines 99–175
setting    x ~ Bernoulli(p), Lap(1/nε); error p(1−p)/n + 2/(n²ε²)
reduced    fewer repetitions
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sordino.app.report.panels import Panel, Series
from sordino.statistics.mean_rules import binary_error, binary_mean
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench

P = 0.3


def measured(rng: np.random.Generator, n: int, epsilon: float, repeats: int) -> tuple[float, float]:
    """Mean squared error of the private mean, and its standard error."""
    scale = binary_mean(epsilon).noise.multiplier
    errors = (rng.binomial(n, P, repeats) / n + rng.laplace(0, scale, repeats) / n - P) ** 2
    return float(errors.mean()), float(errors.std() / np.sqrt(repeats))


def run(bench: Workbench) -> Outcome:
    """Over n, then over ε."""
    rng, repeats = bench.rng(), bench.pick(200, 20_000, 100_000, 100_000)
    sizes = [int(n) for n in np.geomspace(20, 20_000, 13)]
    epsilons = np.geomspace(0.01, 10, 13)
    exact = [P * (1 - P) / n for n in sizes]
    panels, most = [], 0.0
    lines = [Series("without privacy, p(1−p)/n", sizes, exact, method="none", variant=2)]
    for k, epsilon in enumerate((0.1, 1.0)):
        ours = [measured(rng, n, epsilon, repeats) for n in sizes]
        theory = [binary_error(P, n, epsilon) for n in sizes]
        most = max([most, *(abs(m - t) / max(s, 1e-300) for (m, s), t in zip(ours, theory, strict=True))])
        lines += [
            _series(f"measured, ε = {epsilon:g}", sizes, ours, k),
            Series(f"p(1−p)/n + 2/n²ε², ε = {epsilon:g}", sizes, theory, method="theory", variant=k),
        ]
    panels.append(Panel("error against n, p = 0.3", "records n", "mean squared error", lines, xlog=True, ylog=True))
    n = 1000
    ours = [measured(rng, n, float(e), repeats) for e in epsilons]
    theory = [binary_error(P, n, float(e)) for e in epsilons]
    most = max([most, *(abs(m - t) / max(s, 1e-300) for (m, s), t in zip(ours, theory, strict=True))])
    lines = [
        _series("measured", epsilons, ours, 0),
        Series("p(1−p)/n + 2/n²ε²", epsilons, theory, method="theory", variant=1),
        Series("without privacy", [epsilons[0], epsilons[-1]], [P * (1 - P) / n] * 2, method="none", variant=2),
    ]
    panels.append(Panel("error against ε, n = 1000", "ε", "mean squared error", lines, xlog=True, ylog=True))
    return Outcome(
        panels,
        findings=[
            Finding(
                "net error is 1/n + 2/(n²ε²)",
                "003:174",
                bench.judged(most < 5),
                f"the exact form p(1−p)/n + 2/n²ε² is met within {most:.1f} standard errors at every n and ε",
            ),
            Finding(
                "the error added by privacy is 1/(n²ε²)",
                "003:127",
                False,
                "the variance of Lap(1/nε) is 2/(n²ε²), as the later slide has it (line 174)",
            ),
        ],
    )


def _series(label: str, x: Any, ours: list[tuple[float, float]], variant: int) -> Series:
    low, high = [m - 2 * s for m, s in ours], [m + 2 * s for m, s in ours]
    return Series(label, x, [m for m, _ in ours], low=low, high=high, method="laplace", variant=variant, points=True)


EXPERIMENT = Experiment(
    id="mean-binary",
    source="003",
    figure="Binary mean estimation",
    lines="99–175",
    title="The private mean of bits",
    shows="privacy adds 2/(n²ε²) to an error of p(1−p)/n, which is nothing for large n",
    setting="p=0.3, Laplace noise",
    reduced="fewer repetitions",
    nouns=("binary_mean", "Mean", "Laplace"),
    seconds=1,
    run=run,
)

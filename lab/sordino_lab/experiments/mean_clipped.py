"""The private mean of unbounded numbers: clipped at τ, and how τ should be chosen.

source     003, "Unbounded mean estimation", lines 129–151, 177–221
setting    x ~ N(μ, σ²), Lap(2τ/nε), τ = σ√(nε)/2, error ≤ σ²/n + 4σ²/nε
reduced    fewer repetitions
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sordino.app.report.panels import Panel, Series
from sordino.statistics.mean_rules import scalar_bound, scalar_error
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench

SIGMA, MEAN = 1.0, 0.7


def heavy(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Numbers with E x² = 1 and heavy tails (Student's t, three degrees), shifted to a mean of 0.7."""
    spread = np.sqrt((SIGMA**2 - MEAN**2) / 3.0)
    return np.asarray(MEAN + spread * rng.standard_t(3, shape))


def error(rng: np.random.Generator, n: int, epsilon: float, bound: float, repeats: int) -> float:
    """Mean squared error of clip, mean and noise."""
    total, done = 0.0, 0
    while done < repeats:
        some = min(repeats - done, max(1, 2_000_000 // n))
        values = np.clip(heavy(rng, (some, n)), -bound, bound).mean(axis=1)
        total += float(((values + rng.laplace(0, 2 * bound / (n * epsilon), some) - MEAN) ** 2).sum())
        done += some
    return total / repeats


def run(bench: Workbench) -> Outcome:
    """Over τ, then over n."""
    rng, repeats = bench.rng(1), bench.pick(20, 600, 3000, 10_000)
    n, epsilon = 400, 0.5
    bounds = np.geomspace(0.05, 60, bench.pick(5, 14, 20, 30))
    by_bound = [error(rng, n, epsilon, float(b), repeats) for b in bounds]
    rule = scalar_bound(SIGMA, n, epsilon)
    sizes = [int(k) for k in np.geomspace(50, 5000, bench.pick(3, 8, 10, 12))]
    by_size = {e: [error(rng, k, e, scalar_bound(SIGMA, k, e), repeats) for k in sizes] for e in (0.2, 1.0)}
    bound_of = {e: [SIGMA**2 / k + 4 * SIGMA**2 / (k * e) for k in sizes] for e in by_size}
    ours_of = {e: [scalar_error(SIGMA, k, e) for k in sizes] for e in by_size}
    kept = all(m <= b for e in by_size for m, b in zip(by_size[e], bound_of[e], strict=True))
    best = float(bounds[int(np.argmin(by_bound))])
    at_rule = error(rng, n, epsilon, rule, repeats)
    lines = []
    for k, e in enumerate(by_size):
        lines += [
            Series(f"measured, ε = {e:g}", sizes, by_size[e], method="laplace", variant=k, points=True),
            Series(f"σ²/n + 4σ²/nε, ε = {e:g}", sizes, bound_of[e], method="theory", variant=k),
            Series(f"with the proved constant 9/4, ε = {e:g}", sizes, ours_of[e], method="exact", variant=k),
        ]
    return Outcome(
        [
            Panel(
                f"error against the clip, n = {n}, ε = {epsilon:g}",
                "clip τ / σ",
                "mean squared error",
                [
                    Series("measured", bounds, by_bound, method="laplace"),
                    Series("τ = σ√(nε)/2", [rule], [at_rule], method="theory", variant=3, points=True),
                ],
                xlog=True,
                ylog=True,
            ),
            Panel("error at the theorem's clip", "records n", "mean squared error", lines, xlog=True, ylog=True),
        ],
        findings=[
            Finding(
                "with τ = σ√(nε)/2 the error is at most σ²/n + 4σ²/(nε)",
                "003:221",
                bench.judged(kept),
                "measured errors lie below it for every n and ε tried",
            ),
            Finding(
                "τ = σ√(nε)/2 is the choice",
                "003:219",
                bench.judged(at_rule < 2 * min(by_bound)),
                f"on this data τ = {best:.1f} has an error of {min(by_bound):.4f}, the rule's τ = {rule:.1f} one of "
                f"{at_rule:.4f}: "
                "it is the best for the worst data, not for this",
            ),
        ],
    )


EXPERIMENT = Experiment(
    id="mean-clipped",
    source="003",
    figure="Unbounded mean estimation",
    lines="129–221",
    title="The private mean of unbounded numbers",
    shows="a small clip biases, a large one needs noise; τ = σ√(nε)/2 keeps the error at O(σ²/nε)",
    setting="E x² ≤ σ², Laplace noise",
    reduced="fewer repetitions",
    nouns=("scalar_mean", "Mean", "Laplace"),
    seconds=4,
    run=run,
)

"""The fundamental law of information recovery: reconstruct secret bits from many answers, exact or noisy.

source     004, definition 4.1, lines 168–174
setting    100 secret bits, random subset sums with noise, rounded least squares (Dinur & Nissim 2003)
reduced    fewer repetitions
"""

from __future__ import annotations

import numpy as np

from sordino.accounting import PLD
from sordino.app.report.panels import Panel, Series
from sordino.events import Laplace, Repeat
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench

BITS = 100


def recovered(rng: np.random.Generator, queries: int, scale: float) -> float:
    """Share of bits found again."""
    secret = rng.integers(0, 2, BITS)
    ask = rng.integers(0, 2, (queries, BITS))
    answers = ask @ secret + (rng.laplace(0, scale, queries) if scale else 0.0)
    guess = np.linalg.lstsq(ask - 0.5, answers - ask.sum(axis=1) / 2, rcond=None)[0]
    return float(((guess > 0) == secret).mean())


def run(bench: Workbench) -> Outcome:
    """Share of bits found against queries, for fixed noise and for a fixed budget."""
    rng, repeats = bench.rng(4), bench.pick(1, 6, 20, 50)
    counts = bench.pick(
        (20, 100),
        (10, 25, 50, 100, 200, 400, 800, 1600),
        (10, 25, 50, 100, 200, 400, 800, 1600),
        (10, 25, 50, 100, 200, 400, 800, 1600, 3200, 6400),
    )
    lines, found = [], {}
    for k, scale in enumerate((0.0, 2.0, 10.0)):
        many = [[100 * recovered(rng, q, scale) for _ in range(repeats)] for q in counts]
        found[scale] = [float(np.mean(one)) for one in many]
        label = "exact answers" if not scale else f"Laplace noise of scale {scale:g} on each"
        lines.append(
            Series(
                label,
                counts,
                found[scale],
                low=[min(o) for o in many],
                high=[max(o) for o in many],
                method="sgd" if not scale else "laplace",
                variant=k,
                hollow="" if scale else "no noise",
            )
        )
    many = [[100 * recovered(rng, q, q / 1.0) for _ in range(repeats)] for q in counts]
    budget = [float(np.mean(one)) for one in many]
    lines.append(
        Series(
            "noise for ε = 1 over all queries",
            counts,
            budget,
            low=[min(o) for o in many],
            high=[max(o) for o in many],
            method="exact",
            variant=3,
        )
    )
    epsilons = [PLD().epsilon(Repeat(Laplace(10.0), q), 1e-5) for q in counts]
    return Outcome(
        [
            Panel(
                "100 secret bits, random subset sums", "queries", "bits recovered, %", lines, xlog=True, ylim=(40, 101)
            ),
            Panel(
                "what noise of scale 10 costs",
                "queries",
                "ε at δ = 1e-5",
                [
                    Series("exact (PLD)", counts, epsilons, method="pld"),
                    Series("sum, basic composition", counts, [q / 10 for q in counts], method="basic", variant=1),
                ],
                xlog=True,
                ylog=True,
            ),
        ],
        findings=[
            Finding(
                "if we query a dataset enough times, we can discover information about specific data points",
                "004:174",
                bench.judged(found[2.0][-1] > 90),
                f"{found[2.0][-1]:.0f} % of the bits after {counts[-1]} answers with noise of scale 2, "
                f"{found[10.0][-1]:.0f} % at scale 10; "
                f"{budget[-1]:.0f} % where the noise grows to keep ε = 1",
            ),
            Finding(
                "the privacy loss increases with the number of queries",
                "004:174",
                epsilons[-1] > epsilons[0],
                f"from ε = {epsilons[0]:.2f} to {epsilons[-1]:.1f}",
            ),
        ],
        notes=["The dip at 100 queries is that of least squares where there are as many answers as bits."],
    )


EXPERIMENT = Experiment(
    id="fundamental-law",
    source="004",
    figure="Definition 4.1",
    lines="168–174",
    title="The fundamental law of information recovery",
    shows="enough answers with fixed noise give the data away; noise that keeps to a budget does not",
    setting="100 bits, subset sums",
    reduced="fewer repetitions",
    nouns=("Laplace", "PLD", "Repeat"),
    seconds=4,
    run=run,
)

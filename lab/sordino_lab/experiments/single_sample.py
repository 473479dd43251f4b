"""SGD on single records with Laplace noise: ε of k rounds by the lecture's order and certified, and what it learns.

source     003, Private stochastic gradient descent, one step, lines 679–763
setting    one record at a time, q = 1/n, Laplace noise; k rounds
reduced    fewer rounds
"""

from __future__ import annotations

import math

import numpy as np

from sordino.accounting import PLD, amplified
from sordino.app.report.panels import Panel, Series
from sordino.events import Laplace, Poisson, Repeat
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench

N, EPSILON, DELTA = 1000, 1.0, 1e-5


def run(bench: Workbench) -> Outcome:
    """Accounting over k, then the error of a mean learnt that way."""
    rounds = [int(k) for k in np.unique(np.geomspace(10, 100_000, bench.pick(3, 9, 13, 17)).astype(int))]
    certified = [PLD().epsilon(Repeat(Poisson(1 / N, Laplace(1 / EPSILON)), k), DELTA) for k in rounds]
    order = [EPSILON / N * math.sqrt(k * math.log(1 / DELTA)) for k in rounds]
    one = amplified(EPSILON, 0.0, 1 / N)[0]
    basic = [one * k for k in rounds]
    rng, repeats = bench.rng(8), bench.pick(2, 40, 200, 500)
    steps = bench.pick(50, 2_000, 10_000, 50_000)
    errors = {}
    for name, batch in (("one record a step", 1), ("lots of 50", 50), ("lots of 50, as many records", -50)):
        lots = abs(batch)
        theta, taken = np.zeros(repeats), steps if batch > 0 else steps // lots
        course = []
        for t in range(taken):
            records = rng.normal(0.7, 1.0, (repeats, lots))
            gradient = np.clip(theta[:, None] - records, -1, 1).sum(1)
            theta = theta - 1 / (t + 10) * (gradient + rng.laplace(0, 2 / EPSILON, repeats)) / lots * 3
            course.append(float(((theta - 0.7) ** 2).mean()))
        errors[name] = course
    lines = []
    for k, (name, course) in enumerate(errors.items()):
        at = np.unique(np.geomspace(1, len(course), 40).astype(int))
        lines.append(
            Series(name, at, [course[t - 1] for t in at], method=("laplace", "gaussian", "moments")[k], variant=k)
        )
    ratio = max(c / o for c, o in zip(certified, order, strict=True))
    return Outcome(
        [
            Panel(
                f"k rounds of one record among {N}, Lap(2τ/1)",
                "rounds k",
                "ε at δ = 1e-5",
                [
                    Series("certified (PLD)", rounds, certified, method="pld"),
                    Series(
                        "(ε/n)√(k ln 1/δ), the order of line 759: no bound", rounds, order, method="printed", variant=2
                    ),
                    Series("amplified, added up", rounds, basic, method="basic", variant=1),
                ],
                xlog=True,
                ylog=True,
            ),
            Panel("learning a mean of 0.7", "steps", "mean squared error", lines, xlog=True, ylog=True),
        ],
        findings=[
            Finding(
                "k rounds satisfy (O(ε/n √(k ln 1/δ)), δ)-DP",
                "003:759",
                all(c <= 4 * o or c <= b for c, o, b in zip(certified, order, basic, strict=True)),
                f"the certified ε is at most {ratio:.1f} times the formula, which is an order and not a bound",
            ),
            Finding(
                "no improvement due to n: batch size is one more hyperparameter",
                "003:765",
                bench.judged(errors["lots of 50"][-1] < errors["one record a step"][-1]),
                f"error {errors['one record a step'][-1]:.3f} one record at a time, {errors['lots of 50'][-1]:.4f} "
                "with lots of 50",
            ),
        ],
    )


EXPERIMENT = Experiment(
    id="single-sample",
    source="003",
    figure="Private stochastic gradient descent, one step",
    lines="679–763",
    title="SGD on single records with Laplace noise",
    shows="one record a step is private by sampling, at noise as large as the gradient itself",
    setting="one record at a time, q = 1/n, Laplace noise; k rounds",
    reduced="fewer rounds",
    nouns=("Laplace", "Poisson", "PLD"),
    terms="",
    seconds=5,
    run=run,
)

"""The best accuracy within (ε, δ), one curve for each δ, from the runs of abadi-mnist.

source     002, Figure 4, lines 162–167
setting    accuracy against ε, one curve for each δ
reduced    see lab/sordino_lab/abadi.py
"""

from __future__ import annotations

from sordino.accounting import PLD
from sordino.app.report.panels import Panel, Series
from sordino.events import Gaussian, Poisson, Repeat, Together
from sordino_lab.abadi import MIDDLE, NOISES, REDUCED
from sordino_lab.experiment import Compared, Experiment, Finding, Outcome
from sordino_lab.experiments.abadi_mnist import papers as plans
from sordino_lab.workbench import Workbench

DELTAS = (1e-5, 1e-4, 1e-3, 1e-2)


def run(bench: Workbench) -> Outcome:
    """ε of every evaluation at every δ; then the best accuracy at or below each ε."""
    trained = bench.trained(plans(bench))
    found: dict[float, list[tuple[float, float]]] = {delta: [] for delta in DELTAS}
    for one, (noise, pca) in zip(trained, NOISES, strict=True):
        settings = one.plan.settings(bench.size, 0).recipe
        for k, row in enumerate(one.runs[0].rows):
            values = [float(run.rows[k]["test_accuracy"]) for run in one.runs if k < len(run.rows)]
            before = () if settings.pca is None else (Gaussian(pca),)
            event = Together(*before, Repeat(Poisson(settings.rate, Gaussian(noise)), int(row["step"])))
            for delta in DELTAS:
                found[delta].append((PLD().epsilon(event, delta), 100 * sum(values) / len(values)))
    lines, best = [], {}
    for k, (delta, points) in enumerate(found.items()):
        front: list[tuple[float, float]] = []
        for epsilon, accuracy in sorted(points):
            if not front or accuracy > front[-1][1]:
                front.append((epsilon, accuracy))
        lines.append(Series(f"δ = {delta:g}", [e for e, _ in front], [a for _, a in front], method="pld", variant=k))
        best[delta] = front
    at = next((a for e, a in reversed(best[1e-2]) if e <= 0.25), 0.0)
    ends = [front[-1][1] - front[0][1] for front in best.values()]
    middle = sorted(e for e, _ in found[1e-5])[len(found[1e-5]) // 2]
    by_delta = [next((a for e, a in reversed(front) if e <= middle), 0.0) for front in best.values()]
    return Outcome(
        [Panel("best accuracy within (ε, δ)", "ε", "test accuracy, %", lines, xlog=True)],
        [Compared("accuracy at ε = 0.25, δ = 0.01", at, 90.0, "002:164", unit="%")],
        [
            Finding(
                "for a fixed δ varying ε has a large impact, for a fixed ε there is less difference with δ",
                "002:164",
                bench.judged(max(ends) > max(by_delta) - min(by_delta)),
                f"accuracy moves by {max(ends):.1f} points over ε, by {max(by_delta) - min(by_delta):.1f} over δ at ε "
                f"= {middle:.2f}",
            )
        ],
        commands=bench.commands(plans(bench)),
    )


EXPERIMENT = Experiment(
    id="abadi-mnist-frontier",
    source="002",
    figure="Figure 4",
    lines="162–167",
    title="Accuracy against ε for several δ",
    shows="ε matters more than δ",
    setting="accuracy against ε, one curve for each δ",
    reduced=REDUCED,
    middle=MIDDLE,
    nouns=("PLD", "PCA"),
    terms="",
    seconds=10,
    run=run,
    plans=plans,
)

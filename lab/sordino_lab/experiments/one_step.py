"""One step of DPSGD in the plane with a challenge element, and one of ProjectedDPSGD.

source     001, F2.2, F5.1, lines 279–284, 880–883
setting    four gradients in the plane, one of them the challenge element; C = 1, ρ = 2
reduced    nothing
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sordino.app.report.panels import Panel, Series
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench

Array = NDArray[np.float64]
OTHERS = np.array([[1.6, 0.5], [0.5, 1.3], [0.4, 0.6]])
CHALLENGES = {
    "with the green element": (np.array([-0.3, 1.7]), "l2-inside"),
    "with the red element": (np.array([1.5, -1.2]), "sorted"),
}


def clip(g: Array) -> Array:
    """Into the circle of radius 1."""
    return np.asarray(g * np.minimum(1, 1 / np.linalg.norm(g, axis=-1, keepdims=True)))


def gradients(theta: Array, centres: Array) -> Array:
    """Of ½‖θ − c‖², downhill."""
    return np.asarray(centres - theta)


def ahead(centres: Array) -> tuple[Array, Array, Array]:
    """Virtual point, and plain and projected update, ρ = 2."""
    first = clip(gradients(np.zeros(2), centres)).mean(0)
    virtual = first / 2
    second = clip(gradients(virtual, centres)).mean(0)
    return virtual, first, first / 2 + second / 2


def _arrow(label: str, to: Array, method: str) -> Series:
    """Returns an arrow from the origin."""
    return Series(label, [0.0, to[0]], [0.0, to[1]], method=method, arrows=True)


def run(bench: Workbench) -> Outcome:
    """The clip circle, then the look ahead."""
    angle = np.linspace(0, 2 * np.pi, 80)
    left = [
        Series("clip bound C", np.cos(angle), np.sin(angle), method="theory", variant=1),
        *(_arrow("gradients of the others" if k == 0 else "", g, "none") for k, g in enumerate(OTHERS)),
        Series("clipped", clip(OTHERS)[:, 0], clip(OTHERS)[:, 1], method="none", variant=1, points=True),
    ]
    right = [Series("clip bound C", np.cos(angle), np.sin(angle), method="theory", variant=1)]
    means, moved = [], []
    for k, (name, (extra, method)) in enumerate(CHALLENGES.items()):
        every = np.vstack([OTHERS, extra])
        mean = clip(every).mean(0)
        means.append(mean)
        left.append(_arrow("", extra, method))
        left.append(Series(f"{name}, clipped", clip(extra)[:1], clip(extra)[1:], method=method, variant=1, points=True))
        left.append(_arrow(f"{name}: mean of all, clipped", mean, method))
        virtual, plain, projected = ahead(every)
        moved.append(projected - plain)
        path = np.vstack([np.zeros(2), virtual, projected])
        right.append(
            Series(
                f"{name}: virtual step, update",
                path[:, 0],
                path[:, 1],
                method=method,
                variant=k,
                hollow="noiseless way",
                arrows=True,
            )
        )
    gap = float(np.linalg.norm(means[0] - means[1]))
    return Outcome(
        [
            Panel(
                "DPSGD: four gradients, one of them unknown", "first parameter", "second parameter", left, equal=True
            ),
            Panel("ProjectedDPSGD: a look ahead, ρ = 2", "first parameter", "second parameter", right, equal=True),
        ],
        findings=[
            Finding(
                "the influence of each single record is limited by C",
                "001:279",
                gap <= 2 / 4 + 1e-12,
                f"the two means lie {gap:.3f} apart, at most 2C/4 = 0.5",
            ),
        ],
        notes=[
            "The virtual point depends on the challenge element, so the second gradients of all others do too: their "
            "difference "
            f"is {float(np.linalg.norm(moved[0] - moved[1])):.3f} here and nothing bounds it by C/4."
        ],
    )


EXPERIMENT = Experiment(
    id="one-step",
    source="001",
    figure="F2.2, F5.1",
    lines="279–284, 880–883",
    title="One step, drawn",
    shows="clipping limits how far the challenge element moves the mean; looking ahead moves every other gradient too",
    setting="four gradients in the plane, one of them the challenge element; C = 1, ρ = 2",
    reduced="nothing",
    nouns=("Flat", "Projected"),
    terms="Challenge-Element, Clipping-Bound, Zwischenschritt",
    seconds=0.4,
    run=run,
)

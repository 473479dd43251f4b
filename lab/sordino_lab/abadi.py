"""Plans of source 002: MNIST behind a private PCA, one hidden layer, lots of 600, clip 4, a rate that falls and then stays.

full      100, 300 and 700 epochs, within ε = 0.5, 2 and 8; PCA, normalisation and training in one claim by PLD
middle    60 epochs
quick     6,000 records, 10 epochs, a hidden layer of 256

`within` is the same network in far fewer epochs and at the whole of each ε. Chosen on the last 10,000 training images, by
training on the others (`bench/stand_in.py`): larger lots, a smaller clip with a larger rate that falls to 0, and more of ε
for the PCA where there is more of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sordino_lab.curve_plan import CurvePlan
from sordino_lab.workbench import Workbench

NOISES = ((8.0, 16.0), (4.0, 7.0), (2.0, 4.0))
"""(σ, σ of the PCA)."""
REDUCED = "6,000 records, 10 epochs, 256 hidden units, 2 seeds"
MIDDLE = "60 epochs, one seed"


def plan(
    bench: Workbench,
    noise: float,
    pca: float | None,
    *,
    label: str,
    method: str = "dpsgd",
    variant: int = 0,
    epochs: float | None = None,
    batch: float = 600,
    **given: Any,
) -> CurvePlan:
    """One run of the paper's network."""
    n = bench.pick(60_000, 6_000, 60_000, 60_000)
    own: dict[str, Any] = {"noise_multiplier": noise, "pca": pca, "schedule_steps": round(10 * n / batch)}
    if bench.size.value == "quick":
        own["widths"] = (256,)
    return CurvePlan(
        label=label,
        method=method,
        recipe="abadi-mnist",
        batch=batch,
        records=bench.pick(None, 6_000, None, None),
        epochs=epochs if epochs is not None else bench.pick(1, 10, 60, {8.0: 100, 4.0: 300, 2.0: 700}.get(noise, 100)),
        seeds=bench.pick(1, 2, 1, 1),
        evaluations=bench.pick(1, 5, 20, 40),
        variant=variant,
        given={**own, **given},
    )


@dataclass(frozen=True)
class Within:
    """A level of privacy, and how it is spent: the noise of the steps follows from the rest."""

    epsilon: float
    published: float
    """Accuracy, %."""
    pca: float
    epochs: int


LEVELS = (
    Within(0.5, 90.0, 16.0, 20),
    Within(2.0, 95.0, 5.0, 40),
    Within(8.0, 97.0, 2.0, 120),
)
LOT, CLIP, LEARNING_RATE = 1_200, 1.0, 4.0
"""Of `within`."""
DIFFERS = (
    f"lots of {LOT:,} for 600, a clip of {CLIP:g} for 4, a learning rate of {LEARNING_RATE:g} that falls to 0 for 0.1 that "
    f"falls to 0.052, {', '.join(str(one.epochs) for one in LEVELS)} epochs, σ of the PCA "
    f"{', '.join(f'{one.pca:g}' for one in LEVELS)} for 16, 7, 4, and the noise of the steps that spends all of ε"
)


def within(bench: Workbench, one: Within, variant: int) -> CurvePlan:
    """The paper's network, all of ε spent."""
    n = bench.pick(60_000, 6_000, 60_000, 60_000)
    epochs = bench.pick(1, 10, one.epochs, one.epochs)
    return CurvePlan(
        label=f"all of ε = {one.epsilon:g}",
        method="pca",
        recipe="abadi-mnist",
        batch=LOT * n / 60_000,
        records=bench.pick(None, n, None, None),
        epochs=epochs,
        seeds=bench.pick(1, 2, 1, 3),
        evaluations=bench.pick(1, 5, 20, 20),
        variant=variant,
        given={
            "epsilon": one.epsilon,
            "pca": one.pca,
            "bound": CLIP,
            "learning_rate": LEARNING_RATE,
            "final_rate": 0.0,
            "schedule_steps": round(epochs * 60_000 / LOT),
            "show_private": True,
            **({"widths": (256,)} if bench.size.value == "quick" else {}),
        },
    )

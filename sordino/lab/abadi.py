"""Plans of source 002: MNIST behind a private PCA, one hidden layer, lots of 600, clip 4, a rate that falls and then stays.

full      100, 300 and 700 epochs, within ε = 0.5, 2 and 8; PCA, normalisation and training in one claim by PLD
middle    60 epochs
quick     6,000 records, 10 epochs, a hidden layer of 256
"""

from __future__ import annotations

from typing import Any

from sordino.lab.plan import Plan
from sordino.lab.workbench import Workbench

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
) -> Plan:
    """One run of the paper's network."""
    n = bench.pick(60_000, 6_000, 60_000, 60_000)
    own: dict[str, Any] = {"noise_multiplier": noise, "pca": pca, "schedule_steps": round(10 * n / batch)}
    if bench.size.value == "quick":
        own["widths"] = (256,)
    return Plan(
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

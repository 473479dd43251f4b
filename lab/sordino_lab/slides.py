"""Plans of source 000: DP-SGD with decay outside the clip, and with L2 inside it, on MNIST and CIFAR-10.

full      MNIST 15 epochs in lots of 1200, lr 0.5; CIFAR-10 90 epochs in lots of 2000
middle    MNIST 15,000 records in lots of 300; CIFAR-10 10,000 records, 10 epochs in lots of 400, lr 0.02
quick     64 hidden units for the convolutions; MNIST 3,000 records, 5 epochs; CIFAR-10 2,000 records, 10 epochs,
          lots of 200, lr 0.01

The slides name neither lot nor learning rate nor epochs. At the defaults of Opacus' MNIST example, lots of 64 and lr 0.1,
the noise of R = 3 and σ = 1.3 outweighs the gradients: 80.8 % after the first epoch and 59.0 % after the tenth.
"""

from __future__ import annotations

from typing import Any

from sordino_lab.curve_plan import CurvePlan
from sordino_lab.workbench import Workbench

OUTSIDE, INSIDE, IGNORED = "decay outside the clip", "L2 inside the clip", "penalty that the hooks ignore"
MNIST = "3,000 records, 5 epochs, 64 hidden units for the convolutions, 2 seeds"
MNIST_MIDDLE = "15,000 records in lots of 300, 2 seeds"
CIFAR = "2,000 records, 10 epochs in lots of 200, lr 0.01, 64 hidden units for the convolutions, 2 seeds"
CIFAR_MIDDLE = "10,000 records, 10 epochs in lots of 400, lr 0.02, 2 seeds"
_METHODS = {OUTSIDE: "decoupled", INSIDE: "l2-inside", IGNORED: "ignored"}


def words(way: str, decay: float) -> dict[str, Any]:
    """Where λ goes. A penalty that never reaches the per-sample gradients trains as none."""
    outside, inside = (decay if way == OUTSIDE else 0.0), (decay if way == INSIDE else 0.0)
    return {"weight_decay": outside, "penalty": inside}


def mnist(
    bench: Workbench,
    way: str,
    decay: float = 1e-4,
    *,
    label: str = "",
    variant: int = 0,
    evaluations: int = 1,
    **given: Any,
) -> CurvePlan:
    """One run of the Opacus MNIST example."""
    return CurvePlan(
        label=label or way,
        method=_METHODS[way],
        recipe="wd-mnist",
        batch=bench.pick(64, 64, 300, 1200),
        records=bench.pick(None, 3_000, 15_000, None),
        epochs=bench.pick(1, 5, 15, 15),
        seeds=bench.pick(1, 2, 2, 3),
        variant=variant,
        evaluations=max(evaluations, bench.pick(1, 1, 3, 10)),
        given={**_small(bench), "learning_rate": bench.pick(0.1, 0.1, 0.5, 0.5), **words(way, decay), **given},
    )


def cifar(
    bench: Workbench,
    way: str,
    decay: float = 1e-4,
    *,
    label: str = "",
    variant: int = 0,
    evaluations: int = 3,
    **given: Any,
) -> CurvePlan:
    """One run of the Opacus CIFAR-10 example."""
    return CurvePlan(
        label=label or way,
        method=_METHODS[way],
        recipe="wd-cifar",
        batch=bench.pick(400, 200, 400, 2000),
        records=bench.pick(None, 2_000, 10_000, None),
        epochs=bench.pick(1, 10, 10, 90),
        seeds=bench.pick(1, 2, 2, 3),
        variant=variant,
        evaluations=max(evaluations, bench.pick(1, 1, 5, 30)),
        given={**_small(bench), **_slower(bench), **words(way, decay), **given},
    )


def _slower(bench: Workbench) -> dict[str, Any]:
    """A tenth of the lot has ten times the noise in its mean: at the same rate nothing is learnt."""
    rate = bench.pick(None, 0.01, 0.02, None)
    return {} if rate is None else {"learning_rate": rate}


def _small(bench: Workbench) -> dict[str, Any]:
    return {"model": "mlp", "widths": (64,)} if bench.size.value == "quick" else {}

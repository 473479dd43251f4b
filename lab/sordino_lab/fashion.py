"""Plans of source 004: logistic regression on Fashion-MNIST, C = 0.5.

full, middle   60,000 records, 20 epochs, 3 seeds
quick          8,000 records, 8 epochs, 2 seeds
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sordino_lab.curve_plan import CurvePlan
from sordino_lab.workbench import Workbench

RECORDS = 60_000


def fashion(
    bench: Workbench, values: Sequence[float], label: str, setting: Callable[[float], dict[str, Any]]
) -> list[CurvePlan]:
    """One plan for each value; `setting` says what of a plan it decides."""
    n, few = bench.pick(RECORDS, 8_000, RECORDS, RECORDS), values if bench.tells else values[:1]
    return [
        CurvePlan(
            label=f"{label} = {value:g}",
            method="dpsgd",
            recipe="fashion-logistic",
            records=n if n < RECORDS else None,
            epochs=bench.pick(1, 8, 20, 20),
            seeds=bench.pick(1, 2, 3, 3),
            evaluations=bench.pick(1, 6, 10, 20),
            variant=k,
            **setting(value),
        )
        for k, value in enumerate(few)
    ]

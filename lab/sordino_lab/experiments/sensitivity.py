"""Global and local sensitivity of example queries, on one small table of ages.

source     004, definitions 2.1 and 2.2, lines 86–114
setting    count, sum, mean, maximum and median of ages in [0, 100]; local sensitivity by trying every neighbour
reduced    nothing
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sordino.app.report.panels import Panel, Series
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench

TOP = 100
AGES = (23, 25, 31, 34, 38, 41, 44, 52, 58, 63, 71)
QUERIES: dict[str, Callable[[Sequence[float]], float]] = {
    "count": lambda x: float(len(x)),
    "sum": lambda x: float(np.sum(x)),
    "mean": lambda x: float(np.mean(x)),
    "maximum": lambda x: float(np.max(x)),
    "median": lambda x: float(np.median(x)),
}


def local(query: Callable[[Sequence[float]], float], data: Sequence[float]) -> float:
    """The most that the answer moves when one record is added or removed, by trying all of them."""
    without = [[*data[:k], *data[k + 1 :]] for k in range(len(data))] if len(data) > 1 else []
    neighbours = [*without, *([*data, age] for age in range(TOP + 1))]
    return max(abs(query(data) - query(other)) for other in neighbours)


def global_(query: Callable[[Sequence[float]], float], n: int) -> float:
    """The most over datasets that are worst for some query: all at one end, half at either end, and one at the other."""
    ends = [[0] * k + [TOP] * (n - k) for k in range(n + 1)]
    return max(local(query, data) for data in ends)


def run(bench: Workbench) -> Outcome:
    """Both, for every query; then against n for the mean."""
    names = list(QUERIES)
    n = len(AGES)
    here = [local(query, AGES) for query in QUERIES.values()]
    worst = [global_(query, n) for query in QUERIES.values()]
    sizes = (2, 3, 5, 9, 15, 25)
    return Outcome(
        [
            Panel(
                f"queries on {n} ages in [0, 100]",
                "query",
                "sensitivity, in the answer's unit",
                [
                    Series(
                        "global: over all datasets of this size",
                        range(len(names)),
                        worst,
                        method="classical",
                        points=True,
                    ),
                    Series("local: of these ages", range(len(names)), here, method="exact", variant=1, points=True),
                ],
                xticks=tuple(names),
                ylog=True,
            ),
            Panel(
                "against the number of records",
                "records n",
                "global sensitivity",
                [
                    Series(name, sizes, [global_(QUERIES[name], k) for k in sizes], method=m, variant=v)
                    for name, m, v in (("mean", "exact", 0), ("median", "classical", 1), ("sum", "moments", 2))
                ],
                xlog=True,
                ylog=True,
            ),
        ],
        findings=[
            Finding(
                "global sensitivity is independent of the particular dataset",
                "004:94",
                all(w >= h for w, h in zip(worst, here, strict=True)),
                "it is at least the local one for every query",
            ),
            Finding(
                "local sensitivity is that of a fixed dataset",
                "004:106",
                here[4] < worst[4] / 5,
                f"the median of these ages moves by at most {here[4]:g} years, that of some dataset by {worst[4]:g}",
            ),
        ],
        notes=[
            "Noise in proportion to local sensitivity is not private: the amount of noise tells about the data. Noise "
            "must "
            "be scaled to the global one, or to a smooth bound on the local one."
        ],
        numbers={"queries": names, "local": here, "global": worst},
    )


EXPERIMENT = Experiment(
    id="sensitivity",
    source="004",
    figure="Definitions 2.1, 2.2",
    lines="86–114",
    title="Global and local sensitivity",
    shows="the median moves little on real ages and by half the range on the worst; a sum moves by the range on all",
    setting="example queries",
    reduced="nothing",
    nouns=("ClippedSum", "Sensitivity"),
    seconds=0.5,
    run=run,
)

"""The size of Poisson lots, the physical batches they are processed in, and what dividing by the real size tells.

source     003, Handwritten notes ① and ②, lines 782–788
setting    Poisson lots have no fixed size; dividing by the real one tells it
reduced    fewer draws
"""

from __future__ import annotations

import numpy as np

from sordino.app.report.panels import Panel, Series
from sordino.rng.streams import Rng
from sordino.sampling.poisson import Poisson
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench

N, PHYSICAL = 60_000, 64


def run(bench: Workbench) -> Outcome:
    """Sizes of drawn lots, parts in memory, and the information in the real size."""
    draws = bench.pick(5, 200, 1000, 1000)
    expected = (64, 250, 1000, 4000)
    sizes = {}
    for lot in expected:
        found = []
        for k, draw in enumerate(Poisson(lot / N).draws(N, Rng.from_seed(lot), 0)):
            if k >= draws:
                break
            found.append(len(draw.indices))
        sizes[lot] = np.asarray(found)
    parts = {lot: np.ceil(s / PHYSICAL) for lot, s in sizes.items()}
    n = np.geomspace(30, 3000, 30)
    dims = (7_850, 209_514, 11_181_642)
    # noise divided by n and by n + 1: KL of two Gaussians in d dimensions, d/2 (r − 1 − ln r), r = (n/(n+1))²
    r = (n / (n + 1)) ** 2
    lines = [
        Series(f"{d:,} parameters", n, d / 2 * (r - 1 - np.log(r)), method="gaussian", variant=k)
        for k, d in enumerate(dims)
    ]
    off = max(abs(float(s.std()) / np.sqrt(lot * (1 - lot / N)) - 1) for lot, s in sizes.items())
    return Outcome(
        [
            Panel(
                "size of Poisson lots",
                "expected lot qn",
                "real size / expected",
                [
                    Series(
                        "mean, least and most",
                        expected,
                        [float(sizes[lot].mean()) / lot for lot in expected],
                        low=[float(sizes[lot].min()) / lot for lot in expected],
                        high=[float(sizes[lot].max()) / lot for lot in expected],
                        method="dpsgd",
                        points=True,
                    )
                ],
                xlog=True,
            ),
            Panel(
                f"parts of {PHYSICAL} records in memory",
                "expected lot qn",
                "parts of a lot",
                [
                    Series(
                        "mean, least and most",
                        expected,
                        [float(p.mean()) for p in parts.values()],
                        low=[float(p.min()) for p in parts.values()],
                        high=[float(p.max()) for p in parts.values()],
                        method="captured",
                        points=True,
                    )
                ],
                xlog=True,
                ylog=True,
            ),
            Panel(
                "noise divided by the real size: what it tells",
                "real size of the lot",
                "information per step, nats",
                lines,
                xlog=True,
                ylog=True,
            ),
        ],
        findings=[
            Finding(
                "I don't know my batch size: very large → memory error",
                "003:782",
                bench.judged(off < 0.25),
                f"sizes vary by √(qn(1−q)) (within {100 * off:.0f} %); a lot is processed in parts of a fixed size, "
                "so memory does not",
            ),
            Finding(
                "divide by |B|",
                "003:788",
                False,
                "the noise then tells |B| itself: "
                f"{float(209_514 / 2 * ((250 / 251) ** 2 - 1 - 2 * np.log(250 / 251))):.2f} nats a step for MNIST_Net "
                "at 250 records; "
                "divided by the expected size it tells nothing",
            ),
        ],
    )


EXPERIMENT = Experiment(
    id="batch-size",
    source="003",
    figure="Handwritten notes ① and ②",
    lines="782–788",
    title='"I don\'t know my batch size!"',
    shows="Poisson lots vary as √(qn); they are processed in parts of a fixed size, and divided by their expected size",
    setting="Poisson lots have no fixed size; dividing by the real one tells it",
    reduced="fewer draws",
    nouns=("Poisson", "Chunked"),
    terms="",
    seconds=1,
    run=run,
)

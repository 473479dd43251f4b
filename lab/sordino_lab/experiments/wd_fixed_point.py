"""Where weight decay ends up on ½(θ − θ*)²: outside the clip at R/λ, inside it at the ridge minimum.

source     000, "An extreme example", lines 141–171; "cannot stick … unless it reaches a local minimum", line 214
setting    R = 1, λ = 0.5, θ* = 3.8, σ = 0, θ₀ = 0, small η
reduced    nothing
beyond     records at −3 and 5: the method inside the clip stays at 0 for ever, where the ridge minimum is 2/3
"""

from __future__ import annotations

import torch

from sordino.app.report.panels import Panel, Series
from sordino_lab.descent import descend, query, squared
from sordino_lab.experiment import Compared, Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench

BOUND, DECAY, TARGET = 1.0, 0.5, 3.8
NO_NOISE = "no noise"


def run(bench: Workbench) -> Outcome:
    """Two paths to θ*, and two where the records disagree."""
    steps, rate = bench.pick(40, 300, 300, 300), 0.1
    one, ask = torch.ones(1, 1), query(BOUND, 0.0)
    outside = descend([0.0], squared, one, torch.tensor([TARGET]), ask, rate, steps, decay=DECAY).points[:, 0]
    inside = descend([0.0], squared, one, torch.tensor([TARGET]), ask, rate, steps, penalty=DECAY).points[:, 0]
    two, ends = torch.ones(2, 1), torch.tensor([-3.0, 5.0])
    stuck = descend([0.0], squared, two, ends, ask, rate, steps, penalty=DECAY).points[:, 0]
    ridge = float(ends.mean()) / (1 + DECAY)
    at = range(steps + 1)
    panels = [
        Panel(
            "θ* = 3.8, R = 1, λ = 0.5",
            "steps",
            "θ",
            [
                Series("decay outside the clip", at, outside, method="decoupled", hollow=NO_NOISE),
                Series("L2 inside the clip", at, inside, method="l2-inside", variant=1, hollow=NO_NOISE),
                Series("ridge minimum θ*/(1+λ)", [0, steps], [TARGET / (1 + DECAY)] * 2, method="theory", variant=3),
                Series("R/λ", [0, steps], [BOUND / DECAY] * 2, method="theory", variant=2),
            ],
        ),
        Panel(
            "stuck: records at −3 and 5",
            "steps",
            "θ",
            [
                Series("L2 inside the clip", at, stuck, method="l2-inside", variant=1, hollow=NO_NOISE),
                Series("ridge minimum", [0, steps], [ridge] * 2, method="theory", variant=3),
            ],
        ),
    ]
    last, also = float(outside[-1]), float(inside[-1])
    return Outcome(
        panels,
        [
            Compared("θ, decay outside the clip", last, BOUND / DECAY, "000:163"),
            Compared("θ, L2 inside the clip", also, TARGET / (1 + DECAY), "000:159"),
        ],
        [
            Finding(
                "DP-SGD with decay converges to R/λ = 2 instead of θ* = 3.8",
                "000:171",
                bench.judged(abs(last - 2.0) < 1e-3),
                f"θ ends at {last:.4f}",
            ),
            Finding(
                "inside the clip θ cannot stick unless it reaches a local minimum",
                "000:214",
                bench.judged(abs(float(stuck[-1]) - ridge) < 1e-3),
                f"records at −3 and 5 leave it at {float(stuck[-1]):.4f} for ever; the ridge minimum is {ridge:.4f}",
            ),
        ],
        [
            "The clipped gradients of two records that disagree cancel wherever both are longer than R: the bias of "
            "clipping "
            "stays with L2 inside it, so the source's sentence holds for identical records only."
        ],
    )


EXPERIMENT = Experiment(
    id="wd-fixed-point",
    source="000",
    figure="An extreme example",
    lines="141–171, 214",
    title="Weight decay outside and inside the clip, on one parameter",
    shows="decay outside the clip ends at R/λ wherever the data is; L2 inside it ends at the ridge minimum",
    setting="½(θ−3.8)², R=1, λ=0.5, σ=0, θ₀=0",
    reduced="nothing",
    nouns=("L2", "Flat", "NoisySum"),
    seconds=1.5,
    run=run,
)

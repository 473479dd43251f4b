"""Around a hill to the minimum: SGD, ProjectedSGD, DP-SGD and ProjectedDPSGD on a constructed surface.

source     001, figures 5.2 and A.6, lines 927–942, 1358
setting    a tilted plane with a hill between start and minimum; the source gives neither formula nor rates: ours are chosen
reduced    nothing
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from sordino.app.report.panels import Field, Panel, Series
from sordino.clipping.flat import Flat
from sordino.queries.noisy_sum import NoisySum, Query
from sordino.queries.projected import Projected
from sordino.release.noise import Gaussian
from sordino_lab.descent import descend
from sordino_lab.experiment import Compared, Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench

START, MINIMUM, STEPS, RATE, NEAR = (-2.6, 0.12), (2.2, 0.0), 60, 1.0, 0.35


def height(u: Tensor, v: Tensor) -> Tensor:
    """A plane tilted towards u, a bowl around the minimum, and a hill at the origin."""
    bowl = torch.sqrt(1 + ((u - MINIMUM[0]) ** 2 + (v - MINIMUM[1]) ** 2))
    return bowl + 4.0 * torch.exp(-(u**2 + v**2) / 0.5)


def loss_fn(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The height at θ, moved a little for each record."""
    theta = model.get_parameter("theta")
    return height(theta[0] + x[:, 0], theta[1] + x[:, 1])


def run(bench: Workbench) -> Outcome:
    """Four paths, drawn on the surface and from above."""
    rng = torch.Generator().manual_seed(0)
    x, y = 0.05 * torch.randn(40, 2, generator=rng), torch.zeros(40)
    steps = bench.pick(4, STEPS, STEPS, STEPS)
    seeds = bench.pick(1, 4, 10, 20)
    inf = float("inf")
    ways: dict[str, tuple[Query, str, str]] = {
        "SGD": (NoisySum(Flat(inf), Gaussian(0.0)), "sgd", "no noise"),
        "ProjectedSGD": (Projected(Flat(inf), Gaussian(0.0), RATE), "none", "no noise"),
        "DP-SGD": (NoisySum(Flat(1.0), Gaussian(2.0)), "dpsgd", ""),
        "ProjectedDPSGD": (Projected(Flat(1.0), Gaussian(2.0), RATE), "projected", "noiseless way"),
    }
    u, v = np.linspace(-3, 3, 50), np.linspace(-2, 2, 40)
    grid = torch.stack(torch.meshgrid(torch.tensor(u), torch.tensor(v), indexing="xy"), -1).float()
    z = [row.tolist() for row in height(grid[..., 0], grid[..., 1])]
    solid, above = [], []
    counts: dict[str, list[int]] = {}
    nearest: dict[str, float] = {}
    strides: dict[str, float] = {}
    for number, (name, (ask, method, reason)) in enumerate(ways.items()):
        paths = [
            descend(START, loss_fn, x, y, ask, RATE, steps, seed=k).points
            for k in range(1 if reason == "no noise" else seeds)
        ]
        counts[name] = [_arrived(points) for points in paths]
        ways_taken = [points[: count + 1] for points, count in zip(paths, counts[name], strict=True)]
        nearest[name] = float(np.mean([float(points.norm(dim=1).min()) for points in ways_taken]))
        strides[name] = float(np.mean([float(points.diff(dim=0).norm(dim=1).mean()) for points in ways_taken]))
        points = paths[0][: counts[name][0] + 1]
        lift = (height(points[:, 0], points[:, 1]) + 0.03).tolist()
        said = f"{name}, {counts[name][0]} steps"
        solid.append(Series(said, points[:, 0], points[:, 1], z=lift, method=method, variant=number, hollow=reason))
        above.append(Series(said, points[:, 0], points[:, 1], method=method, variant=number, hollow=reason))
    mean = {name: float(np.mean(found)) for name, found in counts.items()}
    return Outcome(
        [
            Panel("around the hill", "θ₁", "θ₂", solid, field=Field(u, v, z, surface=True), zlabel="loss"),
            Panel("from above", "θ₁", "θ₂", above, field=Field(u, v, z)),
        ],
        [
            Compared(
                f"steps of {name}", mean[said], said_there, "001:931", spread=float(np.std(counts[said])), unit="steps"
            )
            for name, said, said_there in (("ProjectedDPSGD", "ProjectedDPSGD", 23), ("DP-SGD", "DP-SGD", 27))
        ],
        [
            Finding(
                "ProjectedDPSGD needs 23 steps, DPSGD 27",
                "001:931",
                bench.judged(mean["ProjectedDPSGD"] < mean["DP-SGD"]),
                f"{mean['ProjectedDPSGD']:.1f} against {mean['DP-SGD']:.1f} steps to within {NEAR} of the minimum on "
                f"our surface, {seeds} seeds",
            ),
            Finding(
                "ProjectedDPSGD stays closer to the foot of the hill",
                "001:931",
                bench.judged(nearest["ProjectedDPSGD"] < nearest["DP-SGD"]),
                f"it comes within {nearest['ProjectedDPSGD']:.2f} of the top, DP-SGD within {nearest['DP-SGD']:.2f}",
            ),
            Finding(
                "its steps are mostly shorter",
                "001:931",
                bench.judged(strides["ProjectedDPSGD"] < strides["DP-SGD"]),
                f"mean length {strides['ProjectedDPSGD']:.3f} against {strides['DP-SGD']:.3f}",
            ),
        ],
        ["The source does not give its surface; the counts depend on it, on the rate and on the noise."],
        numbers={"steps": counts},
    )


def _arrived(points: Tensor) -> int:
    distance = (points - torch.tensor(MINIMUM)).norm(dim=1)
    near = torch.nonzero(distance < NEAR).flatten()
    return int(near[0]) if len(near) else len(points) - 1


EXPERIMENT = Experiment(
    id="projected-landscape",
    source="001",
    figure="F5.2, FA.6",
    lines="927–942, 1358",
    title="Four methods around a hill",
    shows="a step that looks ahead keeps closer to the foot of a hill",
    setting="a constructed surface",
    reduced="nothing",
    differs="the source gives neither its surface nor its rates; both are ours",
    nouns=("Projected", "NoisySum"),
    terms="ProjectedDPSGD",
    seconds=4,
    run=run,
)

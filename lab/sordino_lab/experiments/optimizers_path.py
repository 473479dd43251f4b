"""Gradient descent, momentum, AdaGrad and Adam on one contour, with and without differential privacy.

source     003, "Momentum", "AdaGrad", "Adam", lines 592–672; "plug our private gradients into any optimizer", line 83
setting    a long flat valley; 60 records scattered around the minimum; clip 1, σ = 8 for the private paths
reduced    nothing
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from sordino.app.report.panels import Field, Panel, Series
from sordino.clipping.flat import Flat
from sordino.ledger.claims import Guarantee
from sordino.queries.noisy_sum import NoisySum
from sordino.release.noise import Gaussian
from sordino_lab.descent import descend, query
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench

START, STEPS, NOISE, DELTA = (-4.0, 1.6), 80, 8.0, 1e-5
OPTIMIZERS = {
    "gradient descent": ("sgd", lambda p, lr: torch.optim.SGD(p, lr), 0.35),
    "momentum": ("momentum", lambda p, lr: torch.optim.SGD(p, lr, momentum=0.85), 0.1),
    "AdaGrad": ("adagrad", lambda p, lr: torch.optim.Adagrad(p, lr), 0.5),
    "Adam": ("adam", lambda p, lr: torch.optim.Adam(p, lr), 0.25),
}


def valley(u: Tensor, v: Tensor) -> Tensor:
    """Flat along u, steep along v, flatter still far away."""
    return torch.log1p(0.12 * u**2 + 1.6 * v**2)


def loss_fn(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The valley around each record."""
    theta = model.get_parameter("theta")
    return valley(theta[0] - x[:, 0], theta[1] - x[:, 1])


def run(bench: Workbench) -> Outcome:
    """Four paths without privacy and four with it."""
    rng = torch.Generator().manual_seed(1)
    x, y = 0.3 * torch.randn(60, 2, generator=rng), torch.zeros(60)
    steps = bench.pick(3, STEPS, STEPS, STEPS)
    u, v = np.linspace(-5, 2, 60), np.linspace(-2.2, 2.2, 50)
    grid = torch.stack(torch.meshgrid(torch.tensor(u), torch.tensor(v), indexing="xy"), -1).float()
    z = valley(grid[..., None, 0] - x[:, 0], grid[..., None, 1] - x[:, 1]).mean(-1)
    field = Field(u, v, [row.tolist() for row in z])
    panels, ends, epsilon = [], {}, None
    plain = NoisySum(Flat(float("inf")), Gaussian(0.0))
    for title, ask, private in (("without privacy", plain, False), ("clip 1, σ = 8", query(1.0, NOISE), True)):
        lines = []
        for number, (name, (method, make, rate)) in enumerate(OPTIMIZERS.items()):
            path = descend(START, loss_fn, x, y, ask, rate, steps, optimizer=make, seed=0, delta=DELTA)
            if private and isinstance(path.claim, Guarantee):
                epsilon = path.claim.epsilon
            lines.append(
                Series(
                    name,
                    path.points[:, 0],
                    path.points[:, 1],
                    method=method,
                    variant=number,
                    hollow="" if private else "no noise",
                )
            )
            ends[name, private] = _steps_to(path.points)
        said = f"{title}: ε = {epsilon:.1f} for each path" if private and epsilon else title
        panels.append(Panel(said, "first parameter", "second parameter", lines, field=field))
    return Outcome(
        panels,
        findings=[
            Finding(
                "momentum converges faster than vanilla gradient descent",
                "003:613",
                bench.judged(ends["momentum", False] < ends["gradient descent", False]),
                f"within 0.5 of the minimum after {ends['momentum', False]} steps against "
                f"{ends['gradient descent', False]}",
            ),
            Finding(
                "AdaGrad is more consistent but slower than momentum",
                "003:637",
                bench.judged(ends["AdaGrad", False] > ends["momentum", False]),
                f"{ends['AdaGrad', False]} steps against {ends['momentum', False]}, on our valley at our rates, of "
                "which it depends",
            ),
            Finding(
                "we can plug our private gradients into any optimizer",
                "003:83",
                bench.judged(epsilon is not None),
                f"the same ε = {epsilon or 0:.2f} for all four: what an optimizer does with released gradients is "
                "post-processing",
            ),
        ],
        numbers={"steps": {f"{name}, {'private' if p else 'plain'}": count for (name, p), count in ends.items()}},
    )


def _steps_to(points: Tensor) -> int:
    """Steps until the path stays within 0.5 of the minimum; all of them if it never does."""
    near = points.norm(dim=1) < 0.5
    away = torch.nonzero(~near).flatten()
    return int(away[-1]) + 1 if len(away) else 0


EXPERIMENT = Experiment(
    id="optimizers-path",
    source="003",
    figure="Momentum, AdaGrad, Adam: contour maps",
    lines="592–672",
    title="Optimizers on one contour, with and without privacy",
    shows="any optimizer can follow private gradients, and the noise blurs what distinguishes them",
    setting="a long flat valley",
    reduced="nothing",
    nouns=("Private", "NoisySum", "Flat"),
    seconds=5,
    run=run,
)

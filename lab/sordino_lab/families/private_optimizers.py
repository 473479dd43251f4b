"""Optimizers on private gradients, and full-batch descent against DP-SGD: figures of source 003.

What an optimizer does with released gradients is post-processing, so every optimizer has the same ε.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from sordino import events
from sordino.accounting import PLD
from sordino.app.report.panels import Field, Panel, Series
from sordino.clipping.flat import Flat
from sordino.ledger.claims import Guarantee
from sordino.queries.noisy_sum import NoisySum
from sordino.release.noise import Gaussian
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.descent import descend, dp_sgd_query
from sordino_lab.experiment import Figure, Finding, Outcome
from sordino_lab.thesis_plans import plan_mnist
from sordino_lab.training_curves import draw_learning, final_mean
from sordino_lab.workbench import Workbench

PATH_START, PATH_STEPS, PATH_NOISE, PATH_DELTA = (-4.0, 1.6), 80, 8.0, 1e-5
PATH_OPTIMIZERS = {
    "gradient descent": ("sgd", lambda p, lr: torch.optim.SGD(p, lr), 0.35),
    "momentum": ("momentum", lambda p, lr: torch.optim.SGD(p, lr, momentum=0.85), 0.1),
    "AdaGrad": ("adagrad", lambda p, lr: torch.optim.Adagrad(p, lr), 0.5),
    "Adam": ("adam", lambda p, lr: torch.optim.Adam(p, lr), 0.25),
}


def valley_height(u: Tensor, v: Tensor) -> Tensor:
    """Returns the height of a valley: flat along u, steep along v, flatter still far away."""
    return torch.log1p(0.12 * u**2 + 1.6 * v**2)


def valley_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Returns the height of the valley around each record."""
    theta = model.get_parameter("theta")
    return valley_height(theta[0] - x[:, 0], theta[1] - x[:, 1])


def draw_paths(bench: Workbench) -> Outcome:
    """Draws the paths of optimizers on one contour (gradient descent, momentum, AdaGrad and Adam), without and with
    differential privacy.
    """
    # Sixty records around the origin, of which all optimizers see the same.
    rng = torch.Generator().manual_seed(1)
    x, y = 0.3 * torch.randn(60, 2, generator=rng), torch.zeros(60)
    steps = bench.pick(3, PATH_STEPS, PATH_STEPS, PATH_STEPS)
    # The contour is that of the mean loss of all records.
    u, v = np.linspace(-5, 2, 60), np.linspace(-2.2, 2.2, 50)
    grid = torch.stack(torch.meshgrid(torch.tensor(u), torch.tensor(v), indexing="xy"), -1).float()
    z = valley_height(grid[..., None, 0] - x[:, 0], grid[..., None, 1] - x[:, 1]).mean(-1)
    field = Field(u, v, [row.tolist() for row in z])
    panels, ends, claims = [], {}, []
    plain = NoisySum(Flat(float("inf")), Gaussian(0.0))
    for title, ask, private in (
        ("without privacy", plain, False),
        ("clip 1, σ = 8", dp_sgd_query(1.0, PATH_NOISE), True),
    ):
        lines = []
        for number, (name, (method, make, rate)) in enumerate(PATH_OPTIMIZERS.items()):
            # The claim comes from the run itself, so one ε for all paths is measured and not assumed.
            path = descend(PATH_START, valley_loss, x, y, ask, rate, steps, optimizer=make, seed=0, delta=PATH_DELTA)
            if private:
                claims.append(path.claim.epsilon if isinstance(path.claim, Guarantee) else None)
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
            ends[name, private] = _count_steps_to_minimum(path.points)
        epsilon = claims[0] if claims and len(set(claims)) == 1 else None
        said = f"{title}: ε = {epsilon:.1f} for each path" if private and epsilon else title
        panels.append(Panel(said, "first parameter", "second parameter", lines, field=field))
    return Outcome(
        panels,
        findings=[
            Finding(
                "take lot U-turns, still converges faster than Vanilla GD",
                "003:613",
                None,  # the slides name neither their surface nor their rates, on which it depends
                f"momentum is within 0.5 of the minimum after {ends['momentum', False]} steps, gradient descent after "
                f"{ends['gradient descent', False]}, on our valley at our rates",
            ),
            Finding(
                "but it is slower than momentum methods",
                "003:637",
                None,  # the slides name neither their surface nor their rates, on which it depends
                f"AdaGrad takes {ends['AdaGrad', False]} steps, momentum {ends['momentum', False]}, on our valley at our "
                "rates",
            ),
            Finding(
                "we can plug in our private gradients into any optimizer (e.g. AdamW)",
                "003:83",
                bench.judge(epsilon is not None),
                f"the same ε = {epsilon or 0:.2f} for all four: what an optimizer does with released gradients is "
                "post-processing",
            ),
        ],
        numbers={"steps": {f"{name}, {'private' if p else 'plain'}": count for (name, p), count in ends.items()}},
    )


def _count_steps_to_minimum(points: Tensor) -> int:
    """Returns the steps until an optimizer's path stays within 0.5 of the minimum; all of them if it never does."""
    # Passing through does not count: the path must stay near.
    near = points.norm(dim=1) < 0.5
    away = torch.nonzero(~near).flatten()
    return int(away[-1]) + 1 if len(away) else 0


MNIST_OPTIMIZERS = {
    "SGD": ("sgd", {"optimizer": "sgd", "learning_rate": 0.5}),
    "momentum": ("momentum", {"optimizer": "sgd", "learning_rate": 0.1, "momentum": 0.9}),
    "AdaGrad": ("adagrad", {"optimizer": "adagrad", "learning_rate": 0.02}),
    "Adam": ("adam", {"optimizer": "adam", "learning_rate": 0.002}),
    "AdamW": ("adamw", {"optimizer": "adamw", "learning_rate": 0.002, "weight_decay": 0.01}),
}


def plan_mnist_optimizers(bench: Workbench) -> list[CurvePlan]:
    """Returns the plans of private training on MNIST, one for each optimizer, with a learning rate of its own that is
    not tuned.
    """
    # A constant rate, so that no optimizer gains from a schedule.
    base = plan_mnist(bench, "DP-SGD", 0.1, 1.0, schedule="constant")
    some = {name: MNIST_OPTIMIZERS[name] for name in ("SGD", "AdaGrad")} if bench.is_tiny else MNIST_OPTIMIZERS
    return [
        replace(base, label=name, method=method, variant=k, given={**base.given, **own})
        for k, (name, (method, own)) in enumerate(some.items())
    ]


def draw_mnist_optimizers(bench: Workbench) -> Outcome:
    """Draws five optimizers on private gradients of MNIST at equal ε."""
    trained = bench.train(plan_mnist_optimizers(bench))
    # One ε for every optimizer is what post-processing means.
    spent = {round(one.epsilon or 0.0, 6) for one in trained}
    return Outcome(
        draw_learning(trained, f"MNIST, C = 1, σ = 1.1, ε = {max(spent):.2f}"),
        findings=[
            Finding(
                "ok to use AdamW by post-processing!",
                "003:771",
                bench.judge(len(spent) == 1 and all(one.epsilon is not None for one in trained)),
                f"one ε = {max(spent):.2f} for all of them",
            ),
            Finding(
                "AdamW (a minor variant) is likely the best default optimizer",
                "003:674",
                None,  # the sentence is about training without privacy, and an untuned rate says nothing of an optimizer
                ", ".join(f"{one.plan.label} {one.describe_final()}" for one in trained)
                + "; with privacy, and rates that are not tuned",
            ),
        ],
        commands=bench.commands(plan_mnist_optimizers(bench)),
    )


DESCENT_EPSILON = 3.0
LEAK_NOISE, LEAK_STEPS = 10.0, 100
"""Noise multiplier and steps at which full batches and lots are priced."""


def plan_full_batch(bench: Workbench) -> list[CurvePlan]:
    """Returns the plans of optimizers on private gradients of lots and of full batches, with Gaussian and Laplace
    noise, each with as many steps as the same work allows.
    """
    # Equal work: a full batch is as many records as twenty lots of 100.
    passes = bench.pick(1, 30, 60, 100)
    base = {"optimizer": "sgd", "learning_rate": 1.0, "epsilon": DESCENT_EPSILON, "model": "mlp"}
    methods: tuple[tuple[str, str, int, dict[str, str]], ...] = (
        ("DP-SGD, lots of 100", "dpsgd", 100, {}),
        ("full batch, Gaussian noise", "full-batch", 2_000, {"sampler": "full"}),
        ("full batch, Laplace noise", "laplace", 2_000, {"method": "dp-gd-laplace"}),
    )
    return [
        CurvePlan(
            label=label,
            method=method,
            recipe="spiral",
            batch=batch,
            records=2_000,
            epochs=passes,
            seeds=bench.pick(1, 2, 3, 5),
            evaluations=5,
            variant=k,
            given={**base, **words},
        )
        for k, (label, method, batch, words) in enumerate(methods)
    ]


def draw_full_batch(bench: Workbench) -> Outcome:
    """Draws optimizers on private gradients: full-batch descent with Laplace and with Gaussian noise against DP-SGD, at
    equal ε and equal work.
    """
    # Each method has ε = 3 and passes over the data as often as the others.
    trained = bench.train(plan_full_batch(bench))
    # What a step tells is priced where nothing else differs: the same noise and as many steps, with all or few records.
    event, rate = events.Gaussian(LEAK_NOISE), 100 / 2_000
    full, sampled = (
        PLD().epsilon(events.Repeat(one, LEAK_STEPS), PATH_DELTA) for one in (event, events.Poisson(rate, event))
    )
    return Outcome(
        draw_learning(trained, "three-armed cloud, ε = 3, equal work"),
        findings=[
            Finding(
                "[a full-batch gradient:] more “fully”, more = leakage; [a mini-batch gradient:] only “glances”, "
                "less leakage",
                "003:564",
                bench.judge(full > sampled),
                f"{LEAK_STEPS} steps with σ = {LEAK_NOISE:g} cost ε = {full:.2f} with all records and {sampled:.2f} with a "
                f"random twentieth; at ε = 3 and {trained[0].runs[0].rows[-1]['epoch']:.0f} passes lots end at "
                f"{final_mean(trained[0]):.1f} %, all records in every step at {final_mean(trained[1]):.1f} %",
            ),
        ],
        notes=[
            "The lecture only asks how it is with Gaussian noise and vectors (003:519). Here: "
            + ", ".join(f"{one.plan.label} {one.describe_final()}" for one in trained[1:])
            + "; Laplace noise needs a bound in L1, √d times as far."
        ],
        commands=bench.commands(plan_full_batch(bench)),
    )


FIGURES = {
    "optimizers-path": Figure(draw_paths),
    "dp-gd": Figure(draw_full_batch, plan_full_batch),
    "optimizers-mnist": Figure(draw_mnist_optimizers, plan_mnist_optimizers),
}

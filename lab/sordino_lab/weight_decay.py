"""Linear regression by DP-SGD with decay outside the clip and L2 inside it: the synthetic panels of source 000."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sordino.app.report.panels import Panel, Series
from sordino.sampling.poisson import Poisson
from sordino_lab.descent import descend, query, squared
from sordino_lab.experiment import Finding, Outcome
from sordino_lab.workbench import Workbench

PANELS = ((0.1, 0.01, 0.03), (0.01, 0.01, 0.1), (0.1, 0.1, 0.03))
"""Clip bound R, weight decay λ, learning rate."""
NOISE, RECORDS, RATE, FASTER = 0.1, 1000, 0.05, 25


def regression(weights: tuple[float, ...], seed: int) -> tuple[Tensor, Tensor]:
    """y = w·x + noise."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(RECORDS, len(weights), generator=rng)
    return x, x @ torch.tensor(weights) + 0.1 * torch.randn(RECORDS, generator=rng)


def linear(bench: Workbench, weights: tuple[float, ...], line: str) -> Outcome:
    """Test loss against steps in the three panels, and the loss of ridge regression itself."""
    seeds = bench.pick(1, 1, 3, 5)
    most = bench.pick(6, 1, 1, 1)
    panels, notes, holds = [], [], []
    for bound, decay, rate in PANELS:
        # A step moves by at most R·lr, so w = 10 is this many steps away.
        steps = (
            most
            if bench.size.value == "tiny"
            else int(1.6 * max(weights) / (bound * rate) * bench.pick(1, 1 / FASTER, 1, 1))
        )
        ends, lines = {}, []
        for name, method, given in (
            ("decay outside the clip", "decoupled", {"decay": decay}),
            ("L2 inside the clip", "l2-inside", {"penalty": decay}),
        ):
            curves = [_losses(weights, bound, rate * _faster(bench), steps, seed, given) for seed in range(seeds)]
            keep = max(1, len(curves[0]) // 60)
            stacked = torch.stack(curves)[:, ::keep]
            mean, spread = stacked.mean(0), stacked.std(0) if seeds > 1 else torch.zeros(stacked.shape[1])
            at = [k * keep * _faster(bench) for k in range(stacked.shape[1])]
            lines.append(
                Series(
                    name,
                    at,
                    mean.tolist(),
                    low=(mean - spread).tolist() if seeds > 1 else (),
                    high=(mean + spread).tolist() if seeds > 1 else (),
                    method=method,
                    variant=0 if method == "decoupled" else 1,
                )
            )
            ends[method] = float(mean[-1])
        holds.append(ends["decoupled"] > 2 * ends["l2-inside"])
        notes.append(
            f"R = {bound:g}, λ = {decay:g}: test loss {ends['decoupled']:.3g} outside, {ends['l2-inside']:.3g} inside"
        )
        panels.append(Panel(f"R = {bound:g}, λ = {decay:g}, lr = {rate:g}", "steps", "test loss", lines, ylog=True))
    return Outcome(
        panels,
        findings=[
            Finding(
                "with small R and large ‖w‖ and λ, DP-SGD performs poorly, our method is almost unaffected",
                line,
                bench.judged(all(holds)),
                "; ".join(notes),
            )
        ],
        notes=[
            "σ = 0.1 as the source has it is far too little noise for a useful ε; the figure is about optimisation. "
            "The source names neither its lot nor its steps; ours are lots of 50."
        ],
    )


def _faster(bench: Workbench) -> int:
    """At --quick steps are 25 times as long and as few."""
    return bench.pick(1, FASTER, 1, 1)


def _losses(
    weights: tuple[float, ...], bound: float, rate: float, steps: int, seed: int, given: dict[str, Any]
) -> Tensor:
    x, y = regression(weights, seed)
    test_x, test_y = regression(weights, 1000 + seed)
    path = descend(
        [0.0] * len(weights), squared, x, y, query(bound, NOISE), rate, steps, sampler=Poisson(RATE), seed=seed, **given
    )
    return ((path.points @ test_x.T - test_y) ** 2).mean(1) / 2

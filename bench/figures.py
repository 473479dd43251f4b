"""Draws the figures of the pages: the effect of noise, rate, sampler, bound and learning rate.

    python -m bench.figures              draws all, from bench/results/figures.json where runs were made
    python -m bench.figures --measure    makes the runs anew: some minutes on one thread

ε and σ are computed when the figure is drawn, by PLD at δ = 1e-5. Accuracies of recipes are those of
bench/results/accuracy.json. The grid of bounds and learning rates is logistic regression on the pixels of the first
10,000 training images of MNIST, scored on the next 5,000, which are none of the test set.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import sordino as sd
from sordino.accounting import PLD
from sordino.accounting import calibrate as met
from sordino.app.report.svg_figures import DASHES, SERIES, SOFT, open_figure, write_png
from sordino.events import Gaussian, Poisson, Repeat
from sordino.kernels.processor import processor_name
from sordino.ledger.claims import Guarantee, make_claim

FOLDER = Path(__file__).parents[1] / "docs" / "img"
RESULTS = Path(__file__).parent / "results"
DELTA = 1e-5
RECORDS = 60_000
BOUNDS, RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0), (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
GRID = {"rate": 0.05, "steps": 100, "epsilon": 2.0, "train": 10_000, "held_out": 5_000, "seed": 0}


def epsilon_of_noise() -> None:
    """Draws ε against σ, for three lengths of training."""
    sigmas = np.geomspace(0.6, 8, 25)
    with open_figure() as (made, (axes,)):
        for look, steps in enumerate((100, 1000, 10_000)):
            spent = [PLD().epsilon(Repeat(Poisson(0.01, Gaussian(float(s))), steps), DELTA) for s in sigmas]
            axes.plot(sigmas, spent, color=SERIES[look], linestyle=DASHES[look], label=f"{steps:,} steps")
        axes.set(xlabel="noise multiplier σ", ylabel="ε", xscale="log", yscale="log")
        _plain(axes, (0.6, 1, 2, 4, 8), (0.1, 0.3, 1, 3, 10, 30))
        axes.legend(title="rate 0.01", fontsize=8.5)
        write_png(made, FOLDER / "epsilon_of_noise.png")


def noise_of_rate() -> None:
    """Draws the σ that a rate needs at one ε, and how much of it is left in the mean of a lot."""
    rates = np.geomspace(0.001, 0.25, 12)
    epochs, epsilon = 20, 3.0
    sigmas = [
        met(lambda s, q=q: Repeat(Poisson(float(q), Gaussian(s)), max(1, round(epochs / q))), PLD(), epsilon, DELTA)
        for q in rates
    ]
    with open_figure(2) as (made, (top, bottom)):
        top.plot(rates, sigmas, color=SERIES[0], marker="o", markersize=3.5)
        top.set(ylabel="σ", xscale="log")
        left = [s / (q * RECORDS) for s, q in zip(sigmas, rates, strict=True)]
        bottom.plot(rates, left, color=SERIES[1], marker="o", markersize=3.5)
        bottom.set(ylabel="σ / lot", xlabel=f"rate; {epochs} passes over 60,000 records at ε = 3", yscale="log")
        _plain(bottom, (0.001, 0.003, 0.01, 0.03, 0.1, 0.25), ())
        write_png(made, FOLDER / "noise_of_rate.png")


def samplers() -> None:
    """Draws ε against passes over the data, by sampler, at one σ and one size of lots."""
    batch, passes = 600, (1, 2, 4, 8, 16, 32)
    query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.5))
    named = {
        "Shuffle": sd.Shuffle(batch),
        "FixedSize": sd.FixedSize(batch),
        "Poisson": sd.Poisson(batch / RECORDS),
        "BallsInBins": sd.BallsInBins(RECORDS // batch),
    }
    with open_figure() as (made, (axes,)):
        for look, (name, sampler) in enumerate(named.items()):
            spent = []
            for count in passes:
                event = sd.dry_run(query, sampler, dataset_size=RECORDS, steps=count * RECORDS // batch)
                said = make_claim(event, DELTA, PLD())
                assert isinstance(said, Guarantee)
                spent.append(said.epsilon)
            axes.plot(passes, spent, color=SERIES[look], linestyle=DASHES[look], marker="o", markersize=3.5, label=name)
        axes.set(xlabel="passes over 60,000 records in lots of 600, σ = 1.5", ylabel="ε", xscale="log", yscale="log")
        _plain(axes, passes, (0.5, 1, 2, 5, 10, 20))
        axes.legend(fontsize=8.5)
        write_png(made, FOLDER / "samplers.png")


def accuracy_of_epsilon() -> None:
    """Draws what the recipes reach at each ε: mean, smallest and largest of their seeds."""
    found: dict[str, dict[float, list[float]]] = {}
    for name, row in json.loads((RESULTS / "accuracy.json").read_text()).items():
        recipe, _, epsilon = name.partition(" ε=")
        if not epsilon:
            continue
        found.setdefault(recipe, {})[float(epsilon)] = [100 * run["accuracy"] for run in row["runs"]]
    with open_figure() as (made, (axes,)):
        shown = [name for name in ("mnist", "fashion-mnist", "cifar10-imagenet") if name in found]
        for look, name in enumerate(shown):
            at = sorted(found[name])
            mean = [float(np.mean(found[name][e])) for e in at]
            axes.plot(at, mean, color=SERIES[look], linestyle=DASHES[look], marker="o", markersize=4, label=name)
            low, high = ([pick(found[name][e]) for e in at] for pick in (min, max))
            axes.fill_between(at, low, high, color=SERIES[look], alpha=0.15, linewidth=0)
        axes.set(xlabel="ε at δ = 1e-5", ylabel="test accuracy, %", xticks=(1, 2, 3))
        axes.legend(fontsize=8.5)
        write_png(made, FOLDER / "accuracy_of_epsilon.png")


def bounds_and_rates(cells: dict[str, float]) -> None:
    """Draws held-out accuracy over the grid of bounds and learning rates."""
    table = np.array([[cells[f"{bound:g} {rate:g}"] for rate in RATES] for bound in BOUNDS])
    with open_figure() as (made, (axes,)):
        axes.grid(visible=False)
        axes.imshow(table, cmap="viridis", vmin=20, vmax=float(np.nanmax(table)), aspect="auto", origin="lower")
        for i, row in enumerate(table):
            for j, value in enumerate(row):
                said = "–" if np.isnan(value) else f"{value:.0f}"
                axes.text(j, i, said, ha="center", va="center", fontsize=8, color="white" if value < 70 else "black")
        axes.set(xlabel="learning rate  (held-out %, 10,000 images, 1 run a cell)", ylabel="bound C")
        axes.set_xticks(range(len(RATES)), [f"{rate:g}" for rate in RATES])
        axes.set_yticks(range(len(BOUNDS)), [f"{bound:g}" for bound in BOUNDS])
        write_png(made, FOLDER / "bounds_and_rates.png")


def measure() -> dict[str, Any]:
    """Makes one run for each cell, each at ε = 2."""
    from sordino.app.data import load

    images = load("mnist").train
    n, more = int(GRID["train"]), int(GRID["held_out"])
    x = torch.as_tensor(images.images[: n + more]).flatten(1).float() / 255
    y = torch.as_tensor(images.labels[: n + more]).long()
    data = torch.utils.data.TensorDataset(x[:n], y[:n])
    sampler, steps = sd.Poisson(GRID["rate"]), int(GRID["steps"])

    def query(bound: float, sigma: float) -> sd.NoisySum:
        return sd.NoisySum(sd.Flat(bound), sd.Gaussian(sigma))

    sigma = sd.calibrate(lambda s: query(1.0, s), sampler, steps, epsilon=GRID["epsilon"], delta=DELTA)
    cells: dict[str, float] = {}
    for bound in BOUNDS:
        for rate in RATES:
            model = torch.nn.Linear(x.shape[1], 10)
            torch.nn.init.zeros_(model.weight)
            optimizer = torch.optim.SGD(model.parameters(), lr=rate)
            private = sd.Private(model, _loss, query(bound, sigma), seed=int(GRID["seed"]))
            for lot in private.draws(data, sampler, steps, expected_batch=GRID["rate"] * n):
                private.backward(lot)
                optimizer.step()
            right = model(x[n:]).argmax(1) == y[n:]
            cells[f"{bound:g} {rate:g}"] = round(100 * float(right.float().mean()), 2)
    return {
        "settings": {**GRID, "delta": DELTA, "sigma": round(sigma, 4)},
        "processor": processor_name(),
        "cells": cells,
    }


def _loss(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(x), y, reduction="none")


def _plain(axes: Any, x: tuple[float, ...], y: tuple[float, ...]) -> None:
    """Formats ticks as plain numbers instead of powers of ten."""
    from matplotlib.ticker import NullLocator

    if x:
        axes.set_xticks(x, [f"{value:g}" for value in x])
        axes.xaxis.set_minor_locator(NullLocator())
    if y:
        axes.set_yticks(y, [f"{value:g}" for value in y])
        axes.yaxis.set_minor_locator(NullLocator())
    axes.tick_params(colors=SOFT)


def main(arguments: list[str]) -> None:
    """Draws all figures, after measuring if asked."""
    kept = RESULTS / "figures.json"
    if "--measure" in arguments:
        torch.set_num_threads(1)
        kept.write_text(json.dumps(measure(), indent=1, ensure_ascii=False) + "\n")
    epsilon_of_noise()
    noise_of_rate()
    samplers()
    accuracy_of_epsilon()
    bounds_and_rates(json.loads(kept.read_text())["cells"])


if __name__ == "__main__":
    main(sys.argv[1:])

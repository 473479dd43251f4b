"""The price of sorting: time of a pass with exact ranking, with a pool of candidates, and with coins, over a DP-SGD pass.

source     001, text of §4.4, lines 505
setting    time of an epoch with sorting over one without; 50 to 75 times at lots of 200
reduced    fewer lots
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from sordino.app.report.panels import Panel, Series
from sordino.clipping.flat import Flat
from sordino.nn import mnist_net
from sordino.private import Private
from sordino.queries.noisy_sum import NoisySum
from sordino.release.noise import Gaussian
from sordino.sampling.length_based import Threshold
from sordino.sampling.poisson import Poisson
from sordino.sampling.sampler import Sampler
from sordino.sampling.sorted import Sorted
from sordino_lab.experiment import Compared, Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench

BATCH = 200


def loss_fn(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy per record."""
    return F.cross_entropy(model(x), y, reduction="none")


def one_pass(data: TensorDataset, sampler: Sampler, lots: int) -> float:
    """CPU seconds of a pass through `Private`."""
    torch.manual_seed(0)
    model = mnist_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = Private(model, loss_fn, NoisySum(Flat(1.0), Gaussian(1.1)), seed=0)
    begun = time.process_time()
    for lot in private.draws(data, sampler, lots):
        private.backward(lot)
        optimizer.step()
    return time.process_time() - begun


def run(bench: Workbench) -> Outcome:
    """Over the number of lots in a pass."""
    counts = bench.pick((2,), (10, 20, 40), (20, 40, 80), (60, 120, 240))
    ratios: dict[str, list[float]] = {
        "top_k, exact": [],
        "top_k, pool of 4 lots": [],
        "threshold, refreshed each pass": [],
    }
    for lots in counts:
        rng = torch.Generator().manual_seed(lots)
        data = TensorDataset(
            torch.rand(lots * BATCH, 1, 28, 28, generator=rng), torch.randint(0, 10, (lots * BATCH,), generator=rng)
        )
        ways: tuple[Sampler, ...] = (
            Sorted.top_k(BATCH),
            Sorted.top_k(BATCH, pool=4),
            Threshold(1.0, low=0.5 / lots, high=min(1.0, 2 / lots), refresh=lots),
        )
        one_pass(data, Poisson(1 / lots), min(2, lots))
        plain = one_pass(data, Poisson(1 / lots), lots)
        for name, way in zip(ratios, ways, strict=True):
            ratios[name].append(one_pass(data, way, lots) / plain)
    exact = ratios["top_k, exact"]
    growth = (exact[-1] - 1) / counts[-1]
    methods = ("sorted", "similar-length", "threshold")
    return Outcome(
        [
            Panel(
                "a pass of MNIST_Net with sorting, over one without",
                "lots in a pass",
                "times a DP-SGD pass",
                [
                    Series(name, counts, row, method=method, variant=k)
                    for k, ((name, row), method) in enumerate(zip(ratios.items(), methods, strict=True))
                ],
                ylog=True,
            )
        ],
        [Compared("exact ranking, 250 lots (extrapolated)", 1 + growth * 250, 62.5, "001:505, middle of 50 to 75")],
        [
            Finding(
                "the time of an epoch rose by a factor of 50 to 75",
                "001:505",
                bench.judged(30 < 1 + growth * 250 < 110),
                f"{exact[-1]:.1f} times at {counts[-1]} lots, growing by {growth:.2f} for each lot: about "
                f"{1 + growth * 250:.0f} at 250",
            )
        ],
        [
            "A pool of candidates, or coins that a record's own length weighs, cost a few passes whatever the number "
            "of lots. "
            "Of these only the coins (Threshold) have a guarantee."
        ],
        numbers={"lots": list(counts), **ratios},
    )


EXPERIMENT = Experiment(
    id="sorting-price",
    source="001",
    figure="text of §4.4",
    lines="505",
    title="The price of sorting",
    shows="ranking before every lot costs about half as many passes as there are lots",
    setting="time of an epoch with sorting over one without; 50 to 75 times at lots of 200",
    reduced="fewer lots",
    nouns=("Sorted", "Threshold"),
    terms="Overhead, Laufzeit",
    seconds=25,
    run=run,
)

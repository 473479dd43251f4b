"""The price of sorted lots: one pass over MNIST by each way of drawing, over a DP-SGD pass.

All ways train MNIST_Net of Pflaeging (2023, *Varianten von DPSGD*; 784-256-32-10, 209,514 parameters) through `Private`
as a user calls it, with flat clipping at 1, σ = 1.1 and SGD. "exact" takes the gradient lengths of every record that is
left before every batch, about 120 times all 60,000. CPU time of one thread, since other work on the machine disturbs a
wall clock; the DP-SGD pass is the median of those run before, between and after.

    python -m bench.sorted [--part]     # --part: a tenth of the data in batches of 25, for a look

Writes bench/results/sorted.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

import sordino as sd
from bench.models import classification
from sordino.app.data import load
from sordino.nn import mnist_net
from sordino.sampling import Sampler

RESULTS = Path(__file__).parent / "results"
BATCHES = 240
TARGETS = {"top_k, exact": 60.0, "top_k, refresh=10": 8.0, "top_k, pool=4": 4.0}


def ways(batch: int) -> dict[str, Sampler]:
    """Returns everything that is measured, the cheapest first."""
    return {
        "threshold, refresh=240": sd.Threshold(1.0, low=0.5 / BATCHES, high=2 / BATCHES, refresh=BATCHES),
        "top_k, pool=4": sd.Sorted.top_k(batch, pool=4),
        "top_k, refresh=10": sd.Sorted.top_k(batch, refresh=10),
        "class_diverse, refresh=10": sd.Sorted.class_diverse(batch, refresh=10),
        "top_k, exact": sd.Sorted.top_k(batch),
    }


def loss_fn(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Returns the cross-entropy of each record."""
    return classification(model(x), y)


def one_pass(data: Any, sampler: Sampler) -> float:
    """Returns the CPU seconds of 240 lots: drawing, ranking, gradients, noise, update and first set-up."""
    torch.manual_seed(0)
    model = mnist_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1)))
    start = time.process_time()
    for lot in private.draws(data, sampler, steps=BATCHES):
        private.backward(lot)
        optimizer.step()
    taken = time.process_time() - start
    if private.steps != BATCHES:
        raise RuntimeError(f"{private.diverged}: the pass was not completed, its time means nothing")
    return taken


def main() -> None:
    """Measures, writes the file and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", action="store_true", help="a tenth of the data in batches of 25")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data: Any = load("mnist").train.to_dataset()
    if options.part:
        data = Subset(data, range(len(data) // 10))
    batch = len(data) // BATCHES
    base = sd.Poisson(1 / BATCHES)
    one_pass(data, base)  # warm
    plain, found = [one_pass(data, base)], {}
    for name, sampler in ways(batch).items():
        found[name] = one_pass(data, sampler)
        plain.append(one_pass(data, base))
        print(name, round(found[name], 2), "s; DP-SGD", round(plain[-1], 2), "s", flush=True)  # noqa: T201
    middle = statistics.median(plain)
    result = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "records": len(data),
        "batches": BATCHES,
        "threads": 1,
        "dp-sgd pass, cpu s": [round(t, 3) for t in plain],
        "pass, cpu s": {name: round(t, 3) for name, t in found.items()},
        "over the dp-sgd pass": {name: round(t / middle, 2) for name, t in found.items()},
        "targets": TARGETS,
    }
    if not options.part:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "sorted.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["over the dp-sgd pass"], indent=1))  # noqa: T201


if __name__ == "__main__":
    main()

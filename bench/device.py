"""Counts what a step asks of a device, on the simulated accelerator of the tests: launches, waits, copies and bytes.

    python -m bench.device [--models mlp_dropout,cnn_dropout,gpt2_dropout] [--steps 20]
    python -m bench.device --models gpt2_768,resnet18 --steps 8         # added to the results that are there

The models are those of the tests and two of real width: a GPT-2 of two layers with 768 columns, 32 tokens and 5,000
words, and a ResNet-18. Counts do not depend on the machine. Private and plain steps are counted for the same model; of
the private ones, the median of those in which no runtime check fell is given, with the lines that wait and the files
that launch kernels.
Writes bench/results/device.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import TensorDataset

import sordino as sd
from tests.device.simulated import Cost, Simulated, move, start
from tests.device.zoo import ZOO, Problem, classify

RESULTS = Path(__file__).parent / "results" / "device.json"
COUNTED = ("launches", "waits", "copies", "bytes_copied")


def gpt2_768() -> Problem:
    """Returns a GPT-2 of two layers of the real width, with dropout, and sequences of 32 tokens."""
    import transformers

    config = transformers.GPT2Config(vocab_size=5000, n_positions=64, n_embd=768, n_layer=2, n_head=12)

    def next_token(model: Any, x: Tensor) -> Tensor:
        logits = model(input_ids=x).logits
        return F.cross_entropy(logits[:, :-1].transpose(1, 2), x[:, 1:], reduction="none").mean(1)

    return transformers.GPT2LMHeadModel(config), TensorDataset(torch.randint(0, 5000, (100, 32))), next_token


def resnet18() -> Problem:
    """Returns the library's ResNet-18 with group normalisation, and images of 32 × 32."""
    data = TensorDataset(torch.randn(200, 3, 32, 32), torch.randint(0, 10, (200,)))
    return sd.nn.resnet18(), data, classify


MODELS = {**ZOO, "gpt2_768": gpt2_768, "resnet18": resnet18}


def summarise(costs: list[Cost]) -> dict[str, float]:
    """Returns the median of every count over some steps."""
    return {name: median(getattr(cost, name) for cost in costs) for name in COUNTED}


def measure(sim: Simulated, name: str, steps: int) -> dict[str, Any]:
    """Returns the counts of private and of plain steps of one model, and where a private step waits."""
    torch.manual_seed(0)
    model, data, loss_fn = MODELS[name]()
    optimizer = torch.optim.SGD(move(model).parameters(), lr=0.05)
    private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))
    costs, plain = [], []
    lots = iter(private.draws(data, sd.Poisson(0.1), steps=steps))
    for _ in range(steps):
        with sim.counting(launch_sites=True) as cost:
            lot = next(lots)
            optimizer.zero_grad()
            private.backward(lot)
            optimizer.step()
        costs.append(cost)
    # Steps with a runtime check compare tensors and wait for them; the others all wait equally often.
    least = min(cost.waits for cost in costs)
    untested = [cost for cost in costs if cost.waits == least]
    # Another model, which no run watches: what is watched is looked at in every step of its optimizer.
    batch, unwatched = [column[:20] for column in data.tensors], move(MODELS[name]()[0])
    plain_optimizer = torch.optim.SGD(unwatched.parameters(), lr=0.05)
    for _ in range(3):
        with sim.counting() as cost:
            plain_optimizer.zero_grad()
            loss_fn(unwatched, *(column.to("sim") for column in batch)).mean().backward()
            plain_optimizer.step()
        plain.append(cost)
    return {
        "private": summarise(untested),
        "plain": summarise(plain[1:]),
        "steps": len(costs),
        "steps without a check": len(untested),
        "launches beside plain training": round(
            median(cost.launches for cost in untested) / median(cost.launches for cost in plain[1:]), 2
        ),
        "waits at": untested[-1].waiting_sites(),
        "launches by": launches_by_file(untested[-1]),
    }


def launches_by_file(cost: Cost) -> dict[str, int]:
    """Returns how many launches each file of the library asked for in one step, most first."""
    found = Counter[str]()
    for site, times in cost.launch_sites().items():
        where = site.partition(" ")[0]
        found["(autograd)" if where == "(autograd)" else where.partition(":")[0].lstrip("(")] += times
    return dict(found.most_common())


def main() -> None:
    """Measures, writes the file and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="mlp_dropout,cnn_dropout,lstm_dropout,vit_dropout,gpt2_dropout")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    sim = start()
    found = {name: measure(sim, name, options.steps) for name in options.models.split(",")}
    before = json.loads(options.out.read_text())["models"] if options.out.exists() else {}
    result = {"torch": torch.__version__, "device": "simulated (tests/device)", "models": {**before, **found}}
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    for name, one in found.items():
        print(name, one["launches beside plain training"], "x", one["private"], one["plain"])  # noqa: T201
    sys.stdout.flush()
    os._exit(0)  # threads of the simulated device may not survive Python's own end


if __name__ == "__main__":
    main()

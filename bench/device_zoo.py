"""Trains the zoo on the simulated device with many seeds: does an honest run ever lose its claim, and are gradients right?

    nice -n 15 python -m bench.device_zoo                  # resumed where it stopped
    python -m bench.device_zoo --seeds 5 --models mlp,cnn --minutes 2

Every model (MLP, CNN, LSTM, GPT-2, LoRA, ViT) is trained with dropout, in bfloat16 and under autocast. A run is two lots
with their runtime checks, another seed each time for weights, data, lots and noise. It counts as *refused* if it raises or
if its claim is void. For every seed, norms and sums of one batch are compared with the CPU's, with the dropout off;
errors of sums are relative to the largest number of the CPU's sum. In half precision they are those of bfloat16's rounding.

Writes bench/results/device_zoo.json, after every seed.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import sordino as sd
from sordino.ledger.claims import Guarantee
from sordino.per_sample import Captured
from tests.device.simulated import move, start
from tests.device.zoo import GRID

RESULTS = Path(__file__).parent / "results" / "device_zoo.json"
BATCH = 6


def compare_with_cpu(name: str) -> dict[str, float]:
    """Returns how far the device's norms and weighted sums are from the CPU's, for one batch without dropout."""
    here, data, loss_fn = GRID[name]()
    there = move(copy.deepcopy(here)).eval()
    here.eval()
    batch = tuple(column[:BATCH] for column in data.tensors)
    weights = torch.linspace(0.2, 1.0, BATCH)[:, None]
    of_cpu = Captured().per_sample(here, loss_fn, batch)
    sums, norms = of_cpu.weighted_sum(weights), of_cpu.norms().total().double()
    sums = {parameter: total.clone().float() for parameter, total in sums.items()}
    of_device = Captured().per_sample(there, loss_fn, tuple(column.to("sim") for column in batch))
    device_sums = of_device.weighted_sum(weights.to("sim"))
    largest = max(float(total.abs().max()) for total in sums.values())
    wrong = max(float((device_sums[p].cpu().float() - total).abs().max()) for p, total in sums.items())
    ratio = of_device.norms().total().cpu().double() / norms
    return {"sum": wrong / largest, "lowest norm": float(ratio.min()), "highest norm": float(ratio.max())}


def train(name: str, seed: int, lots: int = 2) -> str | None:
    """Trains two lots on the device; returns why there is no guarantee, or None if there is one."""
    torch.manual_seed(seed)
    model, data, loss_fn = GRID[name]()
    optimizer = torch.optim.SGD(move(model).parameters(), lr=0.05)
    try:
        private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), seed=seed)
        for lot in private.draws(data, sd.Poisson(0.08), steps=lots):
            optimizer.zero_grad()
            private.backward(lot)
            optimizer.step()
        claim = private.claim(1e-5)
    except Exception as error:  # a refusal, or an error that nobody foresaw: both count
        return f"{type(error).__name__}: {error}"
    return None if isinstance(claim, Guarantee) else str(claim)


def run_seed(found: dict[str, Any], name: str, seed: int) -> None:
    """Adds one seed of one model to what was found."""
    began = time.process_time()
    reason = train(name, seed)
    torch.manual_seed(seed)
    errors = compare_with_cpu(name)
    one = found.setdefault(name, {"seeds": 0, "refused": [], "largest error of a sum": 0.0, "lowest norm": 9.0})
    one["seeds"] += 1
    one["largest error of a sum"] = max(one["largest error of a sum"], errors["sum"])
    one["lowest norm"] = min(one["lowest norm"], errors["lowest norm"])
    one["highest norm"] = max(one.get("highest norm", 0.0), errors["highest norm"])
    one["cpu seconds"] = round(one.get("cpu seconds", 0.0) + time.process_time() - began, 1)
    if reason is not None:
        one["refused"].append({"seed": seed, "reason": reason[:400]})


def main() -> None:
    """Runs all seeds that are missing, in turns over the models, and writes after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(GRID))
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=20.0, help="of processor time")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    start()
    result: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {"models": {}}
    result |= {"torch": torch.__version__, "device": "simulated (tests/device)", "lots per run": 2}
    for seed in range(options.seeds):
        for name in options.models.split(","):
            if result["models"].get(name, {"seeds": 0})["seeds"] > seed:
                continue
            if time.process_time() > 60 * options.minutes:
                break
            run_seed(result["models"], name, seed)
            options.out.write_text(json.dumps(result, indent=1) + "\n")
    for name, one in result["models"].items():
        print(name, one)  # noqa: T201
    sys.stdout.flush()
    os._exit(0)  # threads of the simulated device may not survive Python's own end


if __name__ == "__main__":
    main()

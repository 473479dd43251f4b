"""The price of `isolate=True` for a step, against plain training and the default engine.

Three models, interleaved in one process, CPU time on one thread. A ratio is the median over rounds of (isolated /
other) within a round, because other work on the machine disturbs single times. The default engine's step has no tests
in it: its lots are drawn from a run whose first lots are over.

    python -m bench.isolate [--rounds 5] [--out FILE]

Writes bench/results/isolate.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import sordino as sd
from bench.models import PROBLEMS, Problem
from bench.step import processor

RESULTS = Path(__file__).parent / "results"
MODELS = {"MLP": 64, "MNIST CNN": 64, "GPT-like": 16}
RECORDS = 512
LOTS = 10_000
"""Of a run, of which a few are drawn."""


def private_step(problem: Problem, b: int, *, isolate: bool) -> Callable[[], None]:
    """Returns one private step with an optimizer: draw a lot of b records on average, clip, add noise, step."""
    torch.manual_seed(0)
    model = problem.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = problem.inputs(RECORDS), problem.targets(RECORDS)

    def loss_fn(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return problem.loss(model(x), y)

    query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))
    private = sd.Private(model, loss_fn, query, seed=0, isolate=isolate)
    lots = private.draws(TensorDataset(x, y), sd.FixedSize(b), steps=LOTS)

    def step() -> None:
        private.backward(next(lots))
        optimizer.step()

    return step


def plain_step(problem: Problem, b: int) -> Callable[[], None]:
    """Returns one step of plain training on as many records."""
    torch.manual_seed(0)
    model = problem.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = problem.inputs(RECORDS), problem.targets(RECORDS)

    def step() -> None:
        chosen = torch.randint(RECORDS, (b,))
        optimizer.zero_grad()
        problem.loss(model(x[chosen]), y[chosen]).mean().backward()
        optimizer.step()

    return step


def measure(name: str, b: int, rounds: int) -> dict[str, Any]:
    """Returns the medians of the three steps of one model, in milliseconds, and the ratios of the isolated one."""
    problem = next(problem for problem in PROBLEMS if problem.name == name)
    steps = {
        "plain": plain_step(problem, b),
        "default engine": private_step(problem, b, isolate=False),
        "isolated": private_step(problem, b, isolate=True),
    }
    # The first lots of the default engine are tested most, and its first batch is compared with autograd.
    for _ in range(8):
        steps["default engine"]()
    steps["plain"]()
    steps["isolated"]()
    times: dict[str, list[float]] = {each: [] for each in steps}
    for _ in range(rounds):
        for each, step in steps.items():
            begun = time.process_time()
            step()
            times[each].append(1000 * (time.process_time() - begun))
    to = {
        f"isolated / {other}": round(
            statistics.median(i / o for i, o in zip(times["isolated"], times[other], strict=True)), 1
        )
        for other in ("plain", "default engine")
    }
    return {"model": name, "records": b, "ms": {n: round(statistics.median(t), 2) for n, t in times.items()}, **to}


def main() -> None:
    """Measures all models and writes the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "isolate.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = [measure(name, b, args.rounds) for name, b in MODELS.items()]
    args.out.write_text(json.dumps({"processor": processor(), "rounds": args.rounds, "rows": rows}, indent=2) + "\n")
    for _row in rows:
        pass


if __name__ == "__main__":
    main()

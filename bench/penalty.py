"""The price of L2 inside the clip: a private step with the penalty over the step without it.

CPU time on one thread; the ratio is the median over rounds of the ratio within a round. `written out` is the same with
every gradient materialised (torch.func), for comparison.

    python -m bench.penalty [--rounds N] [--only NAME,NAME]

Writes bench/results/penalty.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from typing import Any

import torch

import sordino as sd
from bench.engines import batch_of, make_private_step
from bench.models import PROBLEMS, Problem
from bench.step import RESULTS
from bench.turns import ratios, time_by_turns
from sordino.per_sample import Vmap

STRENGTH = 0.01
_MODELS = ("MLP", "MNIST CNN", "CIFAR net")
_VMAP = ("MLP", "MNIST CNN")  # where its gradients fit


def measure(problem: Problem, b: int, rounds: int) -> dict[str, Any]:
    """Measures one model."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, (x, y) = problem.model(), batch_of(problem, b)
    steps = {
        "plain": make_private_step(problem, model, x, y),
        "L2 in the clip": make_private_step(problem, model, x, y, penalty=sd.L2(STRENGTH)),
    }
    if problem.name in _VMAP:
        steps["written out"] = make_private_step(problem, model, x, y, penalty=sd.L2(STRENGTH), backend=Vmap())
    for step in steps.values():
        step()
        step()
    times = time_by_turns(steps, rounds, time.process_time)
    return {
        "model": problem.name,
        "batch": b,
        "cpu ms": {name: round(1e3 * statistics.median(t), 3) for name, t in times.items()},
        "ratio": {name: round(r, 3) for name, r in ratios(times, "plain").items()},
    }


def main() -> None:
    """Measures, writes the file and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--only", default=",".join(_MODELS))
    options = parser.parse_args()
    rows = []
    for problem in PROBLEMS:
        if problem.name in options.only.split(","):
            rows.append(measure(problem, problem.batches[-1], options.rounds))
            print(json.dumps(rows[-1]), flush=True)  # noqa: T201
    result = {"python": platform.python_version(), "torch": torch.__version__, "rounds": options.rounds, "models": rows}
    (RESULTS / "penalty.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""The price of a step with several bounds on the rows that are kept for the sum.

Rows larger than the input and gradient they replace are fresh memory and a second read, and save a second product. The
bound is `keep_budget._MOST`; CPU time on one thread over the best plain layout, medians over rounds.

    python -m bench.kept_rows [--only NAME,NAME] [--rounds N]

Writes bench/results/kept_rows_KIND.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

from bench.engines import Step, batch_of, make_plain_step, make_private_step
from bench.models import PROBLEMS, Problem
from bench.real_models import REAL
from bench.step import RESULTS, kind, processor
from bench.turns import enough_rounds, ratios, steps_in_a_turn, time_by_turns
from sordino.per_sample.engine import batch_result

BOUNDS = {"0": 0, "8 MiB": 1 << 23, "64 MiB": 1 << 26, "none": 1 << 62}
_MODELS = "MNIST CNN,CIFAR net,ResNet-18,WRN-16-4,GPT-like,MiniLM,GPT-2"


def with_bound(step: Step, most: int) -> Step:
    """Returns the step with this bound on the kept rows."""

    def run() -> None:
        batch_result._MOST = most
        step()

    return run


def measure(problem: Problem, b: int, rounds: int) -> dict[str, object]:
    """Measures one model with every bound, each in a run of its own."""
    torch.manual_seed(0)
    model, (x, y) = problem.model(), batch_of(problem, b)
    engines = {"non-private": make_plain_step(problem, model, x, y)}
    if problem.images:
        engines["non-private, channels last"] = make_plain_step(problem, model, x, y, last=True)
    plain = list(engines)
    engines |= {name: with_bound(make_private_step(problem, model, x, y), most) for name, most in BOUNDS.items()}
    for step in engines.values():
        step()
    turn = steps_in_a_turn(engines["non-private"])
    times = time_by_turns(engines, enough_rounds(engines["non-private"], rounds, turn), time.process_time, turn)
    best = min(plain, key=lambda name: statistics.median(times[name]))
    found = ratios(times, best)
    return {"model": problem.name, "batch": b, **{name: round(found[name], 3) for name in BOUNDS}}


def main() -> None:
    """Measures all models, each at its largest batch."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--only", default=_MODELS, help="names of models, separated by commas")
    given.add_argument("--rounds", type=int, default=5)
    asked = given.parse_args()
    torch.set_num_threads(1)
    rows = []
    for problem in (*PROBLEMS, *REAL):
        if problem.name in asked.only.split(","):
            rows.append(measure(problem, problem.batches[-1], asked.rounds))
            print(json.dumps(rows[-1]), flush=True)  # noqa: T201
    result = {"processor": processor(), "torch": torch.__version__, "rounds": asked.rounds, "ratios": rows}
    (RESULTS / f"kept_rows_{kind()}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

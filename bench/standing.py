"""What the standing test costs: CPU time of a test over CPU time of a step, on the models of the speed table.

A run tests lot k with chance p_k (`sordino.standing.moments`), with all questions in its first hundred lots and with two
afterwards; a third of the early tests and an eighth of the later ones are made on a whole batch too. Here each of the three
is timed on one thread between steps, and the share of a run is

    share(N) = Σ_{k ≤ N} p_k · test_k / (N · step)

    python -m bench.standing [--only NAME,NAME] [--tests 8]

Writes bench/results/standing.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from bench.engines import batch_of, ours
from bench.models import PROBLEMS, Problem
from bench.step import processor
from sordino.standing import guard, moments

RESULT = Path(__file__).parent / "results" / "standing.json"
LOTS = (1000, 10_000)


class Timed:
    """Tests as they are made, timed; and made when asked for, each on a whole batch too."""

    def __init__(self) -> None:
        self.wanted: str | None = None  # the kind of test that is due at the next lot; None: no test
        self.seconds: dict[str, list[float]] = {"thorough": [], "usual": [], "whole, thorough": [], "whole, usual": []}
        self.test = guard.StandingTest.__call__

    def due(self, *_: Any) -> bool:
        """In place of the run's own coins."""
        return self.wanted is not None

    def call(self, test: Any, *args: Any, thorough: bool, extremes: int, whole: int | None = None) -> Any:
        """In place of the test."""
        kind = str(self.wanted) if whole is None else f"whole, {self.wanted}"
        start = time.process_time()
        asked = {
            "thorough": kind == "thorough",
            "extremes": extremes if self.wanted == "thorough" else 1,
            "whole": whole,
        }
        found = self.test(test, *args, **asked)
        self.seconds[kind].append(time.process_time() - start)
        return found


def expected(lots: int) -> tuple[float, float]:
    """How many tests with all questions, and how many others, a run of so many lots makes."""
    chances = [max(moments._LASTING, min(1.0, moments._DENSE / max(k, 1))) for k in range(lots)]
    return sum(chances[: guard._EARLY]), sum(chances[guard._EARLY :])


def measure(problem: Problem, b: int, tests: int) -> dict[str, Any]:
    """One row."""
    torch.manual_seed(0)
    timed = Timed()
    kept = guard.Moments.due, guard.StandingTest.__call__
    early, guard._WHOLE_EARLY = guard._WHOLE_EARLY, 1.0
    guard.Moments.due = timed.due  # type: ignore[method-assign]
    guard.StandingTest.__call__ = lambda test, *args, **kind: timed.call(test, *args, **kind)  # type: ignore[method-assign]
    try:
        step = ours(problem, problem.model(), *batch_of(problem, b), tested=True)
        for _ in range(3):
            step()
        steps = []
        for k in range(2 * tests):
            timed.wanted = None
            start = time.process_time()
            step()
            steps.append(time.process_time() - start)
            timed.wanted = "usual" if k % 2 else "thorough"
            step()
    finally:
        guard.Moments.due, guard.StandingTest.__call__ = kept  # type: ignore[method-assign]
        guard._WHOLE_EARLY = early
    one = statistics.median(steps)
    thorough, usual, whole_early, whole = (statistics.mean(each) for each in timed.seconds.values())
    shares = {}
    for lots in LOTS:
        first, later = expected(lots)
        spent = first * (thorough + early * whole_early) + later * (usual + guard._WHOLE * whole)
        shares[str(lots)] = round(spent / (lots * one), 4)
    return {
        "model": problem.name,
        "batch": b,
        "step ms": round(1e3 * one, 2),
        "test with all questions, ms": round(1e3 * thorough, 2),
        "usual test, ms": round(1e3 * usual, 2),
        "on a whole batch besides, ms": round(1e3 * whole, 2),
        "share of a run of so many lots": shares,
        "share in the long run": round(moments._LASTING * (usual + guard._WHOLE * whole) / one, 4),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--tests", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for problem in PROBLEMS:
        if not args.only or problem.name in args.only.split(","):
            rows.append(measure(problem, problem.batches[-1], args.tests))
            print(rows[-1], flush=True)  # noqa: T201
    RESULT.write_text(json.dumps({"processor": processor(), "torch": torch.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""One-run audits of an MNIST network at claimed ε = 1 and 8, with and without mistakes put in.

The network of the Opacus example (26,010 parameters), 1,000 MNIST records and 1,000 canaries of each kind by fair coins,
rate 0.1, 60 steps, bound 1.5. "no noise" trains with none and is held to the claim of the run with noise; "long clip"
lets a record reach ten bounds. "banded" runs have correlated noise of 8 bands, drawn from 8 groups in turn, and gradient
canaries only. Every run has coins, draws and noise from the operating system; no seed was chosen.

    python -m bench.one_run [--seeds 20] [--mistaken 5] [--banded 5]

Writes bench/results/one_run.json after every run, and goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import sordino as sd
from sordino.app.audits.one_run_audit import ClaimedCurves, audit_one_run
from sordino.app.runs.job import Job, assemble_job
from sordino.app.runs.settings import make_settings
from sordino.auditing.canaries import Kind
from sordino.clipping import clipping_rule

RESULTS = Path(__file__).parent / "results" / "one_run.json"
EPSILONS = (1.0, 8.0)
CANARIES = 1000


def job(epsilon: float, *, is_banded: bool = False) -> Job:
    """Returns the run that is audited."""
    given = {"records": 1000, "rate": 0.1, "steps": 60, "epsilon": epsilon, "ema": 0.0}
    if is_banded:
        settings = make_settings("mnist-opacus-1", {**given, "method": "banded"}, {"bands": 8, "groups": 8})
    else:
        settings = make_settings("mnist-opacus-1", given)
    return assemble_job(settings, lambda _: None)


@contextmanager
def mistake(name: str) -> Iterator[None]:
    """Makes clipping ten times too long inside, if that mistake is asked for."""
    right = clipping_rule.bound_weights

    def longer(weights: Any, norms: Any, *rest: Any) -> Any:
        return torch.clamp(10 * right(weights, norms, *rest), max=1.0)

    if name == "long clip":
        clipping_rule.bound_weights = longer  # type: ignore[assignment]
    try:
        yield
    finally:
        clipping_rule.bound_weights = right  # type: ignore[assignment]


def main() -> None:
    """Measures what is missing in the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--mistaken", type=int, default=5)
    parser.add_argument("--banded", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    found |= {"python": platform.python_version(), "torch": torch.__version__, "canaries": CANARIES}
    runs = found.setdefault("runs", [])
    times = {"right": asked.seeds, "no noise": asked.mistaken, "long clip": asked.mistaken}
    times |= {"right, banded": asked.banded, "no noise, banded": asked.banded}
    wanted = [(epsilon, name, k) for name, n in times.items() for k in range(n) for epsilon in EPSILONS]
    made: dict[tuple[float, bool], tuple[Job, ClaimedCurves]] = {}
    for epsilon, name, number in wanted:
        if any((run["epsilon"], run["name"], run["number"]) == (epsilon, name, number) for run in runs):
            continue
        is_banded = "banded" in name
        if (epsilon, is_banded) not in made:
            work = job(epsilon, is_banded=is_banded)
            event, delta = work.event(), work.settings.recipe.delta
            made[epsilon, is_banded] = (
                work,
                ClaimedCurves.from_event(event, sd.accounting.PLD().epsilon(event, delta), delta),
            )
        work, claimed = made[epsilon, is_banded]
        # A run without noise is held to the claim of the run with it.
        without: Any = sd.Correlated(0.0, sd.Banded(8)) if is_banded else sd.Gaussian(0.0)
        silent = sd.NoisySum(sd.Flat(work.settings.recipe.bound), without) if name.startswith("no noise") else None
        began = time.process_time()
        with mistake(name):
            kinds: tuple[Kind, ...] = ("gradient",) if is_banded else ("gradient", "noise")
            audited = audit_one_run(work, CANARIES, kinds, claimed=claimed, query=silent, gradient_evaluations=10)
        runs.append({"epsilon": epsilon, "name": name, "number": number, "multiplier": work.multiplier,
                     "cpu_seconds": round(time.process_time() - began, 2), **audited.table()})  # fmt: skip
        runs[-1]["epsilon"] = epsilon
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

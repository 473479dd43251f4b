"""Kills one rank of a distributed run at random moments and resumes with another number of ranks.

    python -m bench.killed_ranks --kills 20        # result in bench/results/killed_ranks.json
    python -m bench.killed_ranks --divided         # bench/results/killed_ranks_divided.json

Replicated: `sordino train`, resumed by `sordino resume`. Divided: a script whose model `fully_shard` divides among the
ranks, resumed from checkpoints of torch.distributed.checkpoint (`tests/distributed/divided_run.py`). Both come to the
parameters of a run that nobody disturbed, bit by bit; the second after every step, those that were made twice too.
Processes are started as launchers do, by the environment alone.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.app.runs import write_ahead
from sordino.app.runs.directory import MODEL
from sordino.kernels.processor import processor_name
from tests.distributed import divided_run
from tests.distributed.killed import QUIET, ended, reached, start

STEPS = 200
TRAIN = ["train", "spiral", "--steps", str(STEPS), "--records", "500", "--seed", "0", "--checkpoint-every", "20"]
SCRIPT = "tests.distributed.divided_run"
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Kind:
    """How a run is started, how far it has come, and what it came to."""

    name: str
    what: str
    begin: Callable[[Path], list[str]]
    go_on: Callable[[Path], list[str]]
    module: str
    reached: Callable[[Path], int]
    came_to: Callable[[Path], Any]
    facts: Callable[[Path], dict[str, Any]]


REPLICATED = Kind(
    "killed_ranks",
    f"spiral, 500 records, {STEPS} steps, a checkpoint every 20",
    lambda run: [*TRAIN, *QUIET, "--out", str(run)],
    lambda run: ["resume", str(run), *QUIET],
    "sordino",
    reached,
    lambda run: (run / MODEL).read_bytes(),
    lambda run: {"steps_left_out": write_ahead.read_entries(run).lineage},
)
DIVIDED = Kind(
    "killed_ranks_divided",
    f"linear layers of 6-8-2 divided by fully_shard, {STEPS} steps, a checkpoint every {divided_run.EVERY}",
    lambda run: [str(run), str(STEPS)],
    lambda run: [str(run), str(STEPS)],
    SCRIPT,
    divided_run.reached,
    divided_run.came_to,
    lambda run: {"steps_made": divided_run.made(run), "steps": len(divided_run.came_to(run))},
)


def main() -> None:
    """Runs, kills, resumes and compares the result with an undisturbed run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--divided", action="store_true", help="a model that fully_shard divides")
    given = parser.parse_args()
    kind, kills = DIVIDED if given.divided else REPLICATED, given.kills
    chance, left = random.Random(0), []
    with tempfile.TemporaryDirectory() as name:
        run, whole = Path(name) / "run", Path(name) / "whole"
        if given.divided:
            run.mkdir()
            whole.mkdir()
        assert ended(start(2, kind.begin(whole), kind.module)) == [0, 0], "a run of two ranks"
        command, began = kind.begin(run), time.monotonic()
        for number in range(kills):
            size = chance.choice([2, 3])
            processes = start(size, command, kind.module)
            moment = max(kind.reached(run), int(0.9 * STEPS * chance.uniform(number, number + 1) / kills))
            while kind.reached(run) < moment and all(process.poll() is None for process in processes):
                time.sleep(0.002)
            time.sleep(chance.random() * 0.2)
            victim = chance.randrange(size)
            processes[victim].send_signal(signal.SIGKILL)
            codes = ended(processes)
            left.append({"ranks": size, "killed": victim, "others_ended": all(codes), "step": kind.reached(run)})
            command = kind.go_on(run)
        last = chance.choice([1, 2, 3])
        assert ended(start(last, command, kind.module)) == [0] * last, "the rest of the run"
        same, facts = kind.came_to(run) == kind.came_to(whole), kind.facts(run)
    result = {
        "what": f"{kind.what}, one rank of 2 or 3 killed {kills} times, ended by {last}",
        "processor": processor_name(),
        "kills": left,
        "same_bits": same,
        **facts,
        "seconds": round(time.monotonic() - began),
    }
    (RESULTS / f"{kind.name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: value for name, value in result.items() if name != "kills"}, indent=1))  # noqa: T201


if __name__ == "__main__":
    main()

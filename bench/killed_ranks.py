"""kill -9 of one rank at random moments of a run, which goes on with another number of ranks each time.

    python -m bench.killed_ranks --kills 20        # result in bench/results/killed_ranks.json

The run comes to the parameters of one that nobody disturbed, bit by bit. Processes are started as launchers do, by the
environment alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import signal
import tempfile
import time
from pathlib import Path

from sordino.runs import write_ahead
from sordino.runs.directory import MODEL
from sordino.runs.environment import processor
from tests.ranks.killed import QUIET, ended, reached, start

STEPS = 200
TRAIN = ["train", "spiral", "--steps", str(STEPS), "--records", "500", "--seed", "0", "--checkpoint-every", "20"]
RESULT = Path(__file__).parent / "results" / "killed_ranks.json"


def main() -> None:
    """Run, kill, go on, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    kills = parser.parse_args().kills
    chance, left = random.Random(0), []
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        assert ended(start(2, [*TRAIN, *QUIET, "--out", str(Path(name) / "two")])) == [0, 0], "a run of two ranks"
        wanted = _digest(Path(name) / "two" / MODEL)
        command, began = [*TRAIN, *QUIET, "--out", str(run)], time.monotonic()
        for number in range(kills):
            size = chance.choice([2, 3])
            processes = start(size, command)
            moment = max(reached(run), int(0.9 * STEPS * chance.uniform(number, number + 1) / kills))
            while reached(run) < moment and all(process.poll() is None for process in processes):
                time.sleep(0.002)
            time.sleep(chance.random() * 0.2)
            victim = chance.randrange(size)
            processes[victim].send_signal(signal.SIGKILL)
            codes = ended(processes)
            left.append({"ranks": size, "killed": victim, "others_ended": all(codes), "step": reached(run)})
            command = ["resume", str(run), *QUIET]
        last = chance.choice([1, 2, 3])
        assert ended(start(last, command)) == [0] * last, "the rest of the run"
        lineage = write_ahead.entered(run).lineage
        found = _digest(run / MODEL)
    result = {
        "what": f"spiral, 500 records, {STEPS} steps, one rank of 2 or 3 killed {kills} times, ended by {last}",
        "processor": processor(),
        "kills": left,
        "same_bits": found == wanted,
        "steps_left_out": lineage,
        "seconds": round(time.monotonic() - began),
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: value for name, value in result.items() if name != "kills"}, indent=1))  # noqa: T201


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()

"""Kills a run at random moments, resumes it, and checks for the same bits and no smaller ledger.

    python -m bench.resilience --recipe mnist --kills 20        # make resilience; result in bench/results/resilience.json

Moments are spread over the run's steps, each with a random delay after it, so that they fall into steps, evaluations and
the writing of checkpoints; every fifth falls into the start of a process, before or while it reads the checkpoint.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sordino.app.runs import directory

COMMAND = [sys.executable, "-m", "sordino.app.cli.main"]
_POLL = 0.002
_PATIENCE = 600.0


def run_undisturbed(arguments: list[str], folder: Path) -> dict[str, Any]:
    """Makes a run from beginning to end and returns the JSON object it ends with."""
    done = subprocess.run(
        [*COMMAND, "train", *arguments, "--json", "--out", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run_disturbed(
    arguments: list[str], folder: Path, steps: int, kills: int, seed: int, linger: float = 0.5
) -> tuple[dict[str, Any], list[Any]]:
    """Makes a run that is killed `kills` times; returns what it ends with, and what each kill left.

    A kill comes up to `linger` s after a random step.

    The steps lie in the first nine tenths, so that a short run is not over before it is killed.
    """
    moments, marks = random.Random(seed), []
    command = [*COMMAND, "train", *arguments, "--json", "--out", str(folder)]
    for number in range(kills):
        target = int(0.9 * steps * moments.uniform(number, number + 1) / kills)
        early = number % 5 == 4
        marks.append(_run_and_kill(command, folder, target, moments, early, linger))
        command = [*COMMAND, "resume", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1])), marks


def _run_and_kill(
    command: list[str], folder: Path, target: int, moments: random.Random, early: bool, linger: float
) -> dict[str, Any]:
    """Starts a process, kills it at a chosen moment, and returns what it left."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    start = time.monotonic()
    if early:
        time.sleep(moments.uniform(0.0, 5.0))
    else:
        before = last_step_entered(folder)
        while process.poll() is None and last_step_entered(folder) < max(target, before + 1):
            if time.monotonic() - start > _PATIENCE:
                raise RuntimeError(f"no step {target} within {_PATIENCE:.0f} s")
            time.sleep(_POLL)
        time.sleep(moments.uniform(0.0, linger))
    alive = process.poll() is None
    process.send_signal(signal.SIGKILL)
    _, said = process.communicate()
    if not alive and process.returncode:
        raise RuntimeError(said.decode())
    found = directory.list_checkpoints(folder / "checkpoints")
    return {
        "early": early,
        "running": alive,
        "checkpoint": int(found[0].name.removeprefix("step-")) if found else None,
        "may have been released": released_below(folder),
        "half-written": sorted(path.name for path in folder.rglob(".part-*")),
        "seconds": round(time.monotonic() - start, 2),
    }


def entries(folder: Path) -> list[dict[str, Any]]:
    """Returns the complete lines of the write-ahead ledger."""
    path = folder / "ledger.jsonl"
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def last_step_entered(folder: Path) -> int:
    """Returns the last step whose parameters were entered."""
    return max((entry["step"] for entry in entries(folder) if "step" in entry), default=0)


def released_below(folder: Path) -> int:
    """Returns the step below which something may have been released."""
    return next((entry["upto"] for entry in reversed(entries(folder)) if "upto" in entry), 0)


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def are_same(one: Path, other: Path) -> dict[str, bool]:
    """Returns whether two runs came to the same result."""
    last = [directory.list_checkpoints(run / "checkpoints")[0] for run in (one, other)]
    state = [json.loads((path / "state.json").read_text())["state"] for path in last]
    for each in state:
        # How many lots were tested is not compared: a process that goes on tests the first lot it meets once more.
        del each["private"]["tested"], each["private"]["ledger"]["counts"]
    return {
        "parameters": digest(one / "model.safetensors") == digest(other / "model.safetensors"),
        "optimizer and average": digest(last[0] / "tensors.safetensors") == digest(last[1] / "tensors.safetensors"),
        **{f"private: {key}": value == state[1]["private"].get(key) for key, value in state[0]["private"].items()},
    }


def main() -> None:
    """Makes both runs and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="mnist")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=640)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "resilience.json")
    given, more = parser.parse_known_args()
    arguments = [given.recipe, "--steps", str(given.steps), "--seed", str(given.seed), *more]
    folder = Path(tempfile.mkdtemp(prefix="resilience-"))
    try:
        calm = run_undisturbed(arguments, folder / "calm")
        print(f"undisturbed: {calm['seconds']:.1f} s, test accuracy {calm['test_accuracy']:.2%}", flush=True)  # noqa: T201
        end, marks = run_disturbed(arguments, folder / "killed", given.steps, given.kills, given.seed)
        equal = are_same(folder / "calm", folder / "killed")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result = {
        "recipe": given.recipe,
        "steps": given.steps,
        "arguments": more,
        "seed": given.seed,
        "kills": marks,
        "kills while running": sum(mark["running"] for mark in marks),
        "same": equal,
        "epsilon": {"undisturbed": calm["claim"].get("epsilon"), "killed": end["claim"].get("epsilon")},
        "test_accuracy": {"undisturbed": calm["test_accuracy"], "killed": end["test_accuracy"]},
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
    }
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: result[key] for key in ("kills while running", "same", "epsilon", "test_accuracy")}))  # noqa: T201
    if not all(equal.values()):
        sys.exit("the killed run is not the undisturbed one")


if __name__ == "__main__":
    main()

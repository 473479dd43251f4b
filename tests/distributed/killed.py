"""A rank of `sordino train` is killed at a random moment, and the run goes on with another number of ranks."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from sordino.app.runs import write_ahead
from sordino.app.runs.directory import MODEL

STEPS = 60
TRAIN = ["train", "spiral", "--steps", str(STEPS), "--records", "500", "--seed", "0", "--checkpoint-every", "15"]
QUIET = ["--no-report", "--json"]
PATIENCE = 240.0


def start(size: int, arguments: list[str], module: str = "sordino") -> list[subprocess.Popen[bytes]]:
    """As a launcher does: so many processes, told by the environment who they are; of the command one is told nothing."""
    alone = size == 1 and module == "sordino"
    made = []
    for told in [{}] if alone else environments(size):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **told}
        command = [sys.executable, "-m", module, *arguments]
        made.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    return made


def environments(size: int) -> list[dict[str, str]]:
    """What a launcher tells each of so many ranks on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


def ended(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    """Their exit codes; none waits for a dead one for ever."""
    return [process.wait(timeout=PATIENCE) for process in processes]


def undisturbed(folder: Path, size: int) -> bytes:
    """The parameters that a run of so many ranks comes to."""
    assert ended(start(size, [*TRAIN, *QUIET, "--out", str(folder)])) == [0] * size
    return (folder / MODEL).read_bytes()


def killed(folder: Path, size: int, after: int, chance: random.Random) -> tuple[int, int, int]:
    """Kill one of `size` ranks somewhere in the run, go on with `after`: who was killed, and at which step."""
    shutil.rmtree(folder, ignore_errors=True)
    processes = start(size, [*TRAIN, *QUIET, "--out", str(folder)])
    moment, victim, until = chance.randrange(1, STEPS - 1), chance.randrange(size), time.monotonic() + PATIENCE
    while reached(folder) < moment and time.monotonic() < until:
        time.sleep(0.002)
    time.sleep(chance.random() * 0.05)
    processes[victim].send_signal(signal.SIGKILL)
    ended(processes)
    here = reached(folder)
    assert ended(start(after, ["resume", str(folder), *QUIET])) == [0] * after
    return victim, moment, here


def reached(folder: Path) -> int:
    """The last step that was entered."""
    if not (folder / write_ahead.NAME).exists():
        return -1
    return (
        max(write_ahead.read_entries(folder).digests, default=-1) if (folder / write_ahead.NAME).stat().st_size else -1
    )

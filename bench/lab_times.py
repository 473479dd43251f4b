"""Measures how long the lab takes from an empty cache, in two processes.

    python -m bench.lab_times

The commands are `sordino lab run seconds` and `sordino lab run --all --quick`. Data and frozen features are taken from
where they are; trainings are all made anew. Kept are the wall time, the CPU time of all processes together, which
other work on the machine disturbs less, and the CPU seconds of each id with all its trainings, as if it were run
alone. Writes bench/results/lab_times.json.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sordino.app.data.cache import cache_folder
from sordino.kernels.processor import processor_name

RESULTS = Path(__file__).parent / "results" / "lab_times.json"
RUNS = {"seconds": ["seconds"], "all, quick": ["--all", "--quick"]}


def empty_cache(folder: Path) -> Path:
    """Returns a cache folder without runs; everything else is the user's."""
    folder.mkdir(parents=True)
    for one in cache_folder().iterdir():
        if one.name != "lab":
            (folder / one.name).symlink_to(one)
    return folder


def time_command(words: list[str], folder: Path) -> dict[str, Any]:
    """Runs one command with an empty cache and returns its times."""
    environment = {**os.environ, "SORDINO_CACHE": str(empty_cache(folder / "cache")), "OMP_NUM_THREADS": "1"}
    before, begun, load = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), os.getloadavg()[0]
    command = [
        sys.executable,
        "-m",
        "sordino.app.cli.main",
        "lab",
        "run",
        *words,
        "--no-browser",
        "--out",
        str(folder / "out"),
    ]
    subprocess.run([*command, "--processes", "2"], env=environment, check=True)
    wall, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    ids = {one.stem: json.loads(one.read_text())["seconds"] for one in sorted((folder / "out").glob("*.json"))}
    return {
        "wall s": round(wall),
        "cpu s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime),
        "load before": round(load, 1),
        "ids": len(ids),
        "longest": max(ids, key=lambda name: ids[name]),
        "longest, cpu s": max(ids.values()),
        "cpu s of each": ids,
    }


def main() -> None:
    """Measures both commands, one after the other."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="sordino-lab-times-"))
    kept: dict[str, Any] = {"processor": processor_name(), "cores": os.cpu_count(), "processes": 2}
    for k, (name, words) in enumerate(RUNS.items()):
        kept[name] = time_command(words, folder / str(k))
        RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
        print(name, {key: value for key, value in kept[name].items() if key != "cpu s of each"}, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

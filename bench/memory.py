"""Peak memory of a training step, each engine in a process of its own.

The peak is the highest resident set during steps after the first, less what the process had with model, batch and
optimizer in place, plus the model itself; memory the allocator keeps is included, as it is for everybody.

    python -m bench.memory [--real] [--quick] [--only NAME;NAME]

Writes bench/results/memory.json and memory.md; with --real, models of transformers in place of our eight, memory_real.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.metadata
import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

from bench.models import PROBLEMS
from bench.real_models import REAL
from bench.step import processor

RESULTS = Path(__file__).parent / "results"
ENGINES = ("non-private", "sordino", "sordino, whole lots", "opacus hooks", "opacus ghost", "opacus ew")
_STEPS = 3
_ROOM = 4e9  # bytes a peer may take for the gradients it writes out
_EVERY = 0.0005  # seconds between looks at the resident set
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Returns the bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def peak(name: str, engine: str, b: int) -> int:
    """Returns the highest resident set of a few steps, above what was there before the first one."""
    import torch

    from bench import engines

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    problem = next(p for p in (*PROBLEMS, *REAL) if p.name == name)
    torch.manual_seed(0)
    model = problem.model()
    small, whole = engines.batch_of(problem, 4), engines.batch_of(problem, b)
    makers: dict[str, Any] = {
        "non-private": engines.make_plain_step,
        "sordino": engines.make_private_step,
        "sordino, whole lots": lambda *a: engines.make_private_step(*a, chunk=len(a[2])),
        **{f"opacus {m}": lambda *a, m=m: engines.make_opacus_step(*a, mode=m) for m in ("hooks", "ghost", "ew")},
    }

    def made(batch: tuple[Any, ...]) -> engines.Step:
        step: engines.Step = makers[engine](problem, model, *batch)
        return engines.with_autocast(step) if problem.autocast else step

    if engine != "opacus ew":
        made(small)()  # code and libraries are in memory before the measurement
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # and nothing else of it is
    step = made(whole)
    before, highest, done = resident(), 0, threading.Event()
    step()  # choices and checks of a first batch are made once; the peak of training is wanted

    def watch() -> None:
        nonlocal highest
        while not done.wait(_EVERY):
            highest = max(highest, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(_STEPS):
        step()
    done.set()
    watcher.join()
    return highest - before + sum(p.nbytes for p in model.parameters())


def main() -> None:
    """Measures each engine in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without the peers")
    parser.add_argument("--real", action="store_true", help="models of transformers in place of our eight")
    parser.add_argument("--only", default="", help="names of models, separated by semicolons")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(peak(options.one[0], options.one[1], int(options.one[2])))  # noqa: T201
        return
    rows: list[dict[str, Any]] = []
    for problem in REAL if options.real else PROBLEMS:
        if options.only and problem.name not in options.only.split(";"):
            continue
        b, found = problem.batches[0], dict[str, float]()
        rows_bytes = b * sum(p.nbytes for p in problem.model().parameters())
        for engine in ENGINES[: 3 if options.quick else None]:
            if rows_bytes > _ROOM and engine in ("opacus hooks", "opacus ew"):
                continue
            command = [sys.executable, "-m", "bench.memory", "--one", problem.name, engine, str(b)]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            if ran.returncode == 0:
                found[engine] = round(int(ran.stdout.split()[-1]) / 1e6, 1)
        rows.append({"model": problem.name, "batch": b, "peak MB": found})
        print(rows[-1], flush=True)  # noqa: T201
    RESULTS.mkdir(exist_ok=True)
    out = RESULTS / f"memory{'_real' if options.real else ''}.json"
    result = {"processor": processor(), "torch": importlib.metadata.version("torch"), "rows": rows}
    out.write_text(json.dumps(result, indent=1) + "\n")
    lines = [
        f"{result['processor']}, torch {result['torch']}, one run",
        "",
        "| model (batch), peak MB | " + " | ".join(ENGINES) + " | sordino / non-private | whole lots |",
        "|---" * (len(ENGINES) + 3) + "|",
    ]
    for row in rows:
        mb = row["peak MB"]
        cells = " | ".join(str(mb.get(engine, "—")) for engine in ENGINES)
        lines.append(
            f"| {row['model']} ({row['batch']}) | {cells} | {mb['sordino'] / mb['non-private']:.2f} "
            f"| {mb['sordino, whole lots'] / mb['non-private']:.2f} |"
        )
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))  # noqa: T201


if __name__ == "__main__":
    main()

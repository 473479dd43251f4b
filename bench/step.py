"""The price of a private training step: every engine on eight models, interleaved.

CPU time on one thread is the figure that counts, since other work on the machine disturbs a wall clock; ratios are medians
over rounds of (engine / best non-private layout) within a round. Wall time on two threads is given for the main engines.
Engines take turns, and a turn is a burst of steps where those are short (`bench.turns` says why); with `--single` it is one
step, as in tables made before.

Every engine takes its batch out of the data by index within its step, the same rows for all; ours draws them as well.

    python -m bench.step [--real] [--quick] [--single] [--only NAME,NAME] [--out FILE]

Writes bench/results/step_KIND.json, .md, .png and .svg, KIND being the processor's (avx2, avx512), or the name given; with
--real, models of transformers in place of our eight, step_real_KIND.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from bench.engines import MODES, all_engines, norm_engines
from bench.models import PROBLEMS, Problem
from bench.real_models import REAL
from bench.turns import BURST, enough_rounds, ratios, steps_in_a_turn, time_by_turns

RESULTS = Path(__file__).parent / "results"
_NORMS = ("MLP", "MNIST CNN", "CIFAR net")


def processor() -> str:
    """Returns the processor's name and the vectors that torch uses on it."""
    known = Path("/proc/cpuinfo")
    names = (
        [line.split(":", 1)[1].strip() for line in known.read_text().splitlines() if line.startswith("model name")]
        if known.exists()
        else []
    )
    return f"{names[0] if names else platform.processor() or platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def kind() -> str:
    """Returns the kind of processor for the names of files: what torch uses of it."""
    return torch.backends.cpu.get_cpu_capability().lower().replace(" ", "_")


def measure(problem: Problem, b: int, rounds: int, peers: tuple[str, ...], burst: float = BURST) -> dict[str, Any]:
    """Returns one row of the table."""
    torch.set_num_threads(1)
    steps = all_engines(problem, b, peers=peers)
    turn = steps_in_a_turn(steps["non-private"], burst)
    cpu = time_by_turns(steps, enough_rounds(steps["non-private"], rounds, turn), time.process_time, turn)
    plain = [name for name in cpu if name.startswith("non-private")]
    best = min(plain, key=lambda name: statistics.median(cpu[name]))
    by_cpu = ratios(cpu, best)
    peers = [name for name in cpu if name.startswith("opacus")]
    peer = min(peers, key=lambda name: by_cpu[name]) if peers else None
    torch.set_num_threads(2)
    few = {name: steps[name] for name in (*plain, "sordino", *([peer] if peer else [])) if name in steps}
    for step in few.values():
        step()
    wall = time_by_turns(few, enough_rounds(steps["non-private"], max(3, rounds // 2), turn), time.perf_counter, turn)
    best_wall = min(plain, key=lambda name: statistics.median(wall[name]))
    del steps, few
    gc.collect()
    return {
        "model": problem.name,
        "batch": b,
        "target": problem.target,
        "best non-private": best,
        "best opacus": peer,
        "cpu ms, one thread": {name: round(1e3 * statistics.median(t), 3) for name, t in cpu.items()},
        "cpu ratio": {name: round(r, 3) for name, r in by_cpu.items()},
        "wall ratio, two threads": {name: round(r, 3) for name, r in ratios(wall, best_wall).items()},
        "rounds": {name: len(t) for name, t in cpu.items()},
        "steps in a turn": turn,
    }


def measure_norms(problem: Problem, b: int, rounds: int) -> dict[str, Any]:
    """Returns the samples per second and core of a norms-only pass."""
    torch.set_num_threads(1)
    steps = norm_engines(problem, b)
    for step in steps.values():
        step()
        step()
    plain = steps["non-private forward and backward"]
    turn = steps_in_a_turn(plain)
    times = time_by_turns(steps, enough_rounds(plain, rounds, turn), time.process_time, turn)
    return {
        "model": problem.name,
        "batch": b,
        "samples per second": {name: round(b / statistics.median(t)) for name, t in times.items()},
    }


def table(result: dict[str, Any]) -> str:
    """Returns the results as a Markdown table."""
    lines = [
        f"{result['processor']}, torch {result['torch']}, {result['rounds']} rounds",
        "",
        "| model (batch) | non-private ms | sordino / non-private | without noise | target | best Opacus / non-private "
        "| gain | vmap | two threads |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["steps"]:
        r, peer = row["cpu ratio"], row["best opacus"]
        gain = f"{r[peer] / r['sordino']:.1f}×" if peer else "—"
        opacus = f"{r[peer]:.2f} ({peer.removeprefix('opacus ')})" if peer else "—"
        vmap = f"{r['torch.func vmap']:.1f}" if "torch.func vmap" in r else "—"
        two = row.get("wall ratio, two threads", {}).get("sordino")
        ms = row["cpu ms, one thread"][row["best non-private"]]
        lines.append(
            f"| {row['model']} ({row['batch']}) | {ms:.1f} | **{r['sordino']:.2f}** | {r['sordino without noise']:.2f} | "
            f"{row['target']} | {opacus} | {gain} | {vmap} | {f'{two:.2f}' if two else '—'} |"
        )
    note = ["", result["note"]] if "note" in result else []
    if not result["norms"]:
        return "\n".join(lines + note) + "\n"
    lines += [
        "",
        "| norms only (batch), samples/s/core | " + " | ".join(result["norms"][0]["samples per second"]) + " |",
    ]
    lines.append("|---" * (1 + len(result["norms"][0]["samples per second"])) + "|")
    for row in result["norms"]:
        lines.append(
            f"| {row['model']} ({row['batch']}) | "
            + " | ".join(f"{v:,}" for v in row["samples per second"].values())
            + " |"
        )
    return "\n".join(lines + note) + "\n"


def picture(result: dict[str, Any], path: Path) -> None:
    """Draws the time of each engine over the best non-private layout as bars."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = result["steps"]
    figure, axes = plt.subplots(figsize=(9, 0.55 * len(rows) + 1.6))
    for k, row in enumerate(rows):
        r, peer = row["cpu ratio"], row["best opacus"]
        bars = [("sordino", r["sordino"], "#1b7f5c")]
        bars += [("best Opacus mode", r[peer], "#c7522a")] if peer else []
        bars += [("torch.func vmap", r["torch.func vmap"], "#8a8a8a")] if "torch.func vmap" in r else []
        for j, (label, value, colour) in enumerate(bars):
            axes.barh(k + 0.27 * (j - 1), value, 0.25, color=colour, label=label if k == 0 else None)
            axes.text(max(1.0, value) * 1.03, k + 0.27 * (j - 1), f"{value:.2f}", va="center", fontsize=7)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.text(1.02, -0.65, "plain PyTorch", fontsize=8)
    axes.set_xscale("log")
    ticks = (0.5, 1, 2, 5, 10, 20, 50, 100)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_formatter("")
    axes.set_yticks(range(len(rows)), [f"{row['model']} ({row['batch']})" for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("CPU time of a full private step / best non-private layout, one thread")
    axes.legend(loc="lower right", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=150)


def main() -> None:
    """Measures, writes the files and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three rounds, the largest batch only")
    parser.add_argument("--only", default="", help="names of models, separated by commas; or by semicolons")
    parser.add_argument("--out", default="", help="name of the result files")
    parser.add_argument("--real", action="store_true", help="models of transformers in place of our eight")
    parser.add_argument("--peers", default=",".join(MODES), help="which of Opacus's modes and vmap to run")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--single", action="store_true", help="turns of one step")
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # the peers'
    rounds = options.rounds or (3 if options.quick else 11)
    named = [name.strip() for name in options.only.split(";" if ";" in options.only else ",") if name]
    chosen = [p for p in (REAL if options.real else PROBLEMS) if not named or p.name in named]
    options.out = options.out or f"step{'_real' if options.real else ''}_{kind()}"
    result: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": processor(),
        "rounds": rounds,
        "quick": options.quick,
        "steps": [],
        "norms": [],
    }
    RESULTS.mkdir(exist_ok=True)
    peers = tuple(filter(None, options.peers.split(",")))
    path = RESULTS / f"{options.out}.json"
    for problem in chosen:
        if problem.name in _NORMS:
            result["norms"].append(measure_norms(problem, problem.batches[-1], max(5, rounds)))
        for b in problem.batches[-1:] if options.quick else problem.batches:
            row = measure(problem, b, rounds, peers, 0.0 if options.single else BURST)
            result["steps"].append(row)
            print(row["model"], b, json.dumps(row["cpu ratio"]), flush=True)  # noqa: T201
            path.write_text(json.dumps(result, indent=1) + "\n")
    path.with_suffix(".md").write_text(table(result))
    print(table(result))  # noqa: T201
    picture(result, path)


if __name__ == "__main__":
    main()

"""Writes the tables of speed, memory and accuracy on the pages, from bench/results.

    python -m bench.tables

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. A test fails when it differs from the results.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import mean, median
from typing import Any

from bench.step import RESULTS, table

ROOT = Path(__file__).parent.parent
PAGES = tuple(
    ROOT / name for name in ("README.md", "docs/benchmarks.md", "docs/engine_measurements.md", "docs/from_opacus.md")
)
TASKS = {
    "mnist": "MNIST, from scratch",
    "fashion-mnist": "Fashion-MNIST, from scratch",
    "cifar10": "CIFAR-10, no other data",
    "cifar10-imagenet": "CIFAR-10, public ImageNet features",
    "adult": "Adult, a table of 32,561 people",
}
"""What the table of accuracies calls each recipe."""
_MARKED = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def _result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def _compare_cells(row: dict[str, Any] | None) -> str:
    """Returns the cells for ours, for the best peer, and for how much faster we are."""
    if row is None:
        return "— | — | —"
    ratio, peer = row["cpu ratio"], row["best opacus"]
    if peer is None:
        return f"**{ratio['sordino']:.2f}** | — | —"
    mode, gain = peer.removeprefix("opacus "), ratio[peer] / ratio["sordino"]
    return f"**{ratio['sordino']:.2f}** | {ratio[peer]:.2f} ({mode}) | {gain:.1f}×"


def price() -> str:
    """Returns the table of the largest batch of every model, by kind of processor."""
    both = [{row["model"]: row for row in _result(f"step_{kind}")["steps"]} for kind in ("avx2", "avx512")]
    both[1] |= {row["model"]: row for row in _result("step_real_avx512")["steps"]}
    head = "sordino / plain | best Opacus / plain | gain"
    lines = [f"| model (batch) | AVX2: {head} | AVX-512: {head} |", "|---" * 7 + "|"]
    for name, row in (both[0] | both[1]).items():
        lines.append(
            f"| {name} ({row['batch']}) | " + " | ".join(_compare_cells(rows.get(name)) for rows in both) + " |"
        )
    return "\n".join(lines) + "\n"


def accuracy() -> str:
    """Returns the table of test accuracies, by recipe and ε: the mean over the seeds that were run."""
    results = _result("accuracy")
    lines = ["| task | ε = 1 | ε = 2 | ε = 3 |", "|---|---|---|---|"]
    for recipe, task in TASKS.items():
        cells = []
        for epsilon in (1, 2, 3):
            runs = results.get(f"{recipe} ε={epsilon}", {"runs": []})["runs"]
            cells.append(f"{100 * mean(run['accuracy'] for run in runs):.2f}" if runs else "")
        lines.append(f"| {task} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def opacus(kind: str) -> str:
    """Returns the table of every batch beside Opacus."""
    lines = [
        "| model (batch) | plain step, ms | sordino / plain | best Opacus mode / plain | Opacus / sordino |",
        "|---|---|---|---|---|",
    ]
    for row in _result(f"step_{kind}")["steps"]:
        plain = row["cpu ms, one thread"][row["best non-private"]]
        lines.append(f"| {row['model']} ({row['batch']}) | {plain:.1f} | {_compare_cells(row)} |")
    return "\n".join(lines) + "\n"


def whole_runs() -> str:
    """Returns the table of whole runs: the price of everything, and in brackets that of the steps alone."""
    rows = _result("whole_run")["rows"]
    lengths = sorted({row["lots"] for row in rows})
    lines = [
        "| model (lot) | " + " | ".join(f"{lots:,} lots" for lots in lengths) + " |",
        "|---" * (1 + len(lengths)) + "|",
    ]
    for name, lot in dict.fromkeys((row["model"], row["lot"]) for row in rows):
        cells = []
        for lots in lengths:
            found = [row for row in rows if (row["model"], row["lots"]) == (name, lots)]
            whole, steps = (median(row[key] for row in found) if found else 0 for key in ("ratio", "training ratio"))
            cells.append(f"{whole:.2f} ({steps:.2f})" if found else "—")
        lines.append(f"| {name} ({lot}) | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def table_block(name: str) -> str:
    """Returns the table of this name."""
    if name == "price":
        return price()
    if name == "whole_runs":
        return whole_runs()
    if name == "accuracy":
        return accuracy()
    if name.startswith("opacus_"):
        return opacus(name.removeprefix("opacus_"))
    if name.startswith("memory"):
        return (RESULTS / f"{name}.md").read_text()
    return table(_result(name))


def page_with_tables(page: Path) -> str:
    """Returns the page with its tables as the results have them."""
    return _MARKED.sub(lambda found: f"{found[1]}{table_block(found[2])}{found[4]}", page.read_text())


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(page_with_tables(each))

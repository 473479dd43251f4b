"""Compares certified bounds with independent oracles on random settings of every kind of event.

    nice python bench/accounting_sweep.py                 4,400 settings; goes on where it was stopped
    python bench/accounting_sweep.py --numbers 100        fewer

Each number is one random event, compared at two δ between 1e-12 and 0.1 and at two ε of that size. No upper bound may
be below the truth, no lower bound above it. `tests/accounting/oracle.py` computes the truth by contour integrals,
enumeration and quadrature; `tests/accounting/settings.py` draws the events. Every comparison is appended to
`accounting_sweep.jsonl` beside the results as it is made; the summary is `bench/results/accounting_sweep.json`.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
import sys  # noqa: E402
from collections import defaultdict  # noqa: E402
from dataclasses import asdict  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.accounting.settings import compare  # noqa: E402

SEED = 23
RESULTS = ROOT / "bench" / "results" / "accounting_sweep.json"


def run(numbers: int, progress: Path, part: int, parts: int) -> None:
    """Compares the settings that are not in the progress file yet."""
    done = {record["number"] for record in read(progress)}
    with progress.open("a", encoding="utf-8") as file:
        for number in range(part, numbers, parts):
            if number in done:
                continue
            try:
                outcomes = [asdict(outcome) for outcome in compare(SEED, number)]
            except Exception as error:  # a setting that raises is a finding
                outcomes = [
                    {"kind": "raised", "event": f"number {number}", "asked": "", "low": 0.0, "high": 0.0, "gap": 0.0}
                ]
                outcomes[0]["wrong"] = f"{type(error).__name__}: {error}"[:300]
            file.write(json.dumps({"number": number, "outcomes": outcomes}) + "\n")
            file.flush()


def read(progress: Path) -> list[dict[str, Any]]:
    """Returns the records made so far."""
    if not progress.exists():
        return []
    return [json.loads(line) for line in progress.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


def summarise(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns counts, findings, and the gaps of each kind."""
    kinds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        for outcome in record["outcomes"]:
            kinds[outcome["kind"]].append(outcome)
    table = {}
    for kind, outcomes in sorted(kinds.items()):
        at_delta = [o for o in outcomes if o["asked"].startswith("delta")]
        gaps = sorted(o["gap"] for o in at_delta if math.isfinite(o["gap"]) and o["high"] > 1e-3)
        table[kind] = {
            "settings": len(outcomes),
            "wrong": sum(bool(o["wrong"]) for o in outcomes),
            "no finite upper bound": sum(not math.isfinite(o["high"]) for o in outcomes),
            "gap of epsilon, median": gaps[len(gaps) // 2] if gaps else None,
            "gap of epsilon, 95 %": gaps[int(0.95 * (len(gaps) - 1))] if gaps else None,
            "gap of epsilon, largest": gaps[-1] if gaps else None,
        }
    every = [o for outcomes in kinds.values() for o in outcomes]
    return {
        "seed": SEED,
        "events": len(records),
        "settings": len(every),
        "wrong": sum(bool(o["wrong"]) for o in every),
        "findings": [o for o in every if o["wrong"]][:50],
        "kinds": table,
    }


def main() -> int:
    """Runs what is missing, writes the summary, and returns 1 if a bound was on the wrong side."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--numbers", type=int, default=1100)
    parser.add_argument("--progress", type=Path, default=RESULTS.with_suffix(".jsonl"))
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    given = parser.parse_args()
    run(given.numbers, given.progress, given.part, given.parts)
    summary = summarise(sorted(read(given.progress), key=lambda record: record["number"]))
    RESULTS.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps({key: summary[key] for key in ("events", "settings", "wrong")}) + "\n")
    return 1 if summary["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())

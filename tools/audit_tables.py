"""Writes the tables of docs/audit.md from the results of bench/: `python -m tools.audit_tables`."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "audit.md"


def mutation_table(found: dict[str, Any]) -> str:
    """Returns the table that shows which level notices which mistake."""
    rows = [
        "| mistake | noticed by | checks of the selftest | what a replay says, where it was made |",
        "|---|---|---|---|",
    ]
    for name, outcome in found.items():
        checks = ", ".join(outcome["checks"]) if outcome["level"] != "refused" else outcome["checks"][0].split(":")[0]
        replay = re.sub(r"[\[\]'\"]|step \d+: ", "", str(outcome["replay"])) if outcome["replay"] else "–"
        quiet = name == "none"
        rows.append(f"| {name} | {outcome['level'] or 'nothing'} | {checks} | {'nothing found' if quiet else replay} |")
    return "\n".join(rows)


def one_run_table(found: dict[str, Any]) -> str:
    """Returns the table of lower bounds beside claims."""
    bound = "lower bound, own curve: median (least … most)"
    head = f"| run | claimed ε | canaries | runs | {bound} | of the claim | by (ε, δ) | contradicted |"
    rows = [head, "|---|---|---|---|---|---|---|---|"]
    # One row for each run, claim, kind of canary and access.
    groups: dict[tuple[str, float, str, str], list[Any]] = {}
    for run in found["runs"]:
        for one in run["measured"]:
            groups.setdefault((run["name"], run["epsilon"], one["kind"], one["access"]), []).append(one)
    for (name, epsilon, kind, access), measurements in groups.items():
        lower_bounds = sorted(one["lower_own"] for one in measurements)
        middle, plain = statistics.median(lower_bounds), statistics.median(one["lower"] for one in measurements)
        against = sum(one["chance"] <= 0.05 for one in measurements)
        rows.append(
            f"| {name} | {epsilon:g} | {kind}, {access} | {len(measurements)} | "
            f"{middle:.2f} ({lower_bounds[0]:.2f} … {lower_bounds[-1]:.2f}) | "
            f"{middle / epsilon:.0%} | {plain:.2f} | {against} of {len(measurements)} |"
        )
    return "\n".join(rows)


def main() -> None:
    """Writes both tables into the page, after their marks."""
    text = PAGE.read_text()
    for mark, name, make in (("mutations", "mutations", mutation_table), ("one run", "one_run", one_run_table)):
        table = make(json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text()))
        text = re.sub(rf"<!-- {mark} -->\n(\n?\|[^\n]*\n)*(\n\|[^\n]*)*", f"<!-- {mark} -->\n\n{table}\n", text)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()

"""Writes the tables of docs/audit.md from the results of bench/: `python -m tools.audit_tables`."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "audit.md"


def mutations(found: dict[str, Any]) -> str:
    """Returns the table that shows which level notices which mistake."""
    rows = [
        "| mistake | noticed by | checks of the selftest | what a replay says, where it was made |",
        "|---|---|---|---|",
    ]
    for name, said in found.items():
        checks = ", ".join(said["checks"]) if said["level"] != "refused" else said["checks"][0].split(":")[0]
        replay = re.sub(r"[\[\]'\"]|step \d+: ", "", str(said["replay"])) if said["replay"] else "–"
        quiet = name == "none"
        rows.append(f"| {name} | {said['level'] or 'nothing'} | {checks} | {'nothing found' if quiet else replay} |")
    return "\n".join(rows)


def one_run(found: dict[str, Any]) -> str:
    """Returns the table of lower bounds beside claims."""
    bound = "lower bound, own curve: median (least … most)"
    head = f"| run | claimed ε | canaries | runs | {bound} | of the claim | by (ε, δ) | contradicted |"
    rows = [head, "|---|---|---|---|---|---|---|---|"]
    # One row for each run, claim, kind of canary and access.
    groups: dict[tuple[str, float, str, str], list[Any]] = {}
    for run in found["runs"]:
        for one in run["measured"]:
            groups.setdefault((run["name"], run["epsilon"], one["kind"], one["access"]), []).append(one)
    for (name, epsilon, kind, access), some in groups.items():
        own = sorted(one["lower_own"] for one in some)
        middle, plain = statistics.median(own), statistics.median(one["lower"] for one in some)
        against = sum(one["chance"] <= 0.05 for one in some)
        rows.append(
            f"| {name} | {epsilon:g} | {kind}, {access} | {len(some)} | {middle:.2f} ({own[0]:.2f} … {own[-1]:.2f}) | "
            f"{middle / epsilon:.0%} | {plain:.2f} | {against} of {len(some)} |"
        )
    return "\n".join(rows)


def main() -> None:
    """Writes both tables into the page, after their marks."""
    text = PAGE.read_text()
    for mark, name, make in (("mutations", "mutations", mutations), ("one run", "one_run", one_run)):
        table = make(json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text()))
        text = re.sub(rf"<!-- {mark} -->\n(\n?\|[^\n]*\n)*(\n\|[^\n]*)*", f"<!-- {mark} -->\n\n{table}\n", text)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()

"""The comparison with Opacus in docs/from_opacus.md, from bench/results/step_avx2.json.

    python -m bench.opacus_table

Rewrites the rows of the table on the page; a test says when they are not those of the results.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "from_opacus.md"
RESULTS = ROOT / "bench" / "results" / "step_avx2.json"
HEAD = "| model (batch) | plain step, ms | sordino / plain | best Opacus mode / plain | Opacus / sordino |"
_TABLE = re.compile(re.escape(HEAD) + r"\n\|[-|]+\|\n((?:\|.*\n)+)")


def rows() -> str:
    """One line per measured step."""
    lines = []
    for step in json.loads(RESULTS.read_text())["steps"]:
        ratio, best = step["cpu ratio"], step["best opacus"]
        ours, theirs = ratio["sordino"], ratio[best]
        plain = step["cpu ms, one thread"][step["best non-private"]]
        mode = best.removeprefix("opacus ")
        name = f"{step['model']} ({step['batch']})"
        lines.append(f"| {name} | {plain:.1f} | {ours:.2f} | {theirs:.2f} ({mode}) | {theirs / ours:.1f}× |")
    return "\n".join(lines) + "\n"


def on_the_page() -> str:
    """The rows as they stand."""
    found = _TABLE.search(PAGE.read_text())
    if found is None:
        raise ValueError(f"{PAGE}: has no table that begins with {HEAD}")
    return found.group(1)


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().replace(on_the_page(), rows()))

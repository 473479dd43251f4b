"""Keeps what audits and attacks found in `findings.json`, the last result of each kind.

Privacy: only what was said aloud is in it: bounds, counts of right guesses, verdicts. An audit with the training records is
not in the run's claim; whoever made it decides whether to give its result away.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sordino.app.runs import atomic_files

NAME = "findings.json"


def read_findings(folder: Path) -> dict[str, Any]:
    """Returns all findings that were kept; empty if there are none or the file cannot be read."""
    try:
        findings = json.loads((folder / NAME).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return findings if isinstance(findings, dict) else {}


def keep_finding(folder: Path, kind: str, table: Mapping[str, Any]) -> None:
    """Replaces the finding of the same kind of audit or attack by a new one."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    atomic_files.write_file(
        folder / NAME, json.dumps({**read_findings(folder), kind: {**table, "when": now}}, indent=1) + "\n"
    )

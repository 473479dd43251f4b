"""Finished trainings as files: one JSON for each, named by a digest of its settings.

    {"settings": {…}, "version": "0.2.0", "commit": "ae324a0", "processor": "…",
     "epsilon": 1.68, "reason": "", "diverged": "", "seconds": 31.2, "numbers": {},
     "rows": {"step": [240, 480, …], "test_accuracy": [0.51, 0.62, …], …}}

Two folders hold such files. `TRAININGS` comes with the package: trainings at the sources' own size, which take hours and
are therefore kept across versions; each file says which version and commit made it. The cache of the user holds everything
else and counts only for the version that made it.

A file is found by its name, which is the digest of its `settings`. If a field of `Recipe` or `Options` is renamed, rename
it in the files too and call `rename_files`.
"""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from sordino.app.runs import atomic_files
from sordino.app.runs.recipe import MEASURED, Recipe
from sordino.app.runs.settings import Options, Settings
from sordino.kernels.processor import processor_name
from sordino.version import __version__

TRAININGS = Path(__file__).parent / "trainings"
"""Trainings at the sources' own size that come with the package."""

_IRRELEVANT = {"name", "tuned", *MEASURED, "checkpoint_every"}
"""Fields that do not change what a training comes to."""
_DEFAULTS: Mapping[str, Any] = {
    one.name: one.default for kind in (Recipe, Options) for one in fields(kind) if one.default is not MISSING
}
_DIGITS = 6
"""Significant digits of the numbers in a file; accuracies on 10,000 images have four."""
_LEFT_OUT = ("seconds", "delta", "learning_rate")
"""Columns of an evaluation that no figure uses."""


@dataclass(frozen=True)
class Kept:
    """What is kept of one training."""

    rows: list[dict[str, Any]]
    """The evaluations, oldest first."""
    epsilon: float | None
    reason: str
    """Why there is no guarantee; empty where there is one."""
    diverged: str
    """Why it ended early; empty where it did not."""
    seconds: float
    """CPU time of all processes that worked on it."""
    numbers: dict[str, Any]


def digest(settings: Settings) -> str:
    """Returns the name of a training: a digest of everything that decides what it comes to."""
    return digest_of_table(settings.table())


def digest_of_table(table: Mapping[str, Any]) -> str:
    """Returns the digest of a settings table.

    Fields at their default are left out, so a new field with a default does not rename the trainings made before it.
    """
    left_out = _IRRELEVANT if table["recipe"].get("unit") else _IRRELEVANT | {"unit", "unit_records"}
    said = {
        part: {
            name: _as_list(value)
            for name, value in table.get(part, {}).items()
            if name not in left_out and (part == "parameters" or value != _DEFAULTS.get(name, MISSING))
        }
        for part in ("recipe", "options", "parameters")
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:24]


def find(settings: Settings, own: Path) -> Kept | None:
    """Returns a finished training from the package or from the folder `own`; None if there is none."""
    name = f"{digest(settings)}.json"
    shipped = TRAININGS / name
    if shipped.is_file():
        return _read(shipped)
    path = own / name
    if path.is_file() and _version(path) == __version__:
        return _read(path)
    return None


def keep(settings: Settings, kept: Kept, folder: Path) -> Path:
    """Writes a finished training into `folder`, in one move, and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in (kept.rows[0] if kept.rows else {}) if name not in _LEFT_OUT]
    columns = {name: [_rounded(row.get(name)) for row in kept.rows] for name in names}
    table = {
        "settings": _jsonable(settings.table()),
        "version": __version__,
        "commit": commit(),
        "processor": processor_name(),
        **{name: value for name, value in asdict(kept).items() if name != "rows"},
        "seconds": round(kept.seconds, 1),
        "rows": {name: column for name, column in columns.items() if any(value is not None for value in column)},
    }
    path = folder / f"{digest(settings)}.json"
    atomic_files.write_file(path, json.dumps(table, allow_nan=False, ensure_ascii=False) + "\n")
    return path


def rename_files(folder: Path) -> int:
    """Renames files to the digests of their settings, after fields were renamed in them; returns how many it renamed."""
    count = 0
    for path in sorted(folder.glob("*.json")):
        wanted = folder / f"{digest_of_table(json.loads(path.read_text('utf-8'))['settings'])}.json"
        if wanted != path:
            path.rename(wanted)
            count += 1
    return count


@cache
def commit() -> str:
    """Returns the commit of this source tree; empty where it is no git checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return ""
    asked = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=root, capture_output=True, text=True)
    return asked.stdout.strip() if asked.returncode == 0 else ""


def _read(path: Path) -> Kept:
    table = json.loads(path.read_text("utf-8"))
    columns = table["rows"]
    length = max((len(column) for column in columns.values()), default=0)
    rows = [{name: column[k] for name, column in columns.items()} for k in range(length)]
    return Kept(rows, **{one.name: table[one.name] for one in fields(Kept) if one.name != "rows"})


def _version(path: Path) -> str:
    return str(json.loads(path.read_text("utf-8")).get("version"))


def _rounded(value: Any) -> Any:
    """Returns a number, or numbers in lists, with `_DIGITS` significant digits; what is not finite becomes None."""
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    return value


def _jsonable(table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings as JSON holds them, without what was not given."""
    return {
        part: {name: _as_list(value) for name, value in said.items() if value is not None and name != "tuned"}
        for part, said in table.items()
    }


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value

"""Trains plans and keeps what is finished: one JSON for each training, named by a digest of its settings.

    {"settings": {…}, "version": "0.2.0", "commit": "ae324a0", "processor": "…",
     "epsilon": 1.68, "reason": "", "diverged": "", "seconds": 31.2,
     "rows": {"step": [240, 480, …], "test_accuracy": [0.51, 0.62, …], …}}

Two folders hold such files. `TRAININGS` comes with the package: trainings at the sources' own size, which take hours and
are therefore kept across versions; each file says which version and commit made it. The cache of the user holds everything
else and counts only for the version that made it.

A file is found by its name, which is the digest of its `settings`. If a field of `Recipe` or `Options` is renamed, rename
it in the files too and call `rename_files`.

A model or clipping rule of the user's own is a Python file that may change under the same name. The digest therefore
includes what is in it, so that an edited rule is trained anew; what the file imports is not looked at.

Only a training that came to its end is kept: at its last step, or where its parameters stopped being finite. One that was
stopped or killed leaves its run directory under `unfinished` in the cache, and the next call resumes it from its last
checkpoint, bit for bit as if it had never been stopped.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from sordino.app import atomic_files
from sordino.app.runs import own_code
from sordino.app.runs.recipe import FIELDS, MEASURED
from sordino.app.runs.settings import Options, Settings
from sordino.kernels.processor import processor_name
from sordino.version import __version__

TRAININGS = Path(__file__).parent / "trainings"
"""Trainings at the sources' own size that come with the package."""

_IRRELEVANT = {"name", "tuned", *MEASURED, "checkpoint_every"}
"""Fields that do not change what a training comes to."""
_DEFAULTS: Mapping[str, Any] = {
    one.name: one.default for one in (*FIELDS.values(), *fields(Options)) if one.default is not MISSING
}
_OWN_FILES = "own_files"
"""The part of a settings table that has the digests of files with code of the user's own."""
_DIGITS = 6
"""Significant digits of the numbers in a file; accuracies on 10,000 images have four."""
_LEFT_OUT = ("seconds", "delta", "learning_rate", "measures")
"""Columns of an evaluation that no figure uses."""


class NotTrained(ValueError):
    """A figure needs a training that is not there, and nothing is to be trained now."""


@dataclass(frozen=True)
class FinishedTraining:
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


def digest(settings: Settings) -> str:
    """Returns the name of a training: a digest of everything that decides what it comes to."""
    return digest_of_table(_table_of(settings))


def _table_of(settings: Settings) -> dict[str, Any]:
    """Returns the settings of a training for the store, with the digest of each file that holds code of the user's own."""
    words = {"model": settings.recipe.model, "clipping": settings.recipe.weigher}
    files = {field: own_code.file_digest(field, word) for field, word in words.items()}
    used = {field: found for field, found in files.items() if found is not None}
    return {**settings.table(), **({_OWN_FILES: used} if used else {})}


def digest_of_table(table: Mapping[str, Any]) -> str:
    """Returns the digest of a settings table, by which the store of trainings names its file.

    Fields at their default are left out, so a new field with a default does not rename the trainings made before it.
    """
    # The number of records of a unit means nothing without a unit.
    left_out = _IRRELEVANT if table["recipe"].get("unit") else _IRRELEVANT | {"unit", "unit_records"}
    said = {
        part: {
            name: _as_list(value)
            for name, value in table.get(part, {}).items()
            if name not in left_out and (part == "parameters" or value != _DEFAULTS.get(name, MISSING))
        }
        for part in ("recipe", "options", "parameters")
    }
    # Trainings without code of the user's own keep the names that they had before files were looked at.
    if table.get(_OWN_FILES):
        said[_OWN_FILES] = dict(table[_OWN_FILES])
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:24]


def find(settings: Settings, own: Path) -> FinishedTraining | None:
    """Returns a finished training from the store that comes with the package or from the folder `own`; None if there is
    none.
    """
    # Shipped trainings count for every version; the cache only for the one that made it.
    name = f"{digest(settings)}.json"
    shipped = TRAININGS / name
    if shipped.is_file():
        return _read(shipped)
    path = own / name
    if path.is_file() and _read_version(path) == __version__:
        return _read(path)
    return None


def keep(settings: Settings, kept: FinishedTraining, folder: Path) -> Path:
    """Stores a finished training: writes it into `folder`, in one move, and returns its path."""
    return _keep_as(_table_of(settings), kept, folder)


def _keep_as(settings_table: Mapping[str, Any], kept: FinishedTraining, folder: Path) -> Path:
    """Stores a finished training by the settings table that it began with, and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    # Columns take a third of the space of rows, and columns without a value none.
    names = [name for name in (kept.rows[0] if kept.rows else {}) if name not in _LEFT_OUT]
    columns = {name: [_round_number(row.get(name)) for row in kept.rows] for name in names}
    table = {
        "settings": _jsonable(settings_table),
        "version": __version__,
        "commit": commit(),
        "processor": processor_name(),
        **{name: value for name, value in asdict(kept).items() if name != "rows"},
        "seconds": round(kept.seconds, 1),
        "rows": {name: column for name, column in columns.items() if any(value is not None for value in column)},
    }
    path = folder / f"{digest_of_table(settings_table)}.json"
    atomic_files.write_file(path, json.dumps(table, allow_nan=False, ensure_ascii=False) + "\n")
    return path


def train(settings: Settings, cache: Path, folder: Path | None = None) -> FinishedTraining:
    """Returns a finished training: from the store of the package, from the cache, or made now and kept in `folder`, or
    else the cache.

    Raises:
        KeyboardInterrupt: the training was asked to stop; it is kept nowhere, and the next call resumes it.

    """
    # What is finished is never trained again.
    found = find(settings, folder or cache)
    if found is not None:
        return found
    # A file of the user's own may be edited while this trains, so what it holds is looked at before.
    begun_with = _table_of(settings)
    # The run directory goes only after the result is kept, so a crash between the two loses nothing.
    unfinished = unfinished_folder(settings, cache)
    kept = _train_or_resume(settings, unfinished)
    _keep_as(begun_with, kept, folder or cache)
    shutil.rmtree(unfinished, ignore_errors=True)
    return kept


def is_known(settings: Settings, cache: Path) -> bool:
    """Returns whether a finished training is in the package or in the cache."""
    return find(settings, cache) is not None


def unfinished_folder(settings: Settings, cache: Path) -> Path:
    """Returns where a training that has begun has its run directory."""
    return cache / "unfinished" / digest(settings)


def _train_or_resume(settings: Settings, folder: Path) -> FinishedTraining:
    """Carries out a training for the store in `folder`, from its checkpoint if there is one, and returns what it came
    to.
    """
    from sordino.app.runs.directory import Run
    from sordino.app.runs.fit import RunFailed, carry_out_run, resume
    from sordino.app.runs.progress_view import Silent
    from sordino.app.runs.training_loop import TrainingNotFinite

    # The CPU time of earlier processes counts too.
    run_folder, spent, begun = folder / "run", _SpentSeconds(folder / "seconds"), time.process_time()
    diverged = ""
    try:
        if _can_resume(run_folder):
            history = resume(run_folder, Silent())
        else:
            # The count of seconds goes with the folder: what it counts bought nothing of the training that begins here.
            shutil.rmtree(folder, ignore_errors=True)
            history = carry_out_run(settings, run_folder, Silent())
    except RunFailed as error:
        # A training that diverged is a result. One that failed otherwise, for want of disk or memory, is none.
        if not isinstance(error.__cause__, TrainingNotFinite):
            raise
        diverged = str(error).split(";")[0]
    else:
        if not history.finished:
            # What was spent is written down before the stop, or the next process would report too little.
            spent.add(time.process_time() - begun)
            raise KeyboardInterrupt("a training was asked to stop; its checkpoint is kept")
    # Rows are read from the run directory, which has those of earlier processes too.
    rows = [asdict(row) for row in Run.open(run_folder).read_rows()]
    said = json.loads((run_folder / "privacy.json").read_text("utf-8"))["claim"]
    seconds = spent.read() + time.process_time() - begun
    return FinishedTraining(rows, said.get("epsilon"), str(said.get("reason") or ""), diverged, seconds)


def _can_resume(run_folder: Path) -> bool:
    """Returns whether an interrupted training of the store can be resumed with the same bits as an undisturbed run.

    It cannot where nothing was begun, where the run failed, and where code, libraries or processor are not those that began
    it. Such a training starts anew; its records are public, so nothing is charged for it.
    """
    from sordino.app.runs.directory import CONFIG, FAILED, PRIVACY
    from sordino.app.runs.write_ahead import RunIsBusy, WriteAheadLedger
    from sordino.environment import current_environment, describe_difference

    try:
        # Without a config nothing was begun.
        if not (run_folder / CONFIG).is_file():
            return False
        if json.loads((run_folder / PRIVACY).read_text("utf-8")).get("status") == FAILED:
            return False
        # The write-ahead ledger knows which environment began the run.
        with WriteAheadLedger(run_folder) as ahead:
            before = ahead.environment
    # A folder that another process trains in is left alone; one that cannot be read is trained anew.
    except RunIsBusy:
        raise
    except (FileNotFoundError, ValueError):
        return False
    # Threads are set to what they were by the resumed run itself.
    now = {**current_environment(), "threads": before.get("threads", 0)}
    return bool(before) and not describe_difference(before, now)


class _SpentSeconds:
    """CPU seconds of earlier processes that worked on a training, in a file beside its run directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> float:
        with suppress(OSError, ValueError):
            return float(self._path.read_text("utf-8"))
        return 0.0

    def add(self, seconds: float) -> None:
        self._path.write_text(f"{self.read() + seconds:.2f}\n", "utf-8")


def rename_files(folder: Path) -> int:
    """Renames the files of stored trainings to the digests of their settings, after fields were renamed in them;
    returns how many it renamed.
    """
    count = 0
    for path in sorted(folder.glob("*.json")):
        # The digest is of the settings in the file, which are the truth; the name only has to follow them.
        wanted = folder / f"{digest_of_table(json.loads(path.read_text('utf-8'))['settings'])}.json"
        if wanted != path:
            path.rename(wanted)
            count += 1
    return count


@cache
def commit() -> str:
    """Returns the commit of this source tree, which is stored with a training; empty where it is no git checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return ""
    asked = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=root, capture_output=True, text=True)
    return asked.stdout.strip() if asked.returncode == 0 else ""


def _read(path: Path) -> FinishedTraining:
    """Returns a finished training from its file in the store, with its columns as rows."""
    table = json.loads(path.read_text("utf-8"))
    columns = table["rows"]
    length = max((len(column) for column in columns.values()), default=0)
    rows = [{name: column[k] for name, column in columns.items()} for k in range(length)]
    return FinishedTraining(
        rows, **{one.name: table[one.name] for one in fields(FinishedTraining) if one.name != "rows"}
    )


def _read_version(path: Path) -> str:
    return str(json.loads(path.read_text("utf-8")).get("version"))


def _round_number(value: Any) -> Any:
    """Returns a number, or numbers in lists, of a training as it is stored: with `_DIGITS` significant digits; what is
    not finite becomes None.
    """
    if isinstance(value, list):
        return [_round_number(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    return value


def _jsonable(table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a training as the JSON of the store holds them, without what was not given."""
    return {
        part: {name: _as_list(value) for name, value in said.items() if value is not None and name != "tuned"}
        for part, said in table.items()
    }


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value

"""Brings the results that come with the package up to date, without training anything.

    python -m sordino_lab.refresh_results docs

Figures are drawn again from the trainings at the source's size that come with the package. They replace a reduced result as
soon as half of their curves are there, or at once where there is none. Of all other results the facts, the printed commands
and the withheld verdicts are brought in line with the code. Then the lab's pages are written.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

from sordino.app import atomic_files
from sordino_lab import result_store
from sordino_lab.catalogue import experiments
from sordino_lab.experiment import Experiment, ExperimentSize
from sordino_lab.pages import write_documents
from sordino_lab.runner import make_result
from sordino_lab.training_store import TRAININGS, NotTrained
from sordino_lab.workbench import Workbench

_SAME_SECONDS = 0.01
"""By which part the CPU time of a result may change without the result being written anew."""


def refresh_results(folder: Path) -> list[str]:
    """Refreshes every result in `folder` without training anything, and returns the ids that were drawn anew."""
    drawn = []
    for one in experiments().values():
        path = folder / f"{one.id}.json"
        kept = json.loads(path.read_text("utf-8")) if path.is_file() else None
        # Kept trainings may allow a better drawing; otherwise only the words of the result are brought up to date.
        better = _draw_from_trainings(one, kept)
        if better is not None:
            drawn.append(one.id)
            write_if_changed(path, better)
        elif kept is not None:
            write_if_changed(path, bring_in_line(one, kept))
    return drawn


def bring_in_line(one: Experiment, kept: dict[str, Any]) -> dict[str, Any]:
    """Returns a refreshed result: with the facts and commands of today, and without verdicts where it is not what the
    source ran.
    """
    size = ExperimentSize(kept["size"])
    # Facts go through JSON, so that tuples become lists as in the file and an unchanged result compares equal.
    result = {**kept, **json.loads(json.dumps(one.facts()))}
    if one.plans is not None:
        bench = Workbench(size, Path())
        # Commands of curves that are planned today replace those of the same recipe.
        own = bench.commands(one.plans(bench))
        recipes = {command.split()[2] for command in own}
        result["commands"] = [*own, *(said for said in kept["commands"] if said.split()[2] not in recipes)]
    # A finding of the source says nothing of a smaller run, so its verdict is taken back to untested.
    if not result_store.is_source_size(size, one):
        result["findings"] = [{**finding, "holds": None} for finding in kept["findings"]]
    if size is not ExperimentSize.FULL:
        result["note"] = result_store.describe_reduction(size, one)
    return result


def _draw_from_trainings(one: Experiment, kept: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns the refreshed result at the source's size from the trainings that are there; None if it is not to replace
    `kept`.
    """
    if one.plans is None:
        return None
    # Nothing is trained here: what is there is drawn, or the kept result stays.
    bench = Workbench(ExperimentSize.FULL, TRAININGS, trains=False)
    plans = one.plans(bench)
    there = len(plans) - len(bench.missing(plans))
    # A reduced result gives way once half of the curves are there at the source's size.
    replaces = kept is None or kept["size"] == ExperimentSize.FULL.value or 2 * there >= len(plans)
    if not there or not replaces:
        return None
    with tempfile.TemporaryDirectory() as folder:
        try:
            return make_result(one, bench, Path(folder))
        except NotTrained:
            return None


def write_if_changed(path: Path, result: dict[str, Any]) -> None:
    """Writes a refreshed result unless the stored one differs from it in nothing but how long the drawing took."""
    text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if path.is_file():
        # Both have gone through JSON, which knows no tuples.
        kept, made = json.loads(path.read_text("utf-8")), json.loads(text)
        # The seconds of trainings are those of their files; that of the drawing is another one each time.
        is_same_time = math.isclose(made["seconds"], kept["seconds"], rel_tol=_SAME_SECONDS, abs_tol=1.0)
        if is_same_time and {**made, "seconds": kept["seconds"]} == kept:
            return
    atomic_files.write_file(path, text)


if __name__ == "__main__":
    sys.stdout.write("".join(f"drawn: {name}\n" for name in refresh_results(result_store.SHIPPED)))
    write_documents(Path(sys.argv[1]))

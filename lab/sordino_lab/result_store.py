"""The store of results: one JSON for each experiment, shipped with the package or run here; the latter come first."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sordino.app import atomic_files
from sordino.app.report import panel_figures
from sordino.app.report.panels import panel_from_table
from sordino.kernels.processor import processor_name
from sordino.version import __version__
from sordino_lab.catalogue import experiments
from sordino_lab.experiment import OWN, Experiment, ExperimentSize, Outcome

SHIPPED = Path(__file__).parent / "results"
OUT = Path("lab")
REDUCED = "reduced"
"""What the title and the note of a result say that is smaller than the source's."""


def cache_folder() -> Path:
    """Returns where trainings are kept: the folder `lab` of $SORDINO_CACHE or of ~/.cache/sordino."""
    base = os.environ.get("SORDINO_CACHE")
    return (Path(base) if base else Path.home() / ".cache" / "sordino") / "lab"


def describe_reduction(size: ExperimentSize, one: Experiment) -> str:
    """Returns what is written on every figure of a reduced run and stored with its result; empty where nothing is
    reduced.
    """
    left_out = one.middle or one.reduced if size is ExperimentSize.MIDDLE else one.reduced
    if size is ExperimentSize.FULL or left_out.startswith("nothing"):
        return ""
    return f"{REDUCED} ({size.value}): {left_out}"


def describe_lack(result: Mapping[str, Any]) -> str:
    """Returns what a result lacks of the source's figure, in a few words for its title: how many of its curves there are,
    and the methods of which there are none. Empty where it lacks nothing.

    >>> describe_lack({"note": "", "curves": {"drawn": 3, "planned": 9}})
    '3 of 9 curves'
    >>> describe_lack({"note": "", "curves": {"drawn": 3, "planned": 9, "lacking": ["median", "minimum"]}})
    '3 of 9 curves, none of median or minimum yet'
    """
    if str(result["note"]).startswith(REDUCED):
        return REDUCED
    # Results without this entry were stored before it was there, or have no curves that could be missing.
    curves = result.get("curves") or {"drawn": 0, "planned": 0}
    drawn, planned = curves["drawn"], curves["planned"]
    if drawn >= planned:
        return ""
    lacking = curves.get("lacking")
    return f"{drawn} of {planned} curves" + (f", none of {' or '.join(lacking)} yet" if lacking else "")


def describe_size(result: Mapping[str, Any]) -> str:
    """Returns the size of a result in words, with the number of its curves where some are missing.

    >>> describe_size({"size": "full", "note": "", "curves": {"drawn": 3, "planned": 9}})
    'full, 3 of 9 curves'
    """
    lack = describe_lack(result)
    return f"{result['size']}, {lack}" if lack and lack != REDUCED else str(result["size"])


def is_source_size(size: ExperimentSize, one: Experiment) -> bool:
    """Returns whether a run of this size is what the source ran: nothing reduced, on the source's own network and data."""
    return size is not ExperimentSize.TINY and not describe_reduction(size, one) and not one.differs


def withhold_verdicts(one: Experiment, found: Outcome, size: ExperimentSize) -> Outcome:
    """Returns the outcome that is stored as a result, without verdicts where the run is not what the source ran.

    Below the source's size, or on another network, what comes out neither confirms nor refutes a sentence of the source.
    """
    if is_source_size(size, one):
        return found
    return replace(found, findings=[replace(finding, holds=None) for finding in found.findings])


def make_result(one: Experiment, found: Outcome, size: ExperimentSize, seconds: float) -> dict[str, Any]:
    """Returns the result of an experiment as the store keeps it in JSON; verdicts are withheld where it is not what the
    source ran.
    """
    found = withhold_verdicts(one, found, size)
    # Everything a reader needs to judge the numbers: size, version, machine and time.
    head = {
        "size": size.value,
        "version": __version__,
        "seconds": round(seconds, 1),
        "processor": processor_name(),
        "note": describe_reduction(size, one),
    }
    return {**one.facts(), **head, **found.table()}


def make_folder(folder: Path) -> None:
    """Makes a folder for results.

    Raises:
        ValueError: it cannot be made or written to.

    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"out={str(folder)!r}: cannot be written to ({error.strerror})") from error


def write_result(folder: Path, result: Mapping[str, Any]) -> list[Path]:
    """Stores a result: writes ID.json, ID.png and ID.svg into a folder and returns their paths.

    A process that is killed meanwhile leaves no half picture, and no numbers whose picture is another's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The figure is drawn from the stored numbers, so that file and picture cannot differ.
    path = folder / f"{result['id']}.json"
    panels = [panel_from_table(one) for one in result["panels"]]
    # What is smaller than the source's run, or lacks curves of it, says so in the title.
    lack = describe_lack(result)
    title = f"{result['title']} ({lack})" if lack else result["title"]
    # The numbers come last, because a result that has numbers counts as done.
    with tempfile.TemporaryDirectory() as workspace:
        drawn = panel_figures.save_figure(panels, Path(workspace), result["id"], result["note"], title)
        for picture in drawn:
            atomic_files.write_file(folder / picture.name, picture.read_bytes())
    atomic_files.write_file(path, json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return [path, *(folder / picture.name for picture in drawn)]


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the results in the store by id, in the order of the papers: those of the folder, and of the package where
    the folder has none. Results of a user's own experiments in the folder come last.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in experiments():
        # The user's own results come before those of the package.
        for place in (folder, SHIPPED):
            path = place / f"{name}.json"
            if path.is_file():
                found[name] = json.loads(path.read_text("utf-8"))
                break
    return {**found, **_read_own_results(folder)}


def _read_own_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the results in a folder that experiments of the user's own left there, by id."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        # Other JSON files may lie in the folder too; a result says of which source it is.
        try:
            result = json.loads(path.read_text("utf-8"))
        except ValueError:
            continue
        if isinstance(result, dict) and result.get("source") == OWN and result.get("id") == path.stem:
            found[path.stem] = result
    return found

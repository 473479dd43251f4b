"""The catalogue: every experiment by its id, in the order of the papers.

The facts of an experiment are in `figures.toml`. The function that draws it is in a module of `families/`, whose `FIGURES`
maps ids to functions. An experiment of your own is an object `EXPERIMENT` in a Python file.
"""

from __future__ import annotations

import pkgutil
import runpy
import tomllib
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import sordino_lab.families as package
from sordino.app.suggestions import did_you_mean
from sordino_lab.experiment import Experiment, Figure

FACTS = Path(__file__).parent / "figures.toml"
FORMER_IDS = {
    "projected-resnet": "projected-resnet-scratch",
    "projected-cosine-resnet": "projected-cosine-resnet-scratch",
}
"""Ids of before, which still work: their networks begin with random weights, and the ids now say so."""


@cache
def experiments() -> Mapping[str, Experiment]:
    """Returns the catalogue: all experiments by their id, in the order of the papers.

    Raises:
        ValueError: an id has facts and no function, or a function and no facts.

    """
    # Facts and functions are kept apart, and each must have its counterpart.
    table = tomllib.loads(FACTS.read_text("utf-8"))
    figures: dict[str, Figure] = {}
    for module in pkgutil.iter_modules(package.__path__):
        figures.update(import_module(f"{package.__name__}.{module.name}").FIGURES)
    unmatched = set(figures) ^ set(table["figures"])
    if unmatched:
        raise ValueError(
            f"{', '.join(sorted(unmatched))}: need an entry in figures.toml and one in FIGURES of a family"
        )
    return {name: _join(name, facts, table["sizes"], figures[name]) for name, facts in table["figures"].items()}


def _join(name: str, facts: Mapping[str, Any], sizes: Mapping[str, Mapping[str, str]], figure: Figure) -> Experiment:
    """Returns one experiment of the catalogue, made of its facts and its figure; `sizes` says what smaller sizes leave
    out.
    """
    # An experiment's own words win over those of its group.
    given = {**sizes.get(facts.get("sizes", ""), {}), **facts}
    given.pop("sizes", None)
    given["nouns"] = tuple(given["nouns"])
    return Experiment(id=name, run=figure.run, plans=figure.plans, measures_time=figure.measures_time, **given)


def find_experiment(name: str) -> Experiment:
    """Returns the experiment that has an id in the catalogue, or the `EXPERIMENT` of a Python file.

    Raises:
        ValueError: there is no such id or file, or the file has no `EXPERIMENT`.

    """
    if name.endswith(".py"):
        return load_own_experiment(Path(name))
    # Former ids lead to the experiments of today.
    known = experiments()
    name = FORMER_IDS.get(name, name)
    if name not in known:
        # A part of a name may mean several figures; a slip of the keyboard means one.
        near = [one for one in known if name in one]
        hint = f"; near it: {', '.join(near)}" if near else did_you_mean(name, known)
        raise ValueError(f"{name!r}: no experiment{hint or '; see `sordino lab list`'}")
    return known[name]


def load_own_experiment(path: Path) -> Experiment:
    """Returns the experiment that a user's file, which is not in the catalogue, defines as `EXPERIMENT`.

    Raises:
        ValueError: there is no such file, it defines no experiment, or its id is one of the lab's own.

    """
    # `runpy` would raise an OSError with a traceback; a mistyped path deserves one line.
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    # The file is run, not imported, so it needs no place on the path and cannot shadow a module of the lab.
    found = _run_file(path).get("EXPERIMENT")
    if not isinstance(found, Experiment):
        raise ValueError(
            f"{path}: it defines no experiment.\nEnd it with `EXPERIMENT = sordino_lab.Experiment(id=…, title=…, run=…)`; "
            "docs/how_to/own_variants.md has an example."
        )
    # Results are files named by id, so a second experiment of the same id would overwrite the figure of a source.
    if found.id in experiments():
        raise ValueError(f"{path}: the id {found.id!r} is taken by a figure of the sources; choose another")
    # The file goes with the experiment, so that worker processes can load it again by its path.
    return replace(found, file=str(path))


def _run_file(path: Path) -> dict[str, Any]:
    """Returns the names that a user's file defines, which may hold experiments for the catalogue.

    Raises:
        ValueError: the file cannot be run; the message says where and why.

    """
    # The file is the user's own code and may raise anything, so every error becomes a message that names the file.
    try:
        return runpy.run_path(str(path))
    except SyntaxError as error:
        raise ValueError(f"{path}: cannot be run (line {error.lineno}: {error.msg})") from error
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        place = f"line {lines[-1]}: " if lines else ""
        raise ValueError(f"{path}: cannot be run ({place}{type(error).__name__}: {error})") from error


def choose_experiments(names: Sequence[str], *, everything: bool = False) -> list[Experiment]:
    """Returns experiments of the catalogue by id, by source (`000` … `004`), by file, or by `seconds`: all that take
    seconds.
    """
    known = list(experiments().values())
    if everything:
        return known
    # An experiment that two names mean is run once.
    chosen: dict[str, Experiment] = {}
    for name in names:
        # Words for several experiments come first, so that `find_experiment` refuses only what means nothing at all.
        if name == "seconds":
            some = [one for one in known if one.is_first_look]
        elif any(one.source == name for one in known):
            some = [one for one in known if one.source == name]
        else:
            some = [find_experiment(name)]
        chosen.update({one.id: one for one in some})
    # No names at all would otherwise be a run that does nothing and reports success.
    if not chosen:
        raise ValueError("nothing named: give ids, a source such as 000, `seconds`, or --all; see `sordino lab list`")
    return list(chosen.values())

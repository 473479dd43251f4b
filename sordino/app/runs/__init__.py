"""Recipes and runs: whole training runs as flat tables of fields, and what carries them out.

The table of recipes needs no torch; what prepares and builds a run is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sordino.app.runs.known_recipes import NAMES, RECIPES, find
from sordino.app.runs.recipe import Recipe, from_table

if TYPE_CHECKING:
    from sordino.app.runs.declared_file import OwnFile
    from sordino.app.runs.encoded_records import Prepared, prepare
    from sordino.app.runs.job import event, noise_multiplier
    from sordino.app.runs.preparation import project, standardise
    from sordino.app.runs.problem import Problem, build

_HOME = {
    "OwnFile": "declared_file",
    "event": "job",
    "noise_multiplier": "job",
    "Prepared": "encoded_records",
    "prepare": "encoded_records",
    "project": "preparation",
    "Problem": "problem",
    "build": "problem",
    "standardise": "preparation",
}

__all__ = [
    "NAMES",
    "RECIPES",
    "OwnFile",
    "Prepared",
    "Problem",
    "Recipe",
    "build",
    "event",
    "find",
    "from_table",
    "noise_multiplier",
    "prepare",
    "project",
    "standardise",
]


def __getattr__(name: str) -> Any:
    """Imports the parts that need torch when they are first used."""
    if name not in _HOME:
        raise AttributeError(f"module 'sordino.app.runs' has no attribute {name!r}")
    return getattr(import_module(f"sordino.app.runs.{_HOME[name]}"), name)

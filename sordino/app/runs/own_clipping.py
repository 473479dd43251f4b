"""Builds a clipping rule from a user's own file: `rules.py:Smooth` names the class or function `Smooth` of rules.py.

    sordino train mnist --clipping rules.py:Smooth --parameter sharpness=2

It is called with the clip bound of the run. Its further parameters need a number as default, which `--parameter` changes.

**Privacy:** the rule says itself how far one record can move the sum (`Rule.sensitivity`). That is the author's word: the
runtime checks try it on every lot that they replay, and the claim lists it among what it rests on. The file is part of what
defines a run.
"""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE_MARK = ".py:"
_METHODS_OF_A_RULE = ("init", "rule", "advance")


def is_own_rule(word: str | None) -> bool:
    """Returns whether the word for a clipping rule names a user's file."""
    return word is not None and FILE_MARK in word


def with_absolute_path(word: str) -> str:
    """Returns the word with an absolute path, so that a run finds the file from any folder."""
    path, name = _split_word(word)
    return f"{path.absolute()}:{name}"


def default_parameters(word: str) -> dict[str, float]:
    """Returns the parameters of a user's own clipping rule beside the bound, with their defaults.

    Raises:
        ValueError: a parameter has no number as default, so that nobody could say what it is.

    """
    described = inspect.signature(_load(word)).parameters.values()
    parameters = {}
    for one in list(described)[1:]:
        if isinstance(one.default, bool) or not isinstance(one.default, int | float):
            raise ValueError(f"clipping={word!r}: its parameter {one.name!r} needs a number as default")
        parameters[one.name] = float(one.default)
    return parameters


def build_own_rule(word: str, bound: float, parameters: Mapping[str, float]) -> Any:
    """Returns the user's own clipping rule with a bound and its further parameters.

    Raises:
        ValueError: the call fails, or what it returns is no clipping rule.

    """
    build = _load(word)
    try:
        rule = build(bound, **parameters)
    except Exception as error:  # a user's code may raise anything
        raise ValueError(f"clipping={word!r}: the call with bound {bound:g} failed ({error})") from error
    missing = [name for name in _METHODS_OF_A_RULE if not callable(getattr(rule, name, None))]
    if missing:
        raise ValueError(
            f"clipping={word!r}: gave a {type(rule).__name__} without {', '.join(missing)}.\n"
            "Derive it from sordino.clipping.clipping_rule.Stateless and give it a method `rule`; "
            "docs/how_to/own_variants.md has an example."
        )
    return rule


def _load(word: str) -> Any:
    """Runs the user's file and returns the clipping rule that it defines under the name."""
    path, name = _split_word(word)
    try:
        found = runpy.run_path(str(path)).get(name)
    except Exception as error:  # a user's code may raise anything
        raise ValueError(f"clipping={word!r}: {path.name} cannot be run ({type(error).__name__}: {error})") from error
    if not callable(found):
        raise ValueError(f"clipping={word!r}: {path.name} defines no class or function {name!r}")
    return found


def _split_word(word: str) -> tuple[Path, str]:
    """Returns path and name of the word for a user's own clipping rule; raises if the file does not exist."""
    file, _, name = word.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"clipping={word!r}: {file} is not there; need FILE.py:NAME")
    return path, name

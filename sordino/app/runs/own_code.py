"""The user's own code in a run: models and clipping rules from a Python file, as FILE.py:NAME.

    sordino train mnist --model net.py:build                                     the function `build` of net.py
    sordino train mnist --clipping rules.py:Smooth --parameter sharpness=2       the class or function `Smooth` of rules.py

A model's function is called with the shape of one record and the number of classes, or of numbers to predict. A clipping
rule is called with the clip bound of the run; its further parameters need a number as default, which `--parameter` changes.

**Privacy:** a clipping rule says itself how far one record can move the sum (`Rule.sensitivity`). That is the author's
word: the runtime checks try it on every lot that they replay, and the claim lists it among what it rests on. A file is part
of what defines a run: if it has changed, the run does not go on.
"""

from __future__ import annotations

import hashlib
import inspect
import runpy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

_FILE_MARK = ".py:"
_METHODS_OF_A_RULE = ("init", "rule", "advance")


def names_own_code(word: str | None) -> bool:
    """Returns whether the name of a model or of a clipping rule means code in a user's file."""
    return word is not None and _FILE_MARK in word


def with_absolute_path(field: str, word: str) -> str:
    """Returns the name of a user's own code with an absolute path, so that a run finds the file from any folder.

    `field` is what the name was given for, `model` or `clipping`; messages name it. Other names are returned as they are.
    """
    if not names_own_code(word):
        return word
    path, name = _split_word(field, word)
    return f"{path.absolute()}:{name}"


def file_digest(field: str, word: str | None) -> str | None:
    """Returns the SHA-256 of the file that holds a user's own code, or None if the name means no file."""
    if word is None or not names_own_code(word):
        return None
    return hashlib.sha256(_split_word(field, word)[0].read_bytes()).hexdigest()


def build_own_model(word: str, shape: Sequence[int], classes: int) -> nn.Module:
    """Returns the model that a function in the user's own code builds; the file is run for that.

    Raises:
        ValueError: the file or the call fails, or what it returns is no module.

    """
    # The file is the user's own code and may raise anything, so every error becomes a message that names the file.
    build = _load("model", word, "has no function {name!r}; need one of the shape and the classes")
    call = f"{word.rpartition(':')[2]}({tuple(shape)}, {classes})"
    try:
        model = build(tuple(shape), classes)
    except Exception as error:
        raise ValueError(f"model={word!r}: {call} failed ({type(error).__name__}: {error})") from error
    if not isinstance(model, nn.Module):
        name = word.rpartition(":")[2]
        raise ValueError(f"model={word!r}: {name} gave a {type(model).__name__}; need a torch.nn.Module")
    return model


def rule_parameters(word: str) -> dict[str, float]:
    """Returns the parameters of a clipping rule in the user's own code beside the bound, with their defaults.

    Raises:
        ValueError: a parameter has no number as default, so that nobody could say what it is.

    """
    described = inspect.signature(_load_rule(word)).parameters.values()
    parameters = {}
    for one in list(described)[1:]:
        if isinstance(one.default, bool) or not isinstance(one.default, int | float):
            raise ValueError(f"clipping={word!r}: its parameter {one.name!r} needs a number as default")
        parameters[one.name] = float(one.default)
    return parameters


def build_own_rule(word: str, bound: float, parameters: Mapping[str, float]) -> Any:
    """Returns the clipping rule that the user's own code defines, with a bound and its further parameters.

    Raises:
        ValueError: the call fails, or what it returns is no clipping rule.

    """
    build = _load_rule(word)
    try:
        rule = build(bound, **parameters)
    except Exception as error:  # a user's code may raise anything
        raise ValueError(f"clipping={word!r}: the call with bound {bound:g} failed ({error})") from error
    # A rule that lacks a method would otherwise fail in the middle of a run.
    missing = [name for name in _METHODS_OF_A_RULE if not callable(getattr(rule, name, None))]
    if missing:
        raise ValueError(
            f"clipping={word!r}: gave a {type(rule).__name__} without {', '.join(missing)}.\n"
            "Derive it from sordino.clipping.clipping_rule.Stateless and give it a method `rule`; "
            "docs/how_to/own_variants.md has an example."
        )
    return rule


def _load_rule(word: str) -> Callable[..., Any]:
    return _load("clipping", word, "defines no class or function {name!r}")


def _load(field: str, word: str, if_missing: str) -> Callable[..., Any]:
    """Runs the file of the user's own code and returns what it defines under the name; `if_missing` completes the
    message of a file that does not define it.
    """
    path, name = _split_word(field, word)
    # The file is run, not imported: it needs no place on the path, and a changed file is read anew.
    try:
        found = runpy.run_path(str(path)).get(name)
    except Exception as error:  # a user's code may raise anything
        raise ValueError(f"{field}={word!r}: {path.name} cannot be run ({type(error).__name__}: {error})") from error
    if not callable(found):
        raise ValueError(f"{field}={word!r}: {path.name} {if_missing.format(name=name)}")
    own_code: Callable[..., Any] = found
    return own_code


def _split_word(field: str, word: str) -> tuple[Path, str]:
    """Returns the path and the name in the word for a user's own code; raises if the file does not exist."""
    file, _, name = word.rpartition(":")
    path = Path(file)
    if not path.is_file():
        kind = "FUNCTION" if field == "model" else "NAME"
        raise ValueError(f"{field}={word!r}: {file} is not there; need FILE.py:{kind}")
    return path, name

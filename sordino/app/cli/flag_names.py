"""The names under which options can be typed: their own, what other libraries call them, and what was probably meant.

Every command that has an option takes the names of `FURTHER_NAMES` for it, and its help shows the most usual ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from sordino.app.option_names import FURTHER_NAMES
from sordino.app.suggestions import suggest_name


def flag_of(field_name: str) -> str:
    """Returns the option of a field as it is typed.

    >>> flag_of("learning_rate")
    '--learning-rate'
    """
    return f"--{field_name.replace('_', '-')}"


def known_flags(command: type[Any]) -> dict[str, str]:
    """Returns every name under which an option of a command can be typed, with the option's own name.

    A yes-or-no option can be typed with `no-` before it as well.
    """
    own_names = {flag_of(one.name): flag_of(one.name) for one in fields(command)}
    flags = {"--help": "--help", **own_names}
    for one in fields(command):
        if isinstance(one.default, bool) or (type(one.default) is int and one.default in (0, 1)):
            flags[f"--no-{one.name.replace('_', '-')}"] = f"--no-{one.name.replace('_', '-')}"
        # A name that is an option of the command itself is never taken away from it.
        for other in FURTHER_NAMES.get(one.name, ()):
            flags.setdefault(f"--{other}", flag_of(one.name))
    return flags


def further_names(command: type[Any], field_name: str) -> list[str]:
    """Returns the other names of a field that this command takes for it."""
    flags = known_flags(command)
    return [
        f"--{other}" for other in FURTHER_NAMES.get(field_name, ()) if flags.get(f"--{other}") == flag_of(field_name)
    ]


def translate_flags(command: type[Any], arguments: Sequence[str], prog: str) -> list[str]:
    """Returns the arguments with every option under its own name; raises ValueError for an option that is not known.

    The message names the option that is most like it, and the place to look them all up.
    """
    flags = known_flags(command)
    translated: list[str] = []
    for text in arguments:
        # Only the name is translated: underscores in a value, such as a file name, must stay.
        name, equals, value = text.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        # Values and positional arguments pass unchanged.
        if not name.startswith("--") or name == "--":
            translated.append(text)
        elif name in flags:
            translated.append(f"{flags[name]}{equals}{value}")
        else:
            raise ValueError(f"no option {name}{_suggest_flag(name, flags)}; see `{prog} --help`")
    return translated


def _suggest_flag(name: str, flags: Iterable[str]) -> str:
    """Returns the part of a message about an unknown option that says which was probably meant, if one is like it."""
    suggestion = suggest_name(name.removeprefix("--"), [flag.removeprefix("--") for flag in flags])
    return "" if suggestion is None else f"; did you mean --{suggestion}?"

"""The flags of a command: made of the fields of a dataclass, and typed under their own names or those of other libraries.

A flag that is not given is its default, the very object, so that a command can tell what was asked for: flags win over
files. For most that is None. A yes-or-no flag takes no None, so its default is a number: 0 and 1 mean no and yes, and are
not the False and True of a flag that was given.

Every command that has an option takes the names of `FURTHER_NAMES` for it, and its help shows the most usual ones.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import Field, field, fields
from typing import Annotated, Any, get_type_hints

import tyro

from sordino.app.option_names import FURTHER_NAMES
from sordino.app.suggestions import suggest_name

Flag = tuple[str, Any, Field[Any]]


def flags_of(table: type[Any], leave_out: tuple[str, ...] = ()) -> Iterator[Flag]:
    """Yields one flag of a command for each field of a dataclass, in the form that
    `dataclasses.make_dataclass` takes.
    """
    kinds, help_texts = get_type_hints(table), read_field_docs(table)
    for one in fields(table):
        # A field that is no flag of this command, such as a record of further fields, is left to the caller.
        if one.name in leave_out:
            continue
        # None stands for "not given", so that the recipe's value is kept; a yes-or-no flag needs its own mark for that.
        yes_or_no = kinds[one.name] is bool
        kind, default = (
            (bool, default_of_unset_flag(bool(one.default))) if yes_or_no else (kinds[one.name] | None, None)
        )
        hint = f"(default: {one.default})" if yes_or_no else None
        about = tyro.conf.arg(help=help_texts.get(one.name, ""), help_behavior_hint=hint)
        yield one.name, Annotated[kind, about], field(default=default)  # type: ignore[arg-type]  # flags differ in type


def default_of_unset_flag(default: bool) -> Any:
    """Returns the default of a command's yes-or-no flag that was not typed on the command line: a number and no bool, so
    that one can tell whether it was given.

    >>> default_of_unset_flag(True) is True, bool(default_of_unset_flag(True))
    (False, True)
    """
    return int(default)


def was_given(command: Any, name: str) -> bool:
    """Returns whether this flag of a command was on the command line."""
    return next(getattr(command, name) is not one.default for one in fields(command) if one.name == name)


def read_field_docs(table: type[Any]) -> dict[str, str]:
    """Returns the text under each field of a dataclass, which becomes the help of its flag.

    >>> from sordino.app.runs.recipe import PrivacyPlan
    >>> read_field_docs(PrivacyPlan)["bound"]
    "Clip bound on each record's gradient."
    """
    (class_node,) = ast.parse(textwrap.dedent(inspect.getsource(table))).body
    assert isinstance(class_node, ast.ClassDef)
    docs = {}
    # Python keeps no docstrings of fields, so they are read from the source.
    for one, after in zip(class_node.body, class_node.body[1:], strict=False):
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(text, str):
            docs[one.target.id] = " ".join(text.split())
    return docs


def flag_of(field_name: str) -> str:
    """Returns the flag of a field as it is typed.

    >>> flag_of("learning_rate")
    '--learning-rate'
    """
    return f"--{field_name.replace('_', '-')}"


def known_flags(command: type[Any]) -> dict[str, str]:
    """Returns every flag that can be typed for a command, each with the flag under its own name.

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
    """Returns the other flags, such as the names of other libraries, by which a command takes a field."""
    flags = known_flags(command)
    return [
        f"--{other}" for other in FURTHER_NAMES.get(field_name, ()) if flags.get(f"--{other}") == flag_of(field_name)
    ]


def translate_flags(command: type[Any], arguments: Sequence[str], prog: str) -> list[str]:
    """Returns the arguments with every flag under its own name; raises ValueError for a flag that is not known.

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

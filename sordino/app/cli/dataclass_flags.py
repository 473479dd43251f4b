"""Turns the fields of a dataclass into flags of a command, with name, type and help.

A flag that is not given is its default, the very object, so that a command can tell what was asked for: flags win over
files. For most that is None. A yes-or-no flag takes no None, so its default is a number: 0 and 1 mean no and yes, and are
not the False and True of a flag that was given.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import Field, field, fields
from typing import Annotated, Any, get_type_hints

import tyro

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
    """Returns the default of a dataclass's yes-or-no flag that was not given, which is a number and no bool.

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

"""The fields of a dataclass as flags of a command: name, type and help are written once, where the field is.

A flag that is not given is None, so that a command can tell what was asked for; yes-or-no fields keep their default.
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


def flags(table: type[Any], leave_out: tuple[str, ...] = ()) -> Iterator[Flag]:
    """One flag for each field, as `dataclasses.make_dataclass` takes them."""
    kinds, said = get_type_hints(table), field_docs(table)
    for one in fields(table):
        if one.name in leave_out:
            continue
        yes_or_no = kinds[one.name] is bool
        kind, default = (bool, bool(one.default)) if yes_or_no else (kinds[one.name] | None, None)
        yield one.name, Annotated[kind, tyro.conf.arg(help=said.get(one.name, ""))], field(default=default)  # type: ignore[arg-type]  # flags differ in type


def field_docs(table: type[Any]) -> dict[str, str]:
    """The text under each field of a class.

    >>> from sordino.runs.recipe import Recipe
    >>> field_docs(Recipe)["bound"]
    "Clip bound on each record's gradient."
    """
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(table))).body
    assert isinstance(made, ast.ClassDef)
    found = {}
    for one, after in zip(made.body, made.body[1:], strict=False):
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(text, str):
            found[one.target.id] = " ".join(text.split())
    return found

"""The help of a command: usage, examples, and its options in groups, with other names and defaults.

A command says what is special about it in a `HelpPage`; everything else is read from its dataclass. Options that no group
names come last, so that a new option is never missing from the help.
"""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from sordino.app.cli.flags import flag_of, further_names, read_field_docs

_MOST_FURTHER_NAMES = 1
_COLUMN = 30
"""Where the text about an option begins."""
_NARROWEST, _WIDEST = 72, 110


@dataclass(frozen=True)
class HelpPage:
    """What the help of a command says beside its options."""

    examples: tuple[tuple[str, str], ...] = ()
    """What somebody wants, and what they type for it."""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Titles, and the fields under each."""
    values: Mapping[str, str] = field(default_factory=dict)
    """What to type after an option, by its field, where the type says too little: COLUMN, FILE."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Defaults by field, where they are not those of the dataclass."""
    notes: tuple[str, ...] = ()
    """Sentences between the examples and the options."""


def render_help(command: type[Any], prog: str, about: str) -> str:
    """Returns the help of a command as text, as wide as the terminal."""
    page: HelpPage = getattr(command, "help_page", HelpPage())
    width = min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST)
    options = {one.name: one for one in _options_of(command)}
    positionals = [one for one in options.values() if one.is_positional]
    # Usage and what the command is for.
    usage = " ".join([f"usage: {prog}", *(one.usage() for one in positionals), "[options]"])
    lines = [usage, "", *textwrap.wrap(f"{about[0].upper()}{about[1:].rstrip('.')}.", width)]
    # Examples come before the options: most readers want nothing else.
    if page.examples:
        lines += ["", "Examples"]
        for wanted, typed in page.examples:
            lines += [*textwrap.wrap(wanted, width, initial_indent="  ", subsequent_indent="  "), f"    $ {typed}"]
    for note in page.notes:
        lines += ["", *textwrap.wrap(note, width)]
    # The positional arguments, the groups in their order, and whatever no group names.
    grouped = {name for names in page.groups.values() for name in names}
    others = [one.name for one in options.values() if not one.is_positional and one.name not in grouped]
    groups = {
        "Arguments": tuple(one.name for one in positionals),
        **page.groups,
        "Options" if not page.groups else "Others": tuple(others),
    }
    for title, names in groups.items():
        shown = [options[name] for name in names if name in options]
        if shown:
            lines += ["", title]
            for one in shown:
                lines += one.render(page, width)
    return "\n".join(lines)


@dataclass(frozen=True)
class _Option:
    """One option of a command, as its help shows it."""

    command: type[Any]
    field: Field[Any]
    kind: Any
    """Its type, without what tyro is told about it."""
    text: str
    hint: str | None
    metavar: str | None
    is_positional: bool

    @property
    def name(self) -> str:
        """The name of its field."""
        return self.field.name

    def usage(self) -> str:
        """Returns how the usage line of a command's help page shows a positional argument."""
        value = self.metavar or self.name.upper()
        several = get_origin(self.kind) is tuple
        if get_origin(self.kind) is Literal:
            value = "{" + ",".join(map(str, get_args(self.kind))) + "}"
        value = f"{value} …" if several else value
        return value if self.field.default is MISSING else f"[{value}]"

    def render(self, page: HelpPage, width: int) -> list[str]:
        """Returns the lines of the help page about this option: its names, what to type after them, its text and
        default.
        """
        if self.is_positional:
            head = self.usage().strip("[]")
        else:
            names = [flag_of(self.name), *further_names(self.command, self.name)[:_MOST_FURTHER_NAMES]]
            head = f"{', '.join(names)} {page.values.get(self.name) or self._value()}".rstrip()
        # A page may word a default that the type alone does not explain.
        default = page.defaults.get(self.name, self._default())
        text = " ".join(filter(None, [self.text, f"[{default}]" if default else ""]))
        body = textwrap.wrap(text, width - _COLUMN) or [""]
        # A long head has a line of its own.
        first = f"  {head}"
        if len(first) > _COLUMN - 2:
            return [first, *(" " * _COLUMN + line for line in body)]
        return [f"{first:<{_COLUMN}}{body[0]}".rstrip(), *(" " * _COLUMN + line for line in body[1:])]

    def _value(self) -> str:
        """Returns what the help page says is typed after the option, by its type; nothing after a yes-or-no option."""
        if self.metavar:
            return self.metavar
        return _name_of_kind(self.kind)

    def _default(self) -> str:
        """Returns the option's default in the words of the help page; nothing where leaving it out needs no explanation."""
        default = self.field.default
        # A hint of the option's author says more than its value; that of a yes-or-no option is worded below.
        if self.hint is not None and self.kind is not bool:
            return self.hint
        if default is MISSING:
            return "" if self.is_positional else "must be given"
        # These mean that nothing was asked for, which needs no words.
        if default is None or default == () or default == "":
            return ""
        if self.kind is bool:
            return "yes; --no-" + self.name.replace("_", "-") if default else ""
        return ",".join(map(str, default)) if isinstance(default, tuple) else f"{default}"


def _options_of(command: type[Any]) -> Iterator[_Option]:
    """Yields every option that the help page of a command lists, with the text that its field carries."""
    hints = get_type_hints(command, include_extras=True)
    # Texts stand under the fields of the class that defines them; fields that were made have theirs in the annotation.
    docs: dict[str, str] = {}
    for each in reversed(command.__mro__):
        if hasattr(each, "__dataclass_fields__") and _has_source(each):
            docs |= read_field_docs(each)
    for one in fields(command):
        # tyro's own configuration has the text of fields that were made from other records.
        kind, notes = _split_annotation(hints[one.name])
        config = next((note for note in notes if hasattr(note, "help_behavior_hint")), None)
        hint = getattr(config, "help_behavior_hint", None)
        yield _Option(
            command,
            one,
            kind,
            text=(getattr(config, "help", None) or docs.get(one.name, ""))
            .replace("; None: ", "; left out: ")
            .replace("None: ", "Left out: "),
            hint=hint.strip("()").removeprefix("default: ") if isinstance(hint, str) else None,
            metavar=getattr(config, "metavar", None),
            is_positional=any("positional" in str(note).lower() for note in notes),
        )


def _has_source(table: type[Any]) -> bool:
    """Returns whether the source of a command's class can be read for its help page, which is not so of a class that
    was made by a function.
    """
    try:
        return inspect.getsource(table).lstrip().startswith(("@dataclass", "class "))
    except (OSError, TypeError):
        return False


def _split_annotation(annotation: Any) -> tuple[Any, list[Any]]:
    """Returns the type in an option's annotation, without None, and everything that tyro was told beside it for the
    help page.
    """
    notes: list[Any] = []
    # Annotations may be nested, each with notes of its own.
    while get_origin(annotation) is Annotated:
        annotation, *found = get_args(annotation)
        notes += found
    if get_origin(annotation) in (UnionType, Union):
        kinds = [one for one in get_args(annotation) if one is not NoneType]
        annotation = kinds[0]
    return annotation, notes


def _name_of_kind(kind: Any) -> str:
    """Returns the word for a value of this type, as help pages and error messages use it."""
    if kind is bool:
        return ""
    if get_origin(kind) is Literal:
        return "{" + ",".join(map(str, get_args(kind))) + "}"
    if get_origin(kind) is tuple:
        return f"{_name_of_kind(get_args(kind)[0])} …"
    return {int: "COUNT", float: "NUMBER", str: "TEXT", Path: "FILE"}.get(kind, "VALUE")

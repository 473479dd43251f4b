"""Writes TOML, which the standard library can only read.

Tables of text, numbers, booleans and flat lists are all that is needed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dumps(table: Mapping[str, Any]) -> str:
    """Writes a table as TOML and returns the text, with subtables last; fields that are None are left out.

    >>> print(dumps({"recipe": {"name": "mnist", "rate": 0.0625, "seed": None}}), end="")
    [recipe]
    name = "mnist"
    rate = 0.0625
    """
    return "\n\n".join(_format_tables(table, ())).lstrip("\n") + "\n"


def _format_tables(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    """Returns the TOML text of a table and of each of its subtables."""
    rows = [
        f"{_format_key(k)} = {_format_value(v)}"
        for k, v in table.items()
        if v is not None and not isinstance(v, Mapping)
    ]
    head = [f"[{'.'.join(map(_format_key, path))}]"] if path and (rows or not table) else []
    own = ["\n".join([*head, *rows])] if head or rows else []
    inner = [text for k, v in table.items() if isinstance(v, Mapping) for text in _format_tables(v, (*path, k))]
    return own + inner


def _format_key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _format_text(key)


def _format_value(value: Any) -> str:
    """Returns a value as the TOML writer writes it."""
    # A bool is an int in Python, so it is asked for first; TOML has no `True`.
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _format_text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_format_value, value))}]"
    # What `str` makes of any other value would be read back as something different.
    raise TypeError(f"{value!r}: a {type(value).__name__} has no place in TOML here")


def _format_text(text: str) -> str:
    # JSON's escapes are TOML's, but for DEL, and for the halves of characters that no file can hold
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")

"""Parses arguments into a command's dataclass, and turns the parser's errors into one line."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stderr
from typing import Any

import tyro

_FRAME = re.compile(r"^[│╭╰╮╯─\s]+|[│╭╰╮╯─\s]+$")
_RULE = re.compile(r"─{4,}")
_OPTIONAL = re.compile(
    r"Error parsing (\S+): no type matching \{None\}\|(\S+) could be instantiated from \[(.*?)\]\. .*"
)
_NEAR = "Perhaps you meant:"


def parse_command(command: type[Any], arguments: list[str], prog: str, about: str) -> Any:
    """Parses the arguments of a command into its dataclass; raises ValueError with one line if they are wrong."""
    error_text = io.StringIO()
    try:
        with redirect_stderr(error_text):
            return tyro.cli(command, args=arguments, prog=prog, description=about)
    except SystemExit as end:
        if not end.code:
            raise  # --help
        raise ValueError(extract_message(error_text.getvalue(), prog)) from None


def extract_message(box: str, prog: str) -> str:
    r"""Returns the message in the argument parser's framed error text, with the nearest known flag if there is one.

    >>> extract_message("╭─ Value error ─╮\n│ Error parsing --steps: 'abc' │\n│ ──────── │\n│ help │", "sordino train")
    "Error parsing --steps: 'abc'; see `sordino train --help`"
    """
    words: list[str] = []
    suggestion, suggestion_follows = "", False
    # Keep the text up to the first rule inside the frame, and the first suggestion.
    for line in box.splitlines()[1:]:  # the first is the frame's title
        text = _FRAME.sub("", line)
        if suggestion_follows and text:
            suggestion, suggestion_follows = f"; perhaps {text.split()[0]}", False
        if _NEAR in text:
            suggestion_follows = True
        elif _RULE.search(line) and words:
            words.append("")  # what follows is help
        elif text and "" not in words:
            words.append(text)
    message = _OPTIONAL.sub(r"\1 \3: need \2", " ".join(filter(None, words)))
    return f"{message.rstrip('.')}{suggestion}; see `{prog} --help`"

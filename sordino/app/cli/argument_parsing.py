"""Parses arguments into a command's dataclass, and turns the parser's errors into one line."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stderr
from typing import Any

import tyro

from sordino.app.cli.flags import translate_flags
from sordino.app.cli.help_page import render_help

_FRAME = re.compile(r"^[│╭╰╮╯─\s]+|[│╭╰╮╯─\s]+$")
_RULE = re.compile(r"─{4,}")
_OPTIONAL = re.compile(
    r"Error parsing (\S+): no type matching \{None\}\|(\S+) could be instantiated from \[(.*?)\]\. .*"
)
_KINDS = {"INT": "a whole number", "FLOAT": "a number", "STR": "text"}
"""The parser's words for types, and ours."""
_HELP = ("-h", "--help")


def parse_command(command: type[Any], arguments: list[str], prog: str, about: str) -> Any:
    """Parses the arguments of a command into its dataclass; raises ValueError with one line if they are wrong.

    Raises:
        SystemExit: with code 0 after printing the help, if it was asked for.

    """
    if any(text in _HELP for text in arguments):
        print(render_help(command, prog, about))
        raise SystemExit(0)
    own_names = translate_flags(command, arguments, prog)
    # The parser prints what is wrong in a frame and exits.
    error_text = io.StringIO()
    try:
        with redirect_stderr(error_text):
            return tyro.cli(command, args=own_names, prog=prog, description=about)
    except SystemExit as end:
        if not end.code:
            raise
        raise ValueError(extract_message(error_text.getvalue(), prog)) from None


def extract_message(box: str, prog: str) -> str:
    r"""Returns the message in the argument parser's framed error text, with types in plain words.

    >>> extract_message("╭─ Value error ─╮\n│ Error parsing --steps: 'abc' │\n│ ──────── │\n│ help │", "sordino train")
    "--steps: 'abc'; see `sordino train --help`"
    """
    words: list[str] = []
    # Keep the text up to the first rule inside the frame; what follows is help.
    for line in box.splitlines()[1:]:  # the first is the frame's title
        text = _FRAME.sub("", line)
        if _RULE.search(line) and words:
            words.append("")
        elif text and "" not in words:
            words.append(text)
    message = " ".join(filter(None, words))
    message = _OPTIONAL.sub(lambda found: f"{found[1]} {found[3]}: need {_word_for(found[2])}", message)
    message = message.removeprefix("Error parsing ")
    return f"{message.rstrip('.')}; see `{prog} --help`"


def _word_for(kind: str) -> str:
    return _KINDS.get(kind, kind)

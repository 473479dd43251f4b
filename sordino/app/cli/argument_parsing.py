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
_MISSING = re.compile(r"^│ {5}(\S+)", re.MULTILINE)
_CHOICE = re.compile(r"[Ii]nvalid choice ('.*?') for argument '(\S+)'\. Expected one of \((.*?),?\)\.?")
_LITERAL = re.compile(r"(--\S+): invalid literal for int\(\) with base 10: ('.*')")
_FLOAT = re.compile(r"(--\S+): could not convert string to float: ('.*')")
_NO_VALUE = re.compile(r"Missing value for argument '(\S+)'\. Expected .*")
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
    # Required arguments that are missing are named alone: their descriptions are in the help.
    if "Missing from" in box:
        missing = _MISSING.findall(_RULE.split(box.partition("Missing from")[2])[0])
        return f"needs {join_with_and(missing)}; see `{prog} --help`"
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
    message = _LITERAL.sub(r"\1 \2: need a whole number", message)
    message = _FLOAT.sub(r"\1 \2: need a number", message)
    message = _NO_VALUE.sub(r"\1: needs a value", message)
    message = _CHOICE.sub(_describe_choice, message)
    return f"{message.rstrip('.')}; see `{prog} --help`"


def _describe_choice(found: re.Match[str]) -> str:
    """Returns the message for a word that is none of those an argument takes."""
    flag = f"{found[2]} " if found[2].startswith("-") else ""
    choices = found[3].replace("'", "")
    return f"{flag}{found[1]}: need one of {choices}"


def join_with_and(names: list[str]) -> str:
    """Returns the names of missing arguments as English lists them.

    >>> join_with_and(["--rate", "--sigma", "--steps"]), join_with_and(["RUN"])
    ('--rate, --sigma and --steps', 'RUN')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _word_for(kind: str) -> str:
    return _KINDS.get(kind, kind)

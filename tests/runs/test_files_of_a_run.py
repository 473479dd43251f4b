"""A training run from the command line passes few files and few records of the application, so that it can be read from
end to end; docs/architecture.md lists the records.
"""

import dataclasses
import re
import sys
from pathlib import Path

import pytest

import sordino
import sordino.app.cli.train  # what is imported is not what is walked through
from sordino.app.cli import argument_parsing, main, training_command
from sordino.private import Private

ROOT = Path(sordino.__file__).parent / "app"
PAGE = Path(sordino.__file__).parent.parent / "docs" / "architecture.md"
MOST_FILES = 33
RECORDS_OF_A_RUN = 8
"""Rows of the page's table, the command itself counted."""


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """Runs `sordino train digits` once; returns its files of the application, and its records before `Private`."""
    assert argument_parsing
    assert training_command
    files, records, reached_private = set(), set(), []

    def called(frame, event, arg):
        if event != "call":
            return
        if frame.f_code.co_filename.startswith(str(ROOT)):
            files.add(frame.f_code.co_filename)
        # A frozen dataclass is made in a generated function, which belongs to no file: it is known by what it makes.
        if frame.f_code.co_name == "__init__" and not reached_private:
            kind = type(frame.f_locals.get("self"))
            if kind is Private:
                reached_private.append(True)
            elif dataclasses.is_dataclass(kind) and kind.__module__.startswith("sordino.app."):
                records.add(kind.__name__)

    out = tmp_path_factory.mktemp("walk") / "run"
    command = ["train", "digits", "--steps", "2", "--records", "300", "--no-report", "--out", str(out)]
    sys.setprofile(called)
    try:
        assert main.main(command) == 0
    finally:
        sys.setprofile(None)
    assert reached_private
    return files, records


def test_a_run_walks_through_at_most_forty_files_besides_the_library(walk):
    files, _ = walk
    assert 20 < len(files) <= MOST_FILES, sorted(files)


def test_the_records_between_the_command_and_private_are_those_of_the_page(walk):
    _, records = walk
    section = PAGE.read_text("utf-8").partition("## One run's walk")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == RECORDS_OF_A_RUN, rows
    # The first cell of a row names a record; the paragraph after the table names their parts.
    parts = section.partition("Some of these have parts.")[2].partition("\n\n")[0]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert records == listed | set(re.findall(r"`(\w+)`", parts))

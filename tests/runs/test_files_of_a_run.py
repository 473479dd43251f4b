"""A training run from the command line passes few files of the application, so that it can be read from end to end."""

import sys
from pathlib import Path

import sordino
import sordino.app.cli.train  # what is imported is not what is walked through
from sordino.app.cli import argument_parsing, main, training_command

ROOT = Path(sordino.__file__).parent / "app"
MOST_FILES = 33


def test_a_run_walks_through_at_most_forty_files_besides_the_library(tmp_path):
    assert argument_parsing
    assert training_command
    found = set()

    def called(frame, event, arg):
        if event == "call" and frame.f_code.co_filename.startswith(str(ROOT)):
            found.add(frame.f_code.co_filename)

    command = ["train", "digits", "--steps", "2", "--records", "300", "--no-report", "--out", str(tmp_path / "run")]
    sys.setprofile(called)
    try:
        assert main.main(command) == 0
    finally:
        sys.setprofile(None)
    assert 20 < len(found) <= MOST_FILES, sorted(found)

"""Runs that are cut off in the middle, for the tests of what happens then."""

import json
import os
import sys
from dataclasses import replace

import pytest

import sordino
from sordino import environment
from sordino.app.runs import directory
from sordino.app.runs.fit import resume
from sordino.app.runs.progress_view import Silent
from sordino.app.runs.write_ahead import CHAIN, chain_digest

STEPS = 20
TINY = {"steps": STEPS, "records": 300, "seed": 5, "checkpoint_every": 5, "evaluate_every": 4}
FLAGS = ["--no-report"] + [text for key, value in TINY.items() for text in (f"--{key.replace('_', '-')}", str(value))]
COMMAND = [sys.executable, "-m", "sordino.app.cli.main"]


class Crash(BaseException):
    """As if the process died: nothing is put in order."""


class Asks(Silent):
    """Sends this process a real signal."""

    def __init__(self, number, times):
        self.number, self.times = number, times

    def show_step(self, step, spent):
        if step == 7:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)


class CrashesAt(Silent):
    def __init__(self, step):
        self.at, self.said = step, []

    def say(self, text):
        self.said.append(text)

    def show_step(self, step, spent):
        if step == self.at:
            raise Crash


def crashed(folder, step, **given):
    with pytest.raises(Crash):
        sordino.fit("spiral", out=folder, view=CrashesAt(step), **{**TINY, **given})


def resumed(folder):
    view = CrashesAt(-1)
    return resume(folder, view), view.said


def elsewhere(monkeypatch, **facts):
    """From here on this is another machine: other facts decide the bits."""
    monkeypatch.setattr(
        directory, "current_environment", lambda more: {**environment.current_environment(more), **facts}
    )


def edited(path, change):
    """Changes lines of a ledger and forges the chain behind them, as no accident does."""
    lines, chain = [json.loads(line) for line in path.read_text().splitlines()], ""
    for line in lines:
        change(line)
        chain = line[CHAIN] = chain_digest(chain, line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def charged(claim):
    """The claim without how many lots were tested: none of those that were left out is."""
    return replace(claim, rests_on=())

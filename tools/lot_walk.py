"""Follows one lot through the library and writes the files it passes into docs/architecture.md.

python -m tools.lot_walk            writes the list, in the order of the first call
python -m tools.lot_walk --check    exits with 1 if the page lists another walk; tests/test_walk.py does this

Run it after files on the way were merged or moved. One lot is `next(lots)`, `private.backward(lot)`, `optimizer.step()` of
DP-SGD on a small network, after the first lots, at a lot that has no neighbour test. The claim is not part of it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from textwrap import shorten
from types import FrameType
from typing import Any
from unittest import mock

import torch
from torch import nn

import sordino as sd
from sordino.runtime_checks.test_runner import CheckSchedule
from tools.module_listing import first_line

LIBRARY = Path(sd.__file__).parent
PAGE = LIBRARY.parent / "docs" / "architecture.md"
HEADING = "## One lot's walk"
BLOCK = re.compile(re.escape(HEADING) + r".*?```text\n(.*?)```", re.DOTALL)
LOOP = "private.py"
_WIDTH = 118
"""Characters of a code block that fit on the page."""


class Walk:
    """The files of the library in which a function was called, and how often the loop was come back to."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.calls_from_loop: list[str] = []
        """The functions that private.py called in other files, each of which returns to it."""

    def note_call(self, frame: FrameType, event: str, _: Any) -> None:
        """Notes one call, as a profiler of the interpreter; calls outside the library are passed over."""
        path = _path_in_library(frame)
        if event != "call" or path is None:
            return
        self.files.setdefault(path)
        # The caller is the next frame of the library, with whatever of torch or Python lies between.
        caller = frame.f_back
        while caller is not None and _path_in_library(caller) is None:
            caller = caller.f_back
        if path != LOOP and caller is not None and _path_in_library(caller) == LOOP:
            self.calls_from_loop.append(f"{path}: {frame.f_code.co_name}")


def _path_in_library(frame: FrameType) -> str | None:
    path = Path(frame.f_code.co_filename)
    return path.relative_to(LIBRARY).as_posix() if path.is_relative_to(LIBRARY) else None


@contextmanager
def _without_neighbour_test() -> Iterator[None]:
    """Lets no lot be tested: a tested lot passes the engine several times."""
    with ExitStack() as patches:
        for name in ("is_due", "is_due_before_claim", "is_due_at_the_end"):
            patches.enter_context(mock.patch.object(CheckSchedule, name, return_value=False))
        yield


def trace_lot() -> Walk:
    """Trains three lots and returns the walk of the third."""

    def loss_fn(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(x), y, reduction="none")

    data = torch.utils.data.TensorDataset(torch.randn(200, 4), torch.randint(0, 2, (200,)))
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1)))
    lots = private.draws(data, sd.Poisson(0.1), steps=3, expected_batch=20)
    # The first lots teach the engine the model, and are tested.
    for _ in range(2):
        private.backward(next(lots))
        optimizer.step()
    walk = Walk()
    with _without_neighbour_test():
        sys.setprofile(walk.note_call)
        try:
            private.backward(next(lots))
            optimizer.step()
        finally:
            sys.setprofile(None)
    return walk


def listed_files(page: str) -> list[str]:
    """Returns the files that the page lists, in their order."""
    found = BLOCK.search(page)
    return [] if found is None else [line.split()[0] for line in found.group(1).splitlines() if line.strip()]


def render_block(files: list[str]) -> str:
    """Returns the lines of the list: each file with the first line of its docstring, shortened to the page's width."""
    width = max(map(len, files)) + 2
    abouts = (shorten(first_line(LIBRARY / name), _WIDTH - width, placeholder=" …") for name in files)
    return "".join(f"{name:<{width}}{about}\n" for name, about in zip(files, abouts, strict=True))


def main() -> int:
    """Writes the list, or compares it with `--check`; returns the exit code."""
    walk, page = trace_lot(), PAGE.read_text()
    files = list(walk.files)
    print(f"{len(files)} files, {len(walk.calls_from_loop)} returns to {LOOP}")
    if "--check" in sys.argv:
        return int(listed_files(page) != files)
    found = BLOCK.search(page)
    if found is None:
        print(f"{PAGE.name} has no list of files below {HEADING!r}")
        return 1
    PAGE.write_text(page[: found.start(1)] + render_block(files) + page[found.end(1) :])
    return 0


if __name__ == "__main__":
    sys.exit(main())

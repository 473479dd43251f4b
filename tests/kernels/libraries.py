"""The kernels of these very sources: as installed, or built apart where they are not."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sordino.kernels import build
from sordino.kernels.abi import LEVELS, Functions, declare_types
from sordino.kernels.library import KernelUnavailable, open_library


def copied(folder: Path) -> None:
    """What is needed to build them elsewhere."""
    for name in ("build.py", *(source for made in build.LIBRARIES for source in made.sources)):
        shutil.copy(build.HERE / name, folder)


@cache
def _folder() -> Path | None:
    if build.find_compiler() is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="sordino-kernels-"))
    copied(folder)
    subprocess.run([sys.executable, str(folder / "build.py")], check=True)
    return folder


def library(made: build.Library, functions: Functions) -> ctypes.CDLL:
    """One of them; a test that asks for it is skipped where there is no compiler."""
    try:
        return declare_types(open_library(made), functions)
    except KernelUnavailable:
        folder = _folder()
    if folder is None:
        pytest.skip("there is no C compiler")
    return declare_types(ctypes.CDLL(str(folder / made.path.name)), functions)


def levels(made: build.Library, functions: Functions, kind: Any, names: tuple[str, ...] = LEVELS) -> Any:
    """A fixture: the kernel at each level of a processor's abilities."""

    @pytest.fixture(params=range(len(names)), ids=names)
    def kernel(request: pytest.FixtureRequest) -> Any:
        found = library(made, functions)
        if found.sordino_level(request.param) != request.param:
            pytest.skip("this processor has no such instructions")
        return kind(found, request.param)

    return kernel

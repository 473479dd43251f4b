"""The kernels of these very sources: as installed, or built apart where they are not."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sordino.kernels import build
from sordino.kernels.library import Unavailable, opened


@cache
def _folder() -> Path | None:
    if build.compiler() is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="sordino-kernels-"))
    for name in ("build.py", *(source for made in build.LIBRARIES for source in made.sources)):
        shutil.copy(Path(build.__file__).parent / name, folder)
    subprocess.run([sys.executable, str(folder / "build.py")], check=True)
    return folder


def library(made: build.Library) -> ctypes.CDLL:
    """One of them; a test that asks for it is skipped where there is no compiler."""
    try:
        return opened(made)
    except Unavailable:
        folder = _folder()
    if folder is None:
        pytest.skip("there is no C compiler")
    return ctypes.CDLL(str(folder / made.path.name))


def levels(made: build.Library, typed: Callable[[ctypes.CDLL], ctypes.CDLL], names: tuple[str, ...], kind: Any) -> Any:
    """A fixture: the kernel at each level of a processor's abilities."""

    @pytest.fixture(params=range(len(names)), ids=names)
    def kernel(request: pytest.FixtureRequest) -> Any:
        found = typed(library(made))
        if found.sordino_level(request.param) != request.param:
            pytest.skip("this processor has no such instructions")
        return kind(found, request.param)

    return kernel

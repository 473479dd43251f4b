"""Compiles the kernels when the package is installed or a wheel is made; without a compiler it stays pure Python."""

from __future__ import annotations

import importlib.util
import re
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_OLDEST = 17
_OF_LIBC = {b"libc.so.6", b"libm.so.6", b"libpthread.so.0"}


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc]
    """Runs sordino/kernels/build.py, which imports nothing of the package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before the files are collected."""
        if self.target_name != "wheel":  # an editable install is a wheel too
            return
        kernels = _loaded(Path(self.root) / "sordino" / "kernels" / "build.py")
        problems = kernels.build_libraries()
        if problems:
            self.app.display_warning(
                f"numpy and torch do the work of kernels that are missing\n{kernels.format_problems(problems)}"
            )
        made = [library.path.name for library in kernels.LIBRARIES if library.name not in problems]
        if not made:
            return
        build_data["artifacts"] += [f"sordino/kernels/{name}" for name in made]  # git ignores them
        build_data["pure_python"] = False
        # They are loaded by ctypes: any Python, this platform.
        build_data["tag"] = f"py3-none-{platform_of([Path(self.root) / 'sordino' / 'kernels' / name for name in made])}"


def platform_of(libraries: list[Path]) -> str:
    """Where they can be loaded: on Linux by the newest symbol of the C library they ask for, if they need no other library.

    manylinux_2_N means a C library of version 2.N or later (PEP 600); 17 is the oldest that installers know.
    """
    here = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    if not here.startswith("linux_"):
        return here
    content = [path.read_bytes() for path in libraries]
    others = {name for each in content for name in re.findall(rb"lib[\w+-]+\.so[.\d]*", each)} - _OF_LIBC
    symbols = [int(number) for each in content for number in re.findall(rb"GLIBC_2\.(\d+)", each)]
    if others or not symbols:
        return here
    return here.replace("linux_", f"manylinux_2_{max(_OLDEST, *symbols)}_", 1)


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("sordino_kernels_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

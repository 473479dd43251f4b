"""Compiles the simulated accelerator once and keeps it in the user's cache, by torch's version and the sources' hash."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import torch
from torch.utils import cpp_extension

HERE = Path(__file__).parent
SOURCES = ("accelerator.cpp", "autocast.cpp")
FLAGS = ("-std=c++20", "-O1", "-g0", "-fPIC", "-w")


class NoSimulatedDevice(RuntimeError):
    """The simulated accelerator cannot be built here; the text says why."""


def library_path() -> Path:
    """Returns where the library of this torch, this Python and these sources is, or would be."""
    parts = [torch.__version__, platform.machine(), platform.python_version(), *FLAGS]
    parts += [(HERE / source).read_text() for source in SOURCES]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "sordino" / "simulated_device" / f"accelerator-{digest}.so"


def build() -> Path:
    """Returns the path of the library, compiling it if this has not been done before.

    Raises:
        NoSimulatedDevice: there is no compiler, no header of Python, the system is not Linux, or the compiler fails.
    """
    path = library_path()
    if path.exists():
        return path
    if platform.system() != "Linux":
        raise NoSimulatedDevice("the simulated device needs Linux: it reserves memory that the host may not read")
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if compiler is None:
        raise NoSimulatedDevice("no C++ compiler (g++ or clang++) to build the simulated device with")
    headers = sysconfig.get_path("include")
    if not (Path(headers) / "Python.h").exists():
        raise NoSimulatedDevice(f"no Python.h in {headers} to build the simulated device with")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Of several processes that come here at once, one compiles and the others wait for it.
    with (path.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _compile(compiler, headers, path)
    return path


def _compile(compiler: str, headers: str, path: Path) -> None:
    """Compiles the library and moves it to its place when it is finished."""
    libraries = Path(torch.__file__).parent / "lib"
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [compiler, *FLAGS, "-shared", *(str(HERE / source) for source in SOURCES), "-o", str(made)]
        command += [f"-I{include}" for include in [*cpp_extension.include_paths(), headers]]
        command += [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoSimulatedDevice(f"the compiler refused the simulated device:\n{done.stderr[-2000:]}")
        made.replace(path)

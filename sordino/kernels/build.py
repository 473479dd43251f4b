"""Compiles the kernels into libraries beside them, at install or in a source tree.

In a source tree run `python sordino/kernels/build.py`. With names (`build.py lstm gram`) it makes those alone.

It needs a C compiler (cc, gcc or clang; CC names another) and nothing else: no headers of Python or torch. Each library
is made on its own: one that does not compile is left out and torch does its work. The flags are safe on any machine:
the code looks up at run time what the processor can do. Nothing here imports the package, because it runs before its
dependencies are there.

It was made and tested on Linux. On macOS the same flags do; on Windows a compiler with GNU extensions is needed (clang,
MinGW), and MSVC's cl is not one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent

SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
FLAGS = (
    *("-std=gnu11", "-O3", "-shared", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math"),
    *(() if sys.platform == "win32" else ("-fPIC",)),  # code there can always be moved
)
SAME_BITS = ("-ffp-contract=off",)
"""Flags without fused multiply-add, which rounds once where the slow path rounds twice."""
FUSED = ("-ffp-contract=fast", "-Wno-psabi")
"""Flags with fused multiply-add where the processor can; vectors never cross a call, so how they would be passed does
not matter."""


_WIDE_MACHINES = ("x86_64", "amd64")
_AGAIN = '#define LANES 16\n#include "{}"\n'
"""The source that compiles a kernel once more, with sixteen floats to a vector, in the same library."""


class Library(NamedTuple):
    """Describes one library: what it is made of, the first of which is compiled, and how."""

    name: str
    sources: tuple[str, ...]
    flags: tuple[str, ...] = FUSED
    wide: bool = False
    """Whether it is compiled with vectors of sixteen floats too."""

    @property
    def path(self) -> Path:
        """Where the library lies."""
        return HERE / f"lib{self.name}{SUFFIX}"  # without "lib" Python would take it for a module of that name

    def source_hash(self) -> str:
        """Returns a hash of the sources and flags that the build compiles this library from: a built library that does
        not carry it is stale.
        """
        # The flags count as well: with others the same sources may give other bits.
        digest = hashlib.sha256(" ".join((*FLAGS, *self.flags, _AGAIN if self.wide else "")).encode())
        for name in self.sources:
            digest.update((HERE / name).read_bytes())
        return digest.hexdigest()


_EVERY = ("memory.h", "export.h")
_VECTORS = ("vectors.h", *_EVERY)
_GEMM = ("gemm.h", *_VECTORS)
_IMAGES = ("image.h", *_GEMM)
NOISE = Library(
    "noise", ("noise.c", "noise_each_level.h", "noise_levels.h", "noise_interleaved.h", "export.h"), SAME_BITS
)
PHASE_NOISE = Library("phase_noise", ("phase_noise.c", "phase_noise_levels.h", "memory.h", *NOISE.sources), SAME_BITS)
MATRICES = Library("matrices", ("matrices.c", *_VECTORS))
AFFINE = Library("affine", ("affine.c", *_GEMM), wide=True)
PRODUCT = Library("product", ("product.c", *_GEMM), wide=True)
GRAM = Library("gram", ("gram.c", *_GEMM), wide=True)
BF16_PRODUCT = Library("bf16_product", ("bf16_product.c", "bf16.h", *_EVERY))
BF16_GRAM = Library("bf16_gram", ("bf16_gram.c", "bf16.h", *_EVERY))
LSTM = Library("lstm", ("lstm.c", *_GEMM), wide=True)
CORRELATION = Library("correlation", ("correlation.c", *_IMAGES), wide=True)
CONVOLUTION = Library("convolution", ("convolution.c", "sample_gradients.h", *_IMAGES), wide=True)
DEPTHWISE = Library("depthwise", ("depthwise.c", "sample_gradients.h", "image.h", *_VECTORS), wide=True)
POOL = Library("pool", ("pool.c", *_VECTORS))
WINOGRAD = Library("winograd", ("winograd.c", "winograd_tiles.h", *_IMAGES), wide=True)
WINOGRAD_ROWS = Library(
    "winograd_rows", ("winograd_rows.c", "winograd_tiles.h", "sample_gradients.h", *_IMAGES), wide=True
)
THREADS = Library("threads", ("threads.c", "export.h"))
LIBRARIES = (
    *(THREADS, NOISE, PHASE_NOISE, MATRICES, AFFINE, PRODUCT, GRAM, BF16_PRODUCT, BF16_GRAM, LSTM),
    *(CORRELATION, CONVOLUTION, DEPTHWISE, POOL, WINOGRAD, WINOGRAD_ROWS),
)


def find_compiler() -> list[str] | None:
    """Returns the command of the C compiler that builds the kernels, or None."""
    if os.environ.get("CC"):
        # CC may hold a command with arguments, such as a compiler cache in front of the compiler.
        return shlex.split(os.environ["CC"])
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    return None if found is None else [found]


def build_libraries(libraries: Sequence[Library] = LIBRARIES) -> dict[str, str]:
    """Builds each kernel library with the C compiler, and returns by name why some could not be built.

    A library in use is replaced, not written over.
    """
    # Without a compiler the library works all the same, only slower.
    command = find_compiler()
    if command is None:
        return dict.fromkeys([library.name for library in libraries], "there is no C compiler")
    # In this folder, hence on the same file system, so that a finished library is moved into place in one step.
    with tempfile.TemporaryDirectory(dir=HERE) as scratch:
        problems = {library.name: _compile_library(library, command, Path(scratch)) for library in libraries}
    return {name: problem for name, problem in problems.items() if problem is not None}


def _compile_library(library: Library, command: list[str], scratch: Path) -> str | None:
    """Builds one kernel library in a scratch folder, and returns why it could not be compiled, or None."""
    temporary_library, source = scratch / library.path.name, HERE / library.sources[0]
    try:
        # The digest of the sources goes into the library, so that an old one is noticed.
        stamp = f'-DSORDINO_SOURCE="{library.source_hash()}"'
        files = [str(source)]
        # Machines with wide vectors get the kernel twice in one library.
        if library.wide and platform.machine().lower() in _WIDE_MACHINES:
            again = scratch / f"{library.name}_wide.c"
            again.write_text(_AGAIN.format(source.as_posix()))
            files += ["-DSORDINO_WIDE", str(again)]
        # Compile beside the place where it goes, and move it there when it is complete.
        completed = subprocess.run(
            [*command, *FLAGS, *library.flags, stamp, *files, "-o", str(temporary_library)],
            capture_output=True,
            text=True,
            check=False,
        )
        if completed.returncode:
            error_lines = [line for line in completed.stderr.splitlines() if "error" in line] or [
                completed.stderr.strip() or "it said nothing"
            ]
            return f"{command[0]} failed: {error_lines[0]}"
        os.replace(temporary_library, library.path)
    except OSError as error:  # no such compiler, a source missing, or a library in use where that forbids replacing it
        return f"{command[0]} could not make it: {error}"
    return None


def format_problems(problems: dict[str, str]) -> str:
    """Returns which kernel libraries the build could not compile, as one text with each reason once."""
    reasons: dict[str, list[str]] = {}
    for name, problem in problems.items():
        reasons.setdefault(problem, []).append(name)
    return "\n".join(f"not compiled: {', '.join(names)}: {problem}" for problem, names in reasons.items())


if __name__ == "__main__":
    named = [library for library in LIBRARIES if library.name in sys.argv[1:]]
    raise SystemExit(format_problems(build_libraries(named or LIBRARIES)) or None)

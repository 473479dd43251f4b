"""Compiles the kernels into libraries beside them: at install, or by `python sordino/kernels/build.py` in a source tree.

It needs a C compiler (cc, gcc or clang; CC names another) and nothing else: no headers of Python or torch. Without one the
package works all the same. The flags are safe on any machine: the code looks up at run time what the processor can do.
Nothing here imports the package, because it runs before its dependencies are there.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent

FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math")
SAME_BITS = ("-ffp-contract=off",)
"""No fused multiply-add: it rounds once where the slow path rounds twice."""
FUSED = ("-ffp-contract=fast", "-Wno-psabi")
"""Fused where the processor can; vectors never cross a call, so how they would be passed does not matter."""


class Library(NamedTuple):
    """One library: what it is made of, the first of which is compiled, and how."""

    name: str
    sources: tuple[str, ...]
    flags: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """Where it lies."""
        return HERE / f"lib{self.name}.so"  # without "lib" Python would take it for a module of that name

    def source_hash(self) -> str:
        """Of the sources and the flags: a library that does not carry it is stale."""
        digest = hashlib.sha256(" ".join((*FLAGS, *self.flags)).encode())
        for name in self.sources:
            digest.update((HERE / name).read_bytes())
        return digest.hexdigest()


NOISE = Library("noise", ("noise.c", "lanes.h", "woven.h"), SAME_BITS)
CONVOLUTION = Library("convolution", ("convolution.c", "samples.h", "frame.h", "vectors.h"), FUSED)
CORRELATION = Library("correlation", ("correlation.c", "frame.h", "vectors.h"), FUSED)
WINOGRAD = Library("winograd", ("winograd.c", "tiles.h", "frame.h", "vectors.h"), FUSED)
WINOGRAD_ROWS = Library("winograd_rows", ("winograd_rows.c", "samples.h", "tiles.h", "frame.h", "vectors.h"), FUSED)
GRAM = Library("gram", ("gram.c", "vectors.h"), FUSED)
LSTM = Library("lstm", ("lstm.c", "vectors.h"), FUSED)
PRODUCT = Library("product", ("product.c", "products.h", "vectors.h"), FUSED)
AFFINE = Library("affine", ("affine.c", "products.h", "vectors.h"), FUSED)
MATRICES = Library("matrices", ("matrices.c",))
LIBRARIES = (MATRICES, NOISE, CONVOLUTION, CORRELATION, WINOGRAD, WINOGRAD_ROWS, GRAM, LSTM, PRODUCT, AFFINE)


def compiler() -> list[str] | None:
    """The command of a C compiler."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    return None if found is None else [found]


def build() -> str | None:
    """Compile all; None when it worked, or why it did not. A library in use is replaced, not written over."""
    command = compiler()
    if command is None:
        return "there is no C compiler"
    with tempfile.TemporaryDirectory(dir=HERE) as scratch:
        for library in LIBRARIES:
            made = Path(scratch) / library.path.name
            stamp = f'-DSORDINO_SOURCE="{library.source_hash()}"'
            source = str(HERE / library.sources[0])
            try:
                done = subprocess.run(
                    [*command, *FLAGS, *library.flags, stamp, source, "-o", str(made)],
                    capture_output=True,
                    text=True,
                    check=False,
                )
            except OSError as error:
                return f"{command[0]} could not be run: {error}"
            if done.returncode:
                said = (done.stderr.strip().splitlines() or ["it said nothing"])[0]
                return f"{command[0]} failed: {said}"
            os.replace(made, library.path)
    return None


if __name__ == "__main__":
    raise SystemExit(build())

"""The environment of a run: the code, libraries, processor and threads that decide its last bit.

Privacy: a crashed run is replayed with the same noise only where every bit will come out the same. Anywhere else the
steps that may have been released are charged and left out.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

import sordino
from sordino.kernels import build
from sordino.kernels.processor import instruction_set, processor_name

Environment: TypeAlias = dict[str, str | int]


def current_environment(extra: Mapping[str, str] | None = None) -> Environment:
    """Returns the environment of this process, together with `extra`."""
    return {
        **(extra or {}),
        "sordino": sordino.__version__,
        "code": digest_source(),
        "kernels": digest_kernels(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # torch has a class of its own for it, which torch.load refuses
        "numpy": np.__version__,
        "processor": processor_name(),
        "instructions": instruction_set(),
        "threads": torch.get_num_threads(),
    }


@cache
def digest_source() -> str:
    """Returns a digest of this package's own source, because an edit may change a result's last bit."""
    digest = hashlib.sha256()
    root = Path(sordino.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def digest_kernels() -> str:
    """Returns a digest of the compiled libraries, or "off"; their results differ from torch's in rounding."""
    if os.environ.get("SORDINO_KERNELS") == "0":
        return "off"
    digest = hashlib.sha256()
    for library in build.LIBRARIES:
        digest.update(library.name.encode() + (library.path.read_bytes() if library.path.exists() else b"none"))
    return digest.hexdigest()[:16]


def describe_difference(before: Environment, now: Environment) -> str:
    """Returns in words what is not as it was; empty if a replay gives the same bits."""
    names = sorted(name for name in {**before, **now} if before.get(name) != now.get(name))
    return ", ".join(f"{name} was {before.get(name)}, is {now.get(name)}" for name in names)

"""The environment of a run: the code, libraries, processor, device, threads and switches that decide its last bit.

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
from sordino.reduced_precision import describe_precision_switches
from sordino.rng.global_generators import device_generators

Environment: TypeAlias = dict[str, str | int]


def current_environment(extra: Mapping[str, str] | None = None) -> Environment:
    """Returns the environment of this process, which decides a run's last bit, together with `extra`."""
    # Everything that may change a result's last bit: code, libraries, processor, threads and switches.
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
        "precision": describe_precision_switches(),
        "deterministic": describe_determinism(),
        **_describe_accelerator(),
    }


def describe_determinism() -> str:
    """Returns in words PyTorch's switches for sums in a fixed order, as a part of a run's environment."""
    algorithms = "off"
    if torch.are_deterministic_algorithms_enabled():
        algorithms = "warnings" if torch.is_deterministic_algorithms_warn_only_enabled() else "on"
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    timed = "timed" if torch.backends.cudnn.benchmark else "not timed"
    return f"algorithms {algorithms}, cuDNN {timed}" + (f", CUBLAS_WORKSPACE_CONFIG={workspace}" if workspace else "")


def find_nondeterminism(device: torch.device) -> str:
    """Returns why computations in this environment, on a device, may not come out the same twice; empty if they do, as
    on the CPU.

    Devices add up gradients of embeddings, convolutions and the like by atomic additions, in an order that differs each
    time, unless deterministic algorithms are asked for.
    """
    if device.type == "cpu":
        return ""
    if not torch.are_deterministic_algorithms_enabled() or torch.is_deterministic_algorithms_warn_only_enabled():
        return f"sums on {device} have no fixed order: torch.use_deterministic_algorithms(True) was not called"
    if torch.backends.cudnn.benchmark:
        return f"a stopwatch chooses the algorithms on {device}: torch.backends.cudnn.benchmark is on"
    return ""


def _describe_accelerator() -> Environment:
    """Returns the accelerator's name and libraries for the environment, if this process uses one; nothing otherwise."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or not device_generators():
        return {}
    module = torch.get_device_module(accelerator)
    name = module.get_device_name() if hasattr(module, "get_device_name") else accelerator.type
    cudnn = torch.backends.cudnn.version() if accelerator.type == "cuda" else None
    return {"device": str(name), "device libraries": f"CUDA {torch.version.cuda}, cuDNN {cudnn}"}


@cache
def digest_source() -> str:
    """Returns a digest of this package's own source for the environment of a run, because an edit may change a result's
    last bit.
    """
    digest = hashlib.sha256()
    root = Path(sordino.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def digest_kernels() -> str:
    """Returns a digest of the compiled libraries for the environment of a run, or "off"; their results differ from
    torch's in rounding.
    """
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

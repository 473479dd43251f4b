"""Launched processes: puts the ranks that torchrun or another launcher started behind the loop of a framework.

A framework that is started on several processes wraps the model in DistributedDataParallel, which averages gradients
before they are clipped and noised. `Private` divides each lot among the ranks by itself, so the integrations keep the
plain model and only join the process group that the launcher prepared.

Privacy: all ranks of the group make one run with one key (`sordino/distributed_run.py`). A process that was launched
with others and trains alone would be a run of its own on the same records, whose cost nobody adds up; it is refused.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from sordino.refusal import Refusal

_LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_FEWEST_AT_ONCE, _PARTS_OF_A_LOT = 8, 16
"""Records that a rank processes at once, at least, and the parts that a lot is cut into otherwise."""


def count_launched_processes() -> int:
    """Returns how many processes the launcher started, 1 where there was none."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def join_launched_group(device: torch.device) -> None:
    """Initialises torch's process group from the variables of the launcher, unless that has been done or there is no
    launcher.

    Args:
        device: where the model is now. A framework may move it to the accelerator before it trains, so the group gets a
            library for the CPU and, where PyTorch knows one, a library for the accelerator.

    """
    # All four must be there: torch reads each of them, and a cluster may set some without a launcher.
    was_launched = all(name in os.environ for name in _LAUNCHER_VARIABLES)
    if was_launched and dist.is_available() and not dist.is_initialized():
        dist.init_process_group(_choose_backends(device))


def _choose_backends(device: torch.device) -> str:
    """Returns the libraries by which launched ranks send each other tensors, in the words of `init_process_group`.

    >>> _choose_backends(torch.device("cpu")) if torch.accelerator.current_accelerator() is None else "gloo"
    'gloo'
    """
    libraries, accelerator = dist.Backend.default_device_backend_map, torch.accelerator.current_accelerator()
    kinds = {"cpu", device.type, *(() if accelerator is None else (accelerator.type,))}
    # Gloo carries tensors of the host alone; those of a device without a library of its own are sent by way of the host.
    known = {kind: libraries[kind] for kind in sorted(kinds) if libraries.get(kind, "gloo") != "gloo"}
    host = libraries["cpu"]
    return ",".join([f"cpu:{host}", *(f"{kind}:{name}" for kind, name in known.items())]) if known else host


def is_first_rank() -> bool:
    """Returns whether this process is the one that writes the files of a run."""
    return not is_in_group() or dist.get_rank() == 0


def is_in_group() -> bool:
    """Returns whether this process is a rank of an initialised process group."""
    return dist.is_available() and dist.is_initialized()


def refuse_training_alone(framework_processes: int, cure: str) -> None:
    """Raises a `Refusal` if the launcher started several processes and the framework or the group knows of fewer.

    Args:
        framework_processes: how many processes the framework trains on, by its own account.
        cure: what the user changes so that the framework joins the others.

    """
    # Launcher, framework and group must name the same number, or some process would train beside the others.
    joined = dist.get_world_size() if is_in_group() else 1
    wanted = max(count_launched_processes(), framework_processes)
    if joined != wanted or framework_processes != wanted:
        raise Refusal(
            f"{wanted} processes were started, {framework_processes} are known to the framework and {joined} are in "
            "torch's process group.\n"
            "Each process that trains alone would be a run of its own on the same records, and no claim adds them up.\n"
            f"{cure}"
        )


def choose_records_at_once(most: int, expected_lot: float) -> int:
    """Returns how many records a launched rank processes at once, so that several ranks find work in a lot.

    It follows from public numbers alone and not from the number of ranks, because the bits of a run depend on it.

    >>> choose_records_at_once(64, 512), choose_records_at_once(16, 512), choose_records_at_once(64, 50)
    (32, 16, 8)
    """
    return max(1, min(most, max(_FEWEST_AT_ONCE, round(expected_lot / _PARTS_OF_A_LOT))))

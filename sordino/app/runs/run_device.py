"""The device that a run computes on: the option `device` of `fit`, and the flag `--device` of the commands.

    auto         the accelerator of this machine if private training works on it, else the CPU
    cpu, cuda:0  that device, and an error of one line if it is not there
    (not given)  where the model is; models that recipes name are built on the CPU

A name without a number, such as cuda, means the device with this process's number on its machine, as launchers count.

Privacy: where a run computes changes its last bits and nothing else. A run that goes on elsewhere is never replayed.
"""

from __future__ import annotations

import os

import torch
from torch import nn

from sordino.per_sample.model_devices import find_device_fault

AUTO = "auto"
CPU = torch.device("cpu")


def resolve_device(name: str | None) -> torch.device | None:
    """Returns the device of a run by its name; None if none was named.

    Raises:
        ValueError: if it is no device, is not there, or lacks what private training needs.

    >>> resolve_device("cpu")
    device(type='cpu')

    """
    if name is None:
        return None
    if name == AUTO:
        return _choose_device()
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device={name!r}: is no device; there is {', '.join(list_devices())}, or {AUTO}") from error
    if device.type == "cpu":
        return CPU
    # Each of several processes on a machine takes the device of its own number.
    if device.index is None and device.type != "meta":
        device = torch.device(device.type, _local_number())
    # A small tensor starts the device, and shows that it is there.
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f"device={name!r}: is not there ({_first_line(error)}); there is {', '.join(list_devices())}"
        ) from error
    if fault := find_device_fault(device):
        raise ValueError(f"device={name!r}: {fault}")
    return device


def list_devices() -> list[str]:
    """Returns the names of the devices that a run may compute on here: the CPU, and those of the accelerator."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    count = 0 if accelerator is None else torch.accelerator.device_count()
    return ["cpu", *(f"{accelerator.type}:{number}" for number in range(count) if accelerator is not None)]


def device_of(model: nn.Module) -> torch.device:
    """Returns the device that a run's model is on; the CPU if it has neither parameters nor buffers."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return CPU


def _choose_device() -> torch.device:
    """Returns the device of a run that leaves the choice to us: the accelerator if nothing is wrong with it."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return CPU
    # A device that cannot be used is no reason to fail when nobody asked for it by name.
    device = torch.device(accelerator.type, _local_number())
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        return CPU
    return CPU if find_device_fault(device) else device


def _local_number() -> int:
    """Returns the number of this process on its machine, as torchrun and other launchers give it; 0 without one."""
    number = os.environ.get("LOCAL_RANK", "0")
    return int(number) if number.isdigit() else 0


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__

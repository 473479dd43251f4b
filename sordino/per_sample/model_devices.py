"""Refuses models on devices where training would not be right, by name and before anything is drawn.

Per-sample norms and the sum of a lot are computed on one device. What a forward pass draws at random must be repeatable, so
that device's generator must be readable; sums of several batches and the runtime checks compute in float64.
"""

from __future__ import annotations

import torch
from torch import nn

from sordino.refusal import Refusal
from sordino.rng.global_generators import has_readable_generator


def refuse_unusable_devices(model: nn.Module) -> None:
    """Raises a `Refusal` if the model has no values yet, is on several devices, or on a device that lacks what is
    needed.
    """
    # One device for all parameters: norms and sums are computed where they are.
    devices: dict[torch.device, str] = {}  # with the first parameter that is there
    for name, p in model.named_parameters():
        if p.is_meta:
            raise Refusal(
                f"parameter {name!r} is on the meta device and has no values.\n"
                "There is nothing to train yet.\n"
                "Initialise or load the model first, with model.to_empty(device=...) and a state dict."
            )
        devices.setdefault(p.device, name)
    if len(devices) > 1:
        (one, name), (other, another) = list(devices.items())[:2]
        raise Refusal(
            f"parameter {name!r} is on {one} and {another!r} on {other}.\n"
            "A record's norm is computed on one device.\n"
            "Move the model to one with model.to(device), or divide it by torch.distributed.fsdp.fully_shard."
        )
    # An accelerator must be able to repeat its random numbers and to add in float64.
    for device in devices:
        if fault := find_device_fault(device):
            raise Refusal(fault)


def find_device_fault(device: torch.device) -> str | None:
    """Returns what a model's device, once started, lacks for private training, with the cure; None if it lacks nothing."""
    if device.type == "cpu":
        return None
    if device.type == "meta":
        return "tensors on the meta device have no values: train on the CPU or on an accelerator"
    if not has_readable_generator(device):
        return (
            f"the random generator of {device} cannot be read and put back, so that dropout there cannot be repeated: "
            "train on the CPU, or on a device whose torch module has default_generators"
        )
    if not _has_float64(device):
        return (
            f"{device} has no float64, in which sums of several batches and the runtime checks are computed: train on "
            "the CPU, with model.to('cpu')"
        )
    return None


def _has_float64(device: torch.device) -> bool:
    """Returns whether a model's device can hold tensors of double precision; MPS has none."""
    try:
        torch.empty(0, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return False
    return True

"""Random generators of the accelerator that this process uses, of whatever kind it is.

Dropout on a device draws from that device's generator, which neither `torch.manual_seed` of the CPU's generator nor its
state covers. PyTorch knows one kind of accelerator per process (CUDA, XPU, MPS, or a backend of its own) and says which.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def device_generators() -> Sequence[torch.Generator]:
    """Returns the default random generators of all devices of this process's accelerator; none where it has not been
    used.
    """
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return ()
    module = torch.get_device_module(accelerator)
    # Asking CUDA for its generators would start it, which takes a second and memory on the device.
    started = getattr(module, "is_initialized", None)
    if started is not None and not started():
        return ()
    # Most devices list their generators; Apple's has a function of its own.
    generators: Sequence[torch.Generator] | None = getattr(module, "default_generators", None)
    if generators is not None:
        return generators
    of_mps = getattr(module, "_get_default_mps_generator", None)
    return () if of_mps is None else (of_mps(),)


def has_readable_generator(device: torch.device) -> bool:
    """Returns whether this device's generator can be read: its random numbers can be saved, seeded and put back."""
    if device.type == "cpu":
        return True
    # Only the accelerator that this process uses can be asked.
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != device.type:
        return False
    return len(device_generators()) > (device.index or 0)

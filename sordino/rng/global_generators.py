"""Global generators of torch, its devices, numpy and Python: saved, seeded and put back together.

A forward pass may draw from any of the three: dropout from torch, SpecAugment from numpy, a mixup from `random`. To run one
again with the same randomness all of them must be set, and whether anything was drawn at all is read off their states.

Torch has a generator for the CPU and one for every device of the accelerator; all of them are meant. Dropout on a device
draws from that device's generator, which neither `torch.manual_seed` of the CPU's generator nor its state covers. PyTorch
knows one kind of accelerator per process (CUDA, XPU, MPS, or a backend of its own) and says which.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

_NUMPY_SEEDS = 2**32


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


@dataclass(frozen=True, eq=False)
class GlobalState:
    """Where the generators stand at one moment."""

    cpu: Tensor
    devices: tuple[Tensor, ...]
    numpy: dict[str, Any]
    python: tuple[Any, ...]

    @staticmethod
    def capture() -> GlobalState:
        """Returns the states of the global generators: the CPU's, the devices', numpy's and Python's."""
        return GlobalState(
            torch.get_rng_state(),
            tuple(generator.get_state() for generator in device_generators()),
            np.random.get_state(legacy=False),
            random.getstate(),
        )

    def restore(self) -> None:
        """Sets the global generators of torch, numpy and Python back to this state."""
        torch.set_rng_state(self.cpu)
        _restore_devices(self.devices)
        np.random.set_state(self.numpy)
        random.setstate(self.python)

    def equals(self, other: GlobalState) -> bool:
        """Returns whether nobody drew from a global generator between the two states."""
        # Devices that were started in between count as a difference.
        return (
            torch.equal(self.cpu, other.cpu)
            and len(self.devices) == len(other.devices)
            and all(map(torch.equal, self.devices, other.devices))
            and self.equals_outside_torch(other)
        )

    def equals_outside_torch(self, other: GlobalState) -> bool:
        """Returns whether nobody drew from the global generators of numpy or Python between the two states."""
        mine, theirs = self.numpy, other.numpy
        # numpy keeps half of a pair of normal values back, which is part of its state.
        return bool(
            mine["state"]["pos"] == theirs["state"]["pos"]
            and mine["has_gauss"] == theirs["has_gauss"]
            and bool(np.array_equal(mine["state"]["key"], theirs["state"]["key"]))
            and self.python == other.python
        )


@dataclass(frozen=True, eq=False)
class TorchState:
    """Where torch's generators alone stand: some microseconds, for passes that are seldom made again."""

    cpu: Tensor
    devices: tuple[Tensor, ...]

    @staticmethod
    def capture() -> TorchState:
        """Returns the states of the generators of the CPU and of all devices."""
        return TorchState(torch.get_rng_state(), tuple(generator.get_state() for generator in device_generators()))

    def restore(self) -> None:
        """Sets torch's generators back to this state."""
        torch.set_rng_state(self.cpu)
        _restore_devices(self.devices)


def _restore_devices(states: Sequence[Tensor]) -> None:
    """Sets the devices' global generators back; those of an accelerator that was started since then are left alone."""
    if states:
        for generator, state in zip(device_generators(), states, strict=True):
            generator.set_state(state)


NextDraws: TypeAlias = tuple[tuple[int | bytes, ...], float, int]
"""The next number of torch with the states of its devices' generators, of numpy and of Python."""


def draw_next() -> NextDraws:
    """Draws the next number of the global generators of torch, numpy and Python each; of devices it returns where their
    generators stand.

    After one seed they are equal if as much was drawn from each since, which is cheap to ask.

    The numbers are drawn: for code that seeds the generators anew, or puts them back.
    """
    of_torch = int(torch.empty((), dtype=torch.int64).random_())
    of_devices = (generator.get_state().numpy().tobytes() for generator in device_generators())
    # A normal number as well: numpy makes those in pairs and may keep the second one back.
    of_numpy = np.random.random_sample() + np.random.standard_normal()
    return (of_torch, *of_devices), of_numpy, random.getrandbits(64)


def seed_all(seed: int) -> None:
    """Sets every global generator, of torch, numpy and Python, to what this seed gives."""
    # Not torch.manual_seed: where CUDA has not started, it keeps every call, with its stack, for later.
    torch.default_generator.manual_seed(seed)
    for generator in device_generators():
        generator.manual_seed(seed)
    np.random.seed(seed % _NUMPY_SEEDS)
    random.seed(seed)


@contextmanager
def preserve_generators() -> Iterator[None]:
    """Puts the global generators back at the end, whatever is drawn or seeded inside."""
    before = GlobalState.capture()
    try:
        yield
    finally:
        before.restore()


def set_seed(seed: int) -> None:
    """Seeds the global generators that a forward pass draws from, inside a `Seeded`, on the CPU and on every device."""
    # Not torch.manual_seed: where CUDA has not started, it keeps every call, with its stack, for later.
    torch.default_generator.manual_seed(seed)
    for generator in device_generators():
        generator.manual_seed(seed)


class Seeded:
    """Gives dropout and the like the numbers of one seed, on the CPU and on every device."""

    __slots__ = ("_before", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __enter__(self) -> None:
        """Remembers the generators' states and seeds them."""
        self._before = TorchState.capture()
        set_seed(self._seed)

    def __exit__(self, *error: object) -> None:
        """Puts the generators back."""
        self._before.restore()

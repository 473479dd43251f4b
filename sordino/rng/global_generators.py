"""Global generators of torch, numpy and Python: saved, seeded and put back together.

A forward pass may draw from any of the three: dropout from torch, SpecAugment from numpy, a mixup from `random`. To run one
again with the same randomness all of them must be set, and whether anything was drawn at all is read off their states.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

_NUMPY_SEEDS = 2**32


@dataclass(frozen=True, eq=False)
class GlobalState:
    """Where the generators stand at one moment."""

    cpu: Tensor
    devices: tuple[tuple[int, Tensor], ...]
    numpy: dict[str, Any]
    python: tuple[Any, ...]

    @staticmethod
    def capture(devices: Sequence[int] = ()) -> GlobalState:
        """Returns the states of the CPU's, these CUDA devices', numpy's and Python's generators."""
        return GlobalState(
            torch.get_rng_state(),
            tuple((index, torch.cuda.get_rng_state(index)) for index in devices),
            np.random.get_state(legacy=False),
            random.getstate(),
        )

    def restore(self) -> None:
        """Sets the generators back to this state."""
        torch.set_rng_state(self.cpu)
        for index, state in self.devices:
            torch.cuda.set_rng_state(state, index)
        np.random.set_state(self.numpy)
        random.setstate(self.python)

    def equals(self, other: GlobalState) -> bool:
        """Returns whether nobody drew between the two states."""
        return (
            torch.equal(self.cpu, other.cpu)
            and all(torch.equal(a, b) for (_, a), (_, b) in zip(self.devices, other.devices, strict=True))
            and self.equals_outside_torch(other)
        )

    def equals_outside_torch(self, other: GlobalState) -> bool:
        """Returns whether nobody drew from numpy or Python between the two states."""
        mine, theirs = self.numpy, other.numpy
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
    devices: tuple[tuple[int, Tensor], ...]

    @staticmethod
    def capture(devices: Sequence[int] = ()) -> TorchState:
        """Returns the states of the generators of the CPU and of these CUDA devices."""
        return TorchState(torch.get_rng_state(), tuple((i, torch.cuda.get_rng_state(i)) for i in devices))

    def restore(self) -> None:
        """Sets torch's generators back to this state."""
        torch.set_rng_state(self.cpu)
        for index, state in self.devices:
            torch.cuda.set_rng_state(state, index)


def draw_next() -> tuple[int, float, int]:
    """Draws the next number of torch, numpy and Python each.

    After one seed they are equal if as much was drawn from each since, which is cheap to ask.

    The numbers are drawn: for code that seeds the generators anew, or puts them back.
    """
    return int(torch.empty((), dtype=torch.int64).random_()), np.random.random_sample(), random.getrandbits(64)


def seed_all(seed: int, devices: Sequence[int] = ()) -> None:
    """Sets every generator to what this seed gives."""
    # Not torch.manual_seed: where CUDA has not started, it keeps every call, with its stack, for later.
    torch.default_generator.manual_seed(seed)
    for index in devices:
        torch.cuda.default_generators[index].manual_seed(seed)
    np.random.seed(seed % _NUMPY_SEEDS)
    random.seed(seed)


@contextmanager
def preserve_generators(devices: Sequence[int] = ()) -> Iterator[None]:
    """Puts the generators back at the end, whatever is drawn or seeded inside."""
    before = GlobalState.capture(devices)
    try:
        yield
    finally:
        before.restore()

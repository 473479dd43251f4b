"""Seeds the random numbers of a forward pass, and leaves torch's global generators as they were."""

from __future__ import annotations

import torch

from sordino.rng.device_generators import device_generators
from sordino.rng.global_generators import TorchState


def set_seed(seed: int) -> None:
    """Sets the seed of what a forward pass draws from here on, inside a `Seeded`, on the CPU and on every device."""
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

"""Seeds the random numbers of a forward pass, and leaves torch's global generators as they were."""

from __future__ import annotations

import torch


def set_seed(seed: int, device: torch.device) -> None:
    """Sets the seed of what is drawn from here on, inside a `Seeded`."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


class Seeded:
    """Gives dropout and the like the numbers of one seed, on the CPU and on the device."""

    __slots__ = ("_before", "_device", "_seed")

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._device: torch.Generator | None = None
        if device.type == "cuda":
            self._device = torch.cuda.default_generators[device.index or 0]

    def __enter__(self) -> None:
        """Remembers the generators' states and seeds them."""
        # Not torch.manual_seed: where CUDA has not started, it keeps every call, with its stack, for later.
        device = self._device
        self._before = torch.default_generator.get_state(), None if device is None else device.get_state()
        torch.default_generator.manual_seed(self._seed)
        if device is not None:
            device.manual_seed(self._seed)

    def __exit__(self, *error: object) -> None:
        """Puts the generators back."""
        own, other = self._before
        torch.default_generator.set_state(own)
        if self._device is not None and other is not None:
            self._device.set_state(other)

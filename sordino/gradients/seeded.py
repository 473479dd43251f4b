"""Random numbers of a forward pass from a seed of our own; torch's global generators are left as they were."""

from __future__ import annotations

import torch


class Seeded:
    """Dropout and the like draw what this seed gives, on the CPU and on the device."""

    __slots__ = ("_before", "_generators", "_seed")

    def __init__(self, seed: int, device: torch.device) -> None:
        # Not torch.manual_seed: where CUDA has not started, it keeps every call, with its stack, for later.
        self._generators = [torch.default_generator]
        if device.type == "cuda":
            self._generators.append(torch.cuda.default_generators[device.index or 0])
        self._seed = seed

    def __enter__(self) -> None:
        self._before = [generator.get_state() for generator in self._generators]
        for generator in self._generators:
            generator.manual_seed(self._seed)

    def __exit__(self, *error: object) -> None:
        for generator, state in zip(self._generators, self._before, strict=True):
            generator.set_state(state)

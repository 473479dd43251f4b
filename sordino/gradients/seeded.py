"""Random numbers of a forward pass from a seed of our own; torch's global generators are left as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Dropout and the like draw what this seed gives, on the CPU and on the device."""
    # Not torch.manual_seed: where CUDA has not started, it keeps every call, with its stack, for later.
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    before = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)

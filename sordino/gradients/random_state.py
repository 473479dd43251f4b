"""The state of every generator a model may draw from: torch's on each device, numpy's and python's global ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomState:
    """The generators as they were at one moment."""

    torch_cpu: Tensor
    torch_cuda: dict[int, Tensor]
    numpy: Any
    python: Any

    @classmethod
    def now(cls, devices: set[torch.device]) -> RandomState:
        """Of the host, and of those among these devices that have generators of their own."""
        cuda = sorted({d.index for d in devices if d.type == "cuda" and d.index is not None})
        on_devices = {index: torch.cuda.get_rng_state(index) for index in cuda}
        return cls(torch.get_rng_state(), on_devices, np.random.get_state(), random.getstate())

    def restore(self) -> None:
        """Put the generators back."""
        torch.set_rng_state(self.torch_cpu)
        for index, state in self.torch_cuda.items():
            torch.cuda.set_rng_state(state, index)
        np.random.set_state(self.numpy)
        random.setstate(self.python)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw once more what was drawn from here on, and leave the generators as they were found."""
        found = RandomState.now({torch.device("cuda", index) for index in self.torch_cuda})
        self.restore()
        try:
            yield
        finally:
            found.restore()

"""What is summed and released: one tensor per trainable parameter, in float32 or better, often views of one buffer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from sordino.ranks.shard import local

Grads = dict[str, Tensor]
"""One tensor per trainable parameter, by the parameter's name."""


@dataclass(frozen=True)
class Summed:
    """A sum over chunks in float64, and the tensors of its own type that it goes to once noise is on it."""

    values: Grads
    narrow: Grads  # what they hold is of no use any more


class Accumulator:
    """Adds up the sums of chunks: the only one as it is, more of them in float64.

    In float32 the rounding of 200 chunks of 256 equal records comes to a tenth of the bound.
    """

    def __init__(self) -> None:
        self._narrow: Grads | None = None
        self._wide: Grads | None = None

    def room(self) -> Grads | None:
        """Where the next chunk is to be added; None before the first."""
        if self._narrow is None or self.dtype is torch.float64:
            return self._narrow
        if self._wide is None:
            self._wide = {name: tensor.double() for name, tensor in self._narrow.items()}
        for tensor in self._narrow.values():
            tensor.zero_()
        return self._narrow

    def take(self, chunk: Grads) -> None:
        """The sum of one more chunk, in the room that was given."""
        self._narrow = chunk
        if self._wide is not None:
            for name, tensor in chunk.items():
                self._wide[name].add_(tensor)

    @property
    def dtype(self) -> torch.dtype:
        """The narrowest type that a chunk was added up in."""
        wide = self._narrow is not None and all(t.dtype is torch.float64 for t in self._narrow.values())
        return torch.float64 if wide else torch.float32

    @property
    def total(self) -> Grads | Summed:
        """The sum."""
        assert self._narrow is not None, "a lot has at least one part"
        return self._narrow if self._wide is None else Summed(self._wide, self._narrow)


def rounded(total: Grads | Summed) -> Grads:
    """The sum in its own type."""
    if not isinstance(total, Summed):
        return total
    for name, tensor in total.narrow.items():
        tensor.copy_(total.values[name])
    return total.narrow


ALIGNMENT = 16
"""Elements: in a buffer behind many tensors every one starts on a cache line."""


@cache
def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Sums and norms are kept in float32 at least: in half precision they go wrong by more than the bound."""
    return torch.promote_types(dtype, torch.float32)


def divide_(grads: dict[str, Tensor], by: float) -> None:
    """Divide all in place: by one product over the buffer behind them, where there is one and nothing else is in it."""
    if by == 1.0 or not grads:
        return
    grads = {name: local(tensor) for name, tensor in grads.items()}
    base = flat(grads)
    if base is None or base.numel() - sum([t.numel() for t in grads.values()]) >= ALIGNMENT * len(grads):
        torch._foreach_mul_(list(grads.values()), 1 / by)
    else:
        base.mul_(1 / by)


def flat(grads: dict[str, Tensor]) -> Tensor | None:
    """The one buffer behind these tensors (a 1-D tensor with a few zeros between), or None if they have none in common.

    >>> both = torch.zeros(32)
    >>> flat({"a": both[:6].view(2, 3), "b": both[16:20]}).shape
    torch.Size([32])
    """
    tensors = list(grads.values())
    base = tensors[0]._base if tensors else None
    if base is None or any(t._base is not base for t in tensors):
        return None
    return base

"""What is summed and released: one tensor per trainable parameter, in float32 or better, often views of one buffer."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

Grads = dict[str, Tensor]
"""One tensor per trainable parameter, by the parameter's name."""

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

"""Which gradients in `.grad` came through the door: the tensors as they were written, known to every run of the process.

A released gradient may be multiplied by one number before the optimizer sees it: `clip_grad_norm_` and an unscaling do so,
and what is made of a release is post-processing. A gradient that was changed in any other way is not the released one any
more. Two numbers of each tensor, at places drawn at random, tell the two apart.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from weakref import ref

from torch import Tensor, nn

_coins = random.Random(secrets.randbits(128))
"""A generator that only this file has, seeded by the operating system: nobody can foresee it, and it is quick."""

_AGREE = 1e-4
"""Relative difference allowed between the factors of two numbers: they were rounded once."""


@dataclass
class Written:
    """A gradient as it was written: the tensor, its version, and two of its numbers with their places in memory."""

    grad: Tensor
    version: int
    first: int
    stride: int
    sample: list[float]
    owner: ref[object]  # whose release it was

    def untouched(self, grad: Tensor) -> bool:
        """Is this the tensor as it was written?"""
        return grad is self.grad and grad._version == self.version

    def factors(self, grad: Tensor) -> list[float] | None:
        """What its sampled numbers were multiplied by; None where it cannot have been a multiplication."""
        if grad.shape != self.grad.shape or grad.dtype != self.grad.dtype:
            return None
        found = []
        for before, after in zip(self.sample, _sample(grad, self.first, self.stride), strict=True):
            if before == 0:
                if after != 0:
                    return None
            elif not math.isfinite(after):
                return None
            else:
                found.append(after / before)
        return found


_written: dict[int, tuple[ref[nn.Parameter], Written]] = {}  # by identity: tensors do not compare as keys do


def _held(p: nn.Parameter) -> Written | None:
    whose, held = _written.get(id(p), (None, None))
    return held if whose is not None and whose() is p else None


def write(p: nn.Parameter, grad: Tensor, owner: object) -> None:
    """Set a released gradient and remember what it looked like."""
    # The tensors of a release may be views of one vector and share its version counter; `data` of them does not.
    own = grad if grad._base is None else grad.data
    p.grad = own
    remember(p, owner)


def remember(p: nn.Parameter, owner: object) -> None:
    """The gradient that is there now counts as released."""
    own = p.grad
    assert own is not None, "there is a gradient to remember"
    n = own.numel()
    first = _coins.randrange(n) if n else 0
    stride = _coins.randrange(n - first) if n - first > 1 else 0
    key = id(p)

    def gone(dead: ref[nn.Parameter]) -> None:
        if _written.get(key, (None,))[0] is dead:
            del _written[key]

    known = _written.get(key)
    whose = known[0] if known is not None and known[0]() is p else ref(p, gone)
    _written[key] = whose, Written(own, own._version, first, stride, _sample(own, first, stride), ref(owner))


def owner_of(p: nn.Parameter) -> object | None:
    """Whose release lies in `.grad`, if it is one."""
    held = _held(p)
    return held.owner() if held is not None and p.grad is held.grad else None


def forget(p: nn.Parameter) -> None:
    """Drop a released gradient, and free its memory."""
    held = _held(p)
    if held is not None:
        del _written[id(p)]
        if p.grad is held.grad:
            p.grad = None


def copied(grad: Tensor) -> bool:
    """Is this one of the released gradients, or a copy of one?"""
    for _, held in _written.values():
        factors = held.factors(grad) if held.sample else None
        if factors is not None and all(abs(factor - 1) <= _AGREE for factor in factors):
            return True
    return False


def changed(parameters: Iterable[nn.Parameter]) -> nn.Parameter | None:
    """A parameter whose gradient is not a released one, multiplied by the number that all others were multiplied by."""
    common: float | None = None
    for p in parameters:
        grad = p.grad
        if grad is None:
            continue
        held = _held(p)
        if held is None:
            return p
        if held.untouched(grad):
            factors: list[float] | None = [1.0]
        else:
            factors = held.factors(grad)
        if factors is None:
            return p
        for factor in factors:
            if common is None:
                common = factor
            if abs(factor - common) > _AGREE * max(abs(factor), abs(common)):
                return p
    return None


def _sample(grad: Tensor, first: int, stride: int) -> list[float]:
    """Two numbers of a tensor, by their places in its memory."""
    if not grad.numel():
        return []
    found: list[float] = grad.as_strided((2,), (stride,), grad.storage_offset() + first).tolist()
    return found

"""Released gradients: recognises which tensors in `.grad` were written by a release.

The tensors are remembered as they were written, and every run of the process knows them.

A released gradient may be multiplied by one number before the optimizer sees it: `clip_grad_norm_` and an unscaling do so,
and what is made of a release is post-processing. A gradient that was changed in any other way is not the released one any
more. Two numbers of each tensor, at places drawn at random, tell the two apart.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from weakref import ref

import torch
from torch import Tensor, nn

from sordino.distributed.row_shard import local_rows, version_of
from sordino.kernels.bytes_at import read_two_floats

_coins = random.Random(secrets.randbits(128))
"""A generator that only this file has, seeded by the operating system: nobody can foresee it, and it is quick."""

_AGREE = 1e-4
"""Relative difference allowed between the factors of two numbers: they were rounded once."""


_ONE = [1.0]


class NumbersOnDevice:
    """Numbers of the gradients of one release, copied on their device and read when somebody asks for them.

    A device is waited for then, and not at every step.
    """

    def __init__(self, views: Sequence[Tensor]) -> None:
        self._copied = torch.cat(list(views))
        self._numbers: list[float] | None = None

    def read(self, first: int) -> list[float]:
        """Returns the two numbers from a place on."""
        if self._numbers is None:
            self._numbers = self._copied.tolist()
        return self._numbers[first : first + 2]


@dataclass(slots=True)
class ReleasedGradient:
    """A gradient as it was written: the tensor, its version, and two of its numbers with their places in memory."""

    grad: Tensor
    version: int
    first: int
    stride: int
    numbers: list[float] | tuple[NumbersOnDevice, int]  # read, or still on a device, and where among the others there
    owner: ref[object]  # whose release it was

    @property
    def sample(self) -> list[float]:
        """The two numbers."""
        return self.numbers if isinstance(self.numbers, list) else self.numbers[0].read(self.numbers[1])

    def factors_to(self, grad: Tensor) -> list[float] | None:
        """Returns what the sampled numbers were multiplied by; None where it cannot have been a multiplication."""
        if grad.shape != self.grad.shape or grad.dtype != self.grad.dtype:
            return None
        if (
            local_rows(self.grad).is_contiguous() and not local_rows(grad).is_contiguous()
        ):  # it may have less memory: one number
            return None
        ratios = []
        for before, after in zip(self.sample, _read_two_numbers(grad, self.first, self.stride), strict=True):
            if before == 0:
                if after != 0:
                    return None
            elif not math.isfinite(after):
                return None
            else:
                ratios.append(after / before)
        return ratios


_written: dict[
    int, tuple[ref[nn.Parameter], ReleasedGradient | None]
] = {}  # by identity: tensors do not compare as keys do


def write_gradients(grads: Iterable[tuple[nn.Parameter, Tensor]], owner: object) -> None:
    """Sets released gradients and remembers what they looked like."""
    owner_reference = ref(owner)
    on_device: list[tuple[ReleasedGradient, Tensor]] = []
    for p, grad in grads:
        # The tensors of a release may be views of one vector and share its version counter; `data` of them does not.
        p.grad = gradient = grad if grad._base is None else grad.data
        held = _store_sample(p, gradient, owner_reference, may_wait=False)
        if not held.numbers and local_rows(gradient).numel():
            on_device.append((held, _view_two_numbers(gradient, held.first, held.stride)))
    # The samples of all gradients on a device are copied there at once, and read when they are needed.
    if on_device:
        copied = NumbersOnDevice([view for _, view in on_device])
        for place, (held, _) in enumerate(on_device):
            held.numbers = copied, 2 * place


def remember_gradient(p: nn.Parameter, owner: object) -> None:
    """Remembers the gradient that is there now as released."""
    assert p.grad is not None, "there is a gradient to remember"
    _store_sample(p, p.grad, ref(owner))


def _store_sample(p: nn.Parameter, grad: Tensor, owner: ref[object], *, may_wait: bool = True) -> ReleasedGradient:
    """Stores a gradient with two of its numbers, at places drawn at random, and returns what is stored.

    Without `may_wait` the numbers of a tensor on a device are left out, for the caller to copy.
    """
    n, coin = local_rows(grad).numel(), _coins.random
    first = int(coin() * n)
    stride = int(coin() * (n - first))
    key = id(p)
    known = _written.get(key)
    whose = known[0] if known is not None and known[0]() is p else _reference_that_forgets(p)
    is_readable = may_wait or local_rows(grad).is_cpu
    numbers = _read_two_numbers(grad, first, stride) if is_readable else []
    held = ReleasedGradient(grad, version_of(grad), first, stride, numbers, owner)
    _written[key] = whose, held
    return held


def _reference_that_forgets(p: nn.Parameter) -> ref[nn.Parameter]:
    """Returns a weak reference whose end removes what is known of the parameter."""
    key = id(p)

    def forget_dead(dead: ref[nn.Parameter]) -> None:
        if _written.get(key, (None,))[0] is dead:
            del _written[key]

    return ref(p, forget_dead)


def drop_gradients(parameters: Iterable[nn.Parameter], owner: object) -> None:
    """Drops the gradients that this owner released, and frees their memory."""
    for p in parameters:
        whose, held = _written.get(id(p), (None, None))
        if held is not None and whose is not None and whose() is p and p.grad is held.grad and held.owner() is owner:
            _written[id(p)] = whose, None
            p.grad = None


def is_released_copy(grad: Tensor) -> bool:
    """Returns whether this is one of the released gradients, or a copy of one."""
    for _, held in _written.values():
        factors = held.factors_to(grad) if held is not None and held.sample else None
        if factors is not None and all(abs(factor - 1) <= _AGREE for factor in factors):
            return True
    return False


def find_changed_gradient(parameters: Iterable[nn.Parameter]) -> nn.Parameter | None:
    """Returns a parameter whose gradient is not a released one times the factor that all share, or None."""
    common: float | None = None
    for p in parameters:
        grad = p.grad
        if grad is None:
            continue
        # A gradient that no release wrote is a change in itself.
        whose, held = _written.get(id(p), (None, None))
        if held is None or whose is None or whose() is not p:
            return p
        # The same tensor at the same version was not touched: the common case, without reading numbers.
        factors = _ONE if grad is held.grad and version_of(grad) == held.version else held.factors_to(grad)
        if factors is _ONE and (common is None or common == 1.0):  # as a rule
            common = 1.0
            continue
        if factors is None:
            return p
        # Clipping and unscaling multiply all gradients by one number; any other change shows here.
        for factor in factors:
            if common is None:
                common = factor
            if abs(factor - common) > _AGREE * max(abs(factor), abs(common)):
                return p
    return None


def _read_two_numbers(grad: Tensor, first: int, stride: int) -> list[float]:
    """Returns two numbers of a tensor, by their places in its memory."""
    grad = local_rows(grad)
    if not grad.numel():
        return []
    if grad.dtype is torch.float32 and grad.is_cpu and grad.is_contiguous():  # as a rule; others may have less memory
        return read_two_floats(grad.data_ptr(), first, stride)
    numbers: list[float] = _view_two_numbers(grad, first, stride).tolist()
    return numbers


def _view_two_numbers(grad: Tensor, first: int, stride: int) -> Tensor:
    """Returns two numbers of a tensor as a view of its memory."""
    grad = local_rows(grad)
    return grad.as_strided((2,), (stride,), grad.storage_offset() + first)

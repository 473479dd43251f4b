"""Whether parameters changed other than by a step on released gradients.

A write through torch moves a tensor's version; one through `.data` moves its numbers only. So versions and addresses are
looked at every time, and some numbers of every tensor, at places that are a secret of the process, are compared as well.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Buffers = Sequence[tuple[str, Tensor]]
"""A model's buffers with names, in order."""

_coins = random.Random(secrets.randbits(128))
"""A generator that only this file has, seeded by the operating system: nobody can foresee it, and it is quick."""

_PIECE, _LEAST = 4096, 16
"""Numbers compared at a time: all tensors together, and of each at least."""


@dataclass
class _Known:
    name: str
    p: nn.Parameter
    version: int
    address: int


class ParameterWatch:
    """The parameters of one model as they should be."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._views: list[Tensor] = []  # of some numbers of every parameter, bit by bit
        self._buffers: list[tuple[Tensor, int]] = []
        self._numbers: Tensor | None = None  # what they were

    def take(self, named: Mapping[str, nn.Parameter], buffers: Buffers = ()) -> None:
        """All parameters and buffers are right as they are now."""
        self._buffers = [(tensor, tensor._version) for _, tensor in buffers]
        self._known = {id(p): _Known(name, p, p._version, p.data_ptr()) for name, p in named.items()}
        self._views = _views([known.p for known in self._known.values()])
        self._numbers = torch.cat(self._views) if self._views else None

    def adopt(self, named: Mapping[str, nn.Parameter]) -> None:
        """The model has these parameters now: those that are new to it are right as they are."""
        kept = self._known
        self._known = {id(p): kept.get(id(p)) or _Known(name, p, p._version, p.data_ptr()) for name, p in named.items()}
        self._views = _views([known.p for known in self._known.values()])
        self._numbers = torch.cat(self._views) if self._views else None

    def put_back(self, parameters: Iterable[nn.Parameter]) -> None:
        """These were moved by the library itself, and put back to the last bit."""
        for p in parameters:
            known = self._known.get(id(p))
            if known is not None:
                known.version, known.address = p._version, p.data_ptr()

    def allow(self, parameters: Iterable[nn.Parameter]) -> None:
        """These were changed rightly."""
        for p in parameters:
            known = self._known.get(id(p))
            if known is not None:
                known.version, known.address = p._version, p.data_ptr()
        self._numbers = torch.cat(self._views) if self._views else None

    def changed(self, buffers: Buffers = (), *, numbers: bool = True) -> str | None:
        """The name of a parameter or buffer that is not as it was left; `numbers`: compare some of those too."""
        for (name, now), (tensor, version) in zip(buffers, self._buffers, strict=False):
            if now is not tensor or now._version != version:
                return name
        for known in self._known.values():
            if known.p._version != known.version or known.p.data_ptr() != known.address:
                return f"parameter {known.name!r}"
        if numbers and self._numbers is not None and not torch.equal(torch.cat(self._views), self._numbers):
            return self._different()
        return None

    def _different(self) -> str:
        """Whose numbers they are not any more."""
        assert self._numbers is not None, "there are numbers to compare with"
        sizes = [len(view) for view in self._views]
        for view, before, known in zip(self._views, self._numbers.split(sizes), self._known.values(), strict=True):
            if not torch.equal(view, before):
                return f"parameter {known.name!r}"
        raise AssertionError("one of them is different")


def _views(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Some numbers of each, bit by bit, in its own memory: one that is no number is equal to itself."""
    found = []
    for p in parameters:
        bare = p.detach()
        if bare.is_meta or not bare.numel() or not bare.is_contiguous() or not bare.is_cpu:
            found.append(torch.zeros(0, dtype=torch.uint8))  # its version and address must do
            continue
        many = max(_LEAST, _PIECE // len(parameters))
        start = _coins.randrange(max(1, bare.numel() - many + 1))
        found.append(bare.view(-1)[start : start + many].view(torch.uint8))
    return found

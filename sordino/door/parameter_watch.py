"""Whether parameters changed other than by a step on released gradients.

A write through torch moves a tensor's version; one through `.data` moves its numbers only. So versions and addresses are
looked at every time, and the numbers of one tensor, or a piece of it, drawn anew each time, are compared as well: who
writes again and again is found soon, who writes through torch at once.
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

_PIECE = 4096
"""Numbers compared at a time."""


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
        self._order: list[_Known] = []
        self._buffers: list[tuple[Tensor, int]] = []
        self._piece: tuple[nn.Parameter, int, Tensor] | None = None  # whose numbers, from where, what they were

    def take(self, named: Mapping[str, nn.Parameter], buffers: Buffers = ()) -> None:
        """All parameters and buffers are right as they are now."""
        self._buffers = [(tensor, tensor._version) for _, tensor in buffers]
        self._known = {id(p): _Known(name, p, p._version, p.data_ptr()) for name, p in named.items()}
        self._order = list(self._known.values())
        self._draw()

    def adopt(self, named: Mapping[str, nn.Parameter]) -> None:
        """The model has these parameters now: those that are new to it are right as they are."""
        kept = self._known
        self._known = {id(p): kept.get(id(p)) or _Known(name, p, p._version, p.data_ptr()) for name, p in named.items()}
        self._order = list(self._known.values())
        self._draw()

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
        self._draw()

    def changed(self, buffers: Buffers = (), *, numbers: bool = True) -> str | None:
        """The name of a parameter or buffer that is not as it was left; `numbers`: compare some of those too."""
        for (name, now), (tensor, version) in zip(buffers, self._buffers, strict=False):
            if now is not tensor or now._version != version:
                return name
        for known in self._known.values():
            if known.p._version != known.version or known.p.data_ptr() != known.address:
                return f"parameter {known.name!r}"
        if numbers and self._piece is not None:
            p, start, before = self._piece
            known = self._known[id(p)]
            if not torch.equal(_bits(p, start), before):
                return f"parameter {known.name!r}"
        return None

    def _draw(self) -> None:
        if not self._known:
            self._piece = None
            return
        known = _coins.choice(self._order)
        n = known.p.numel()
        if not n or known.p.is_meta:
            self._piece = None
            return
        start = _coins.randrange(max(1, n - _PIECE + 1))
        self._piece = known.p, start, _bits(known.p, start).clone()


def _bits(p: nn.Parameter, start: int) -> Tensor:
    """Some numbers of a parameter in a row, bit by bit: one that is no number is equal to itself."""
    bare = p.detach()
    flat = bare.view(-1) if bare.is_contiguous() else bare.flatten()
    return flat[start : start + _PIECE].view(torch.uint8)

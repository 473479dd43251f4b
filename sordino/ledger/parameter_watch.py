"""Parameter watch: notices parameters changed other than by a step on released gradients.

A write through torch moves a tensor's version; one through `.data` moves its numbers only. So versions and addresses are
looked at every time, and some numbers of every tensor, at places that are a secret of the process, are compared as well.

This is asked several times at every lot: lists are made by `map`, and numbers read as bytes, because torch's own calls cost
more than what they would do here.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn

from sordino.distributed.row_shard import is_shard, local_rows, version_of
from sordino.kernels.bytes_at import read_bytes
from sordino.ledger.watchers import LeftBehind

Buffers = Sequence[tuple[str, Tensor]]
"""A model's buffers with names, in order."""

_coins = random.Random(secrets.randbits(128))
"""A generator that only this file has, seeded by the operating system: nobody can foresee it, and it is quick."""

_PIECE, _LEAST = 4096, 16
"""Numbers compared at a time: all tensors together, and of each at least."""

_version, _device = attrgetter("_version"), attrgetter("device")


class ParameterWatch:
    """The parameters of one model as they should be."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._parameters: list[nn.Parameter] = []
        self._divided = False  # among ranks, some of them
        self._positions: dict[int, int] = {}  # a parameter's place in these lists, by its identity
        self._devices: list[torch.device] = []
        self._versions: list[int] = []
        self._addresses: list[int] = []
        self._pieces: list[tuple[int, int]] = []  # which bytes of each are compared: from where on, how many
        self._windows: list[Any] = []  # these bytes, in the parameters' own memory
        self._numbers: list[bytes] = []  # what they were
        self._buffers: list[Tensor] = []
        self._buffer_versions: list[int] = []

    def accept_all(self, named: Mapping[str, nn.Parameter], buffers: Buffers = ()) -> None:
        """Records all parameters and buffers as they are now as right."""
        self._buffers = [tensor for _, tensor in buffers]
        self._buffer_versions = list(map(_version, self._buffers))
        self._names, self._parameters = list(named), list(named.values())
        self._positions = {id(p): i for i, p in enumerate(self._parameters)}
        self._divided = any(map(is_shard, self._parameters))
        self._devices = list(map(_device, self._parameters))
        self._versions, self._addresses = self._versions_and_addresses(self._parameters)
        self._pieces = _choose_pieces(self._parameters)
        places = zip(self._addresses, self._pieces, strict=True)
        self._windows = [read_bytes(address + start, many) for address, (start, many) in places]
        self._numbers = [window.raw for window in self._windows]

    def replace_parameters(self, named: Mapping[str, nn.Parameter]) -> None:
        """Replaces the watched parameters by these; those that are new to the model are right as they are."""
        known = [(p, self._versions[i], self._addresses[i]) for i, p in enumerate(self._parameters)]
        buffers, versions = self._buffers, self._buffer_versions
        self.accept_all(named)
        self._buffers, self._buffer_versions = buffers, versions
        for p, before, address in known:
            i = self._positions.get(id(p))
            if i is not None:
                self._versions[i], self._addresses[i] = before, address

    def accept_restored(self, parameters: Sequence[nn.Parameter]) -> None:
        """Accepts parameters that the library itself moved and put back to the last bit."""
        self._record_versions(parameters)

    def accept_changed(self, parameters: Sequence[nn.Parameter]) -> None:
        """Accepts the change of these parameters, as after a step on released gradients."""
        for i in self._record_versions(parameters):
            self._numbers[i] = self._windows[i].raw

    def _record_versions(self, parameters: Sequence[nn.Parameter]) -> Iterable[int]:
        """Records versions and addresses of these parameters and returns their places in the lists."""
        if len(parameters) == len(self._parameters) and all(map(is_, parameters, self._parameters)):  # as a rule
            self._versions, addresses = self._versions_and_addresses(parameters)
            if addresses == self._addresses:
                return range(len(addresses))
        places = [i for i in map(self._positions.get, map(id, parameters)) if i is not None]
        for i in places:
            p = self._parameters[i]
            self._versions[i], address = version_of(p), local_rows(p).data_ptr()
            if address != self._addresses[i]:
                start, many = self._pieces[i]
                self._addresses[i], self._windows[i] = address, read_bytes(address + start, many)
        return places

    def find_changed(self, buffers: Buffers = (), *, numbers: bool = True) -> str | None:
        """Returns the name of a parameter or buffer that is not as it was left; `numbers` compares some numbers too."""
        for (name, now), tensor, known in zip(buffers, self._buffers, self._buffer_versions, strict=False):
            if now is not tensor or now._version != known:
                return name
        versions, addresses = self._versions_and_addresses(self._parameters)
        if versions != self._versions or addresses != self._addresses:
            before, after = zip(self._versions, self._addresses, strict=True), zip(versions, addresses, strict=True)
            return self._first_different(before, after)
        if numbers:  # read only now that they are known to be where they were
            read = [window.raw for window in self._windows]
            if read != self._numbers:
                return self._first_different(self._numbers, read)
        return None

    def find_moved(self) -> tuple[str, torch.device, torch.device] | None:
        """Returns a parameter that is on another device than it was: its name, and both devices; None if none is."""
        for name, p, before in zip(self._names, self._parameters, self._devices, strict=True):
            if p.device != before:
                return name, before, p.device
        return None

    def left_behind(self) -> LeftBehind:
        """Returns the parameters as they should be found by whoever looks at them after this watch is gone."""
        return LeftBehind.of(self._names, self._parameters, self._versions)

    def _versions_and_addresses(self, parameters: Sequence[nn.Parameter]) -> tuple[list[int], list[int]]:
        """Returns the current versions and addresses; of divided parameters, those of this rank's rows."""
        if self._divided:
            return list(map(version_of, parameters)), [local_rows(p).data_ptr() for p in parameters]
        return list(map(_version, parameters)), list(map(Tensor.data_ptr, parameters))

    def _first_different(self, before: Iterable[object], now: Iterable[object]) -> str:
        different = (name for name, a, b in zip(self._names, before, now, strict=True) if a != b)
        return f"parameter {next(different)!r}"


def _choose_pieces(parameters: Sequence[nn.Parameter]) -> list[tuple[int, int]]:
    """Returns which bytes of each parameter are compared, by start and length.

    A parameter without plain memory here has none; its version and address must do.
    """
    pieces = []
    for p in parameters:
        held_rows = local_rows(p).detach()
        if (
            held_rows.is_meta
            or not held_rows.numel()
            or not held_rows.is_contiguous()
            or not held_rows.is_cpu
            or not held_rows.data_ptr()
        ):
            pieces.append((0, 0))
            continue
        count = min(held_rows.numel(), max(_LEAST, _PIECE // len(parameters)))
        start = _coins.randrange(held_rows.numel() - count + 1)
        pieces.append((start * held_rows.element_size(), count * held_rows.element_size()))
    return pieces

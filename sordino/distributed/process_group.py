"""Process group: the ranks that train one model together, as the library speaks to them.

A rank is one of them. Launchers (torchrun, Slurm and others) start them and set the environment; the user, or the command
line, calls `torch.distributed.init_process_group`. One process without a group is a group of one, in which nothing is said.

Privacy: what ranks send each other is private and not protected: sums before noise, and once the key of the noise. They
are one party; the network between them is inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sordino.distributed.reusable_buffers import ReusableBuffers
from sordino.rng.keystream import KEY_BYTES
from sordino.rng.streams import Rng

SINGLE = "single"
"""`Private(mesh=…)` for one process that is to have the bits of any number of ranks."""


class Ranks:
    """All processes of a group, seen from one of them.

    >>> alone = Ranks()
    >>> alone.rank, alone.size
    (0, 1)
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group, self.buffers = group, ReusableBuffers()
        self.wait_before_collective: Callable[[], None] | None = (
            None  # before a collective: until the others are ready for it
        )
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)
        self._gloo = group is not None and str(dist.get_backend(group)) == "gloo"
        self.carried_kinds = frozenset({"cpu"}) if group is None else _kinds_that_group_carries(group)
        self.device = _device_of_group(self.carried_kinds)

    def sum_(self, values: Tensor) -> Tensor:
        """Adds whole numbers up over all ranks of the process group in place, with the same result on each."""
        if self.size > 1:
            self._wait_for_others()
            sent = self._where_carried(values)
            dist.all_reduce(sent, group=self.group)
            if sent is not values:
                values.copy_(sent)
        return values

    def reduce_scatter(self, values: Tensor) -> Tensor:
        """Returns this rank's stretch of whole numbers added up over all ranks of the process group.

        Their count must be a multiple of the number of ranks.
        """
        if self.size == 1:
            return values
        # Where layers are gathered on demand, other ranks may still need this one; they are served before it goes on.
        self._wait_for_others()
        given, values = values, self._where_carried(values)
        if self._gloo:  # its reduce-scatter is an all-reduce; here each rank is sent what is its own, and adds it up
            sent = self.buffers.borrow(len(values), values.dtype, values.device)
            dist.all_to_all_single(sent, values, group=self.group)
            first, second, *others = sent.chunk(self.size)
            own_sum = first + second
            for other in others:
                own_sum.add_(other)
            return own_sum.to(given.device)
        # Other backends have a reduce-scatter of their own, which sends less.
        own_sum = torch.empty_like(values[: len(values) // self.size])
        dist.reduce_scatter(own_sum, list(values.chunk(self.size)), group=self.group)
        return own_sum.to(given.device)

    def all_gather(self, own_values: Tensor) -> Tensor:
        """Returns the stretches of all ranks of the process group, which are equally long, in the order of the ranks."""
        if self.size == 1:
            return own_values
        self._wait_for_others()
        sent = self._where_carried(own_values)
        all_values = sent.new_empty(self.size * len(sent))
        dist.all_gather(list(all_values.chunk(self.size)), sent, group=self.group)
        return all_values.to(own_values.device)

    def _where_carried(self, values: Tensor) -> Tensor:
        """Returns values where the process group can send them from: as they are, or a copy on the host.

        Gloo sends tensors of the host alone. A model on a device is trained over it all the same, with a copy to the host
        and back for every sum.
        """
        return values if values.device.type in self.carried_kinds else values.to(self.device)

    def gather_objects(self, thing: Any) -> list[Any]:
        """Returns a small object of every rank of the process group, in the order of the ranks."""
        if self.size == 1:
            return [thing]
        self._wait_for_others()
        objects: list[Any] = [None] * self.size
        dist.all_gather_object(objects, thing, group=self.group)
        return objects

    def broadcast_from_first(self, thing: Any) -> Any:
        """Returns a small object as the first rank of the process group has it."""
        if self.size == 1:
            return thing
        self._wait_for_others()
        held = [thing]
        dist.broadcast_object_list(held, group=self.group, group_src=0)
        return held[0]

    def _wait_for_others(self) -> None:
        if self.wait_before_collective is not None:
            with self.without_waiting() as waits:
                waits()

    @contextmanager
    def without_waiting(self) -> Iterator[Callable[[], None]]:
        """Suspends the wait before collectives of the process group within a `with` block, because all ranks are known
        to do the same.
        """
        waits, self.wait_before_collective = self.wait_before_collective, None
        try:
            yield waits or (lambda: None)
        finally:
            self.wait_before_collective = waits

    def new_rng(self) -> Rng:
        """Returns a random stream that nobody can repeat, the same on all ranks of the process group."""
        if self.size == 1:
            return Rng.from_entropy()
        key = bytearray(KEY_BYTES)
        Rng.from_entropy().fill(key)
        return Rng(self.broadcast_from_first(bytes(key)))

    def copy_first(self, tensors: Iterable[Tensor]) -> None:
        """Overwrites tensors with those of the first rank of the process group."""
        if self.size == 1:
            return
        with torch.no_grad():
            for tensor in tensors:
                held = self._where_carried(tensor.detach()).contiguous()
                dist.broadcast(held, group=self.group, group_src=0)
                tensor.copy_(held)


def _kinds_that_group_carries(group: dist.ProcessGroup) -> frozenset[str]:
    """Returns the kinds of devices whose tensors a process group sends, by the libraries that it has for each.

    Gloo names CUDA among its devices, but carries such tensors in some collectives only, so that it counts for the CPU.
    """
    kinds = {device.type: device for device in group._device_types}
    return frozenset(
        kind for kind, device in kinds.items() if kind == "cpu" or "gloo" not in group._get_backend(device).name()
    )


def _device_of_group(kinds: frozenset[str]) -> torch.device:
    """Returns the device from which small messages of a process group are sent: this process's accelerator, if the group
    carries its tensors, and else the CPU.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type not in kinds:
        return torch.device("cpu")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())


def ranks_of(mesh: Any) -> Ranks | None:
    """Returns the ranks of the process group that a user means, or None for one process that computes in its own way.

    Args:
        mesh: a DeviceMesh of one dimension, a process group, or "single" for a group of this process alone. None stands for
            torch's own group, if there is one.

    """
    # Several spellings lead to the same: a mesh, a process group, torch's own group, or none.
    if isinstance(mesh, Ranks):
        return mesh
    if mesh == SINGLE:
        return Ranks()
    if mesh is None:
        ready = dist.is_available() and dist.is_initialized()
        return Ranks(dist.group.WORLD) if ready else None
    if isinstance(mesh, dist.ProcessGroup):
        return Ranks(mesh)
    if not isinstance(mesh, dist.device_mesh.DeviceMesh):
        raise TypeError(f"mesh={mesh!r}: must be a torch DeviceMesh of one dimension, a process group, or 'single'")
    # Along more than one dimension the records would be divided differently than is charged for.
    if mesh.ndim != 1:
        raise ValueError(
            f"mesh of {mesh.ndim} dimensions: need one, along which the records of a lot are divided.\n"
            "Tensor, pipeline, context and expert parallelism are not supported.\n"
            "Pass mesh['name'] for the dimension of the records."
        )
    return Ranks(mesh.get_group())


def new_rng() -> Rng:
    """Returns a random stream that nobody can repeat, for ranks of a process group or for one process.

    Inside torch's own group it is the same on all ranks, all of which must ask for it.
    """
    ranks = ranks_of(None)
    return Rng.from_entropy() if ranks is None else ranks.new_rng()

"""Loss rows check: whether the loss or the model computes a record's loss from other rows of the dataset.

A loss function can hold the training set and read it: class frequencies counted over all labels, an index of nearest
neighbours, a graph whose nodes are the records, a model that keeps the training inputs as anchors. Every record's loss is
then made of all records, whatever batch it is in, so exchanging records of a batch does not show it.

The losses of a few records are therefore computed twice with the same random numbers: once as they are, and once while
all other rows of the dataset hold the values of other records. Two things are exchanged for the second pass. Memory of
the dataset is replaced operation by operation, wherever the loss or the model refers to it, also by views. Containers of
the dataset that are held by the loss, its closure or its globals are replaced in a copy of the loss, which reaches arrays
of numpy and lists. The dataset itself is left untouched. If a loss changes, it was made of other records.

Privacy: a test releases nothing. That it failed is said once, with no word about which records.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from sordino.per_sample.batch_structure import map_tensors
from sordino.per_sample.user_state import UserState
from sordino.rng.global_generators import seed_all
from sordino.runtime_checks.dataset_view import MATERIALISED_BYTES, DatasetWalk, Exchange

_NO_ACCIDENT = 256
"""With as many records as this, something else that has exactly as many rows is not there by accident."""
_ROWS_COMPARED = 4
"""Rows by which a copy of the dataset's rows is recognised."""
_SAME = 1e-4
"""Relative difference allowed between two passes over equal batches, which run the same operations."""

NOT_EXCHANGED = (
    "your word that the loss and the model read no other records: they read memory of the dataset, which could not be "
    "exchanged to test it"
)


HELD_ROWS = (
    "your word that what the loss holds with as many rows as there are records is public: losses depend on other rows of "
    "it than their own, and the dataset does not hold it"
)


class RowsOfLoss(Enum):
    """What a test of the losses of some records showed: they are made of their own rows alone, of other rows of the
    dataset, of other rows of something with as many rows, or of memory that could not be exchanged.
    """

    OWN = 0
    OTHERS = 1
    HELD = 2
    UNKNOWN = 3


Containers = Sequence[tuple[Any, Exchange]]
"""What a dataset holds that has one row per record, each with the rows that stand in for those of other records."""


def find_rows_of_loss(
    losses: Callable[[Any, Any], Tensor],
    loss_fn: Any,
    batch: Any,
    containers: Containers,
    others: Exchange,
    seed: int,
    roots: Sequence[Any],
) -> RowsOfLoss:
    """Returns whether the losses of a batch change when all other rows of the dataset are exchanged.

    Args:
        losses: computes the losses of a batch by the loss function that it is given.
        loss_fn: the user's loss function.
        batch: a few records, loaded and collated.
        containers: what the dataset holds, with the rows that are exchanged.
        others: exchanges all rows but those of the batch in anything else that has as many rows as there are records.
        seed: of the random numbers that both passes draw.
        roots: the user's objects, whose state is put back after every pass.

    """
    state = UserState(roots)
    memory = _ExchangedMemory(containers)

    def run(function: Any, mode: Any) -> Tensor:
        """Returns the losses of the batch, computed from the same state and the same random numbers every time."""
        seed_all(seed)
        try:
            with torch.enable_grad(), mode:
                return losses(function, map_tensors(Tensor.clone, batch)).detach().double().clone()
        finally:
            state.put_back()

    def changes(view: Any, mode: Any) -> bool:
        """Returns whether losses of a view differ from those of the loss itself. Losses that differ from pass to pass by
        themselves say nothing here; the neighbour test asks about those.
        """
        return not _are_equal(plain, run(view, mode)) and _are_equal(plain, run(loss_fn, nullcontext()))

    # A pass that refers to nothing of the dataset cannot be made of other rows of it.
    plain = run(loss_fn, _MemoryWatch(memory, exchange=False))
    view = _copy_loss(loss_fn, containers)
    held, is_copy = _copy_loss_with_tables(loss_fn, containers, others)
    # Code that a view cannot serve raises an error of ours, which shows nothing.
    try:
        if (view is not loss_fn or memory.was_read) and changes(view, _MemoryWatch(memory, exchange=True)):
            return RowsOfLoss.OTHERS
        if held is not loss_fn and changes(held, nullcontext()):
            return RowsOfLoss.OTHERS if is_copy else RowsOfLoss.HELD
    except Exception:
        return RowsOfLoss.UNKNOWN
    return RowsOfLoss.UNKNOWN if memory.was_too_large else RowsOfLoss.OWN


def _are_equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=_SAME, atol=1e-12, equal_nan=True)


def _copy_loss(loss_fn: Any, containers: Containers) -> Any:
    """Returns a copy of the loss function in which the dataset's containers are exchanged, or the function itself if it
    holds none of them.
    """
    exchange_of: Mapping[int, Exchange] = {id(container): exchange for container, exchange in containers}
    walk = DatasetWalk(np.random.default_rng(0), alone=exchange_of)
    try:
        view = walk.copy_function(loss_fn, Exchange.keeping_all(1))
    except Exception:  # a stranger's object may forbid being copied
        return loss_fn
    # A copy that differs in nothing of the dataset is not worth a pass.
    return view if walk.containers else loss_fn


def _copy_loss_with_tables(loss_fn: Any, containers: Containers, others: Exchange) -> tuple[Any, bool]:
    """Returns a copy of the loss function in which everything that has as many rows as there are records is exchanged,
    or the function itself if it holds no such thing beside the dataset's containers; and whether such a thing has the
    rows of the dataset, as an index of nearest neighbours has that was built on it.
    """
    walk = DatasetWalk(np.random.default_rng(0))
    try:
        view = walk.copy_function(loss_fn, others)
    except Exception:  # a stranger's object may forbid being copied
        return loss_fn, False
    known = {id(container) for container, _ in containers}
    tables = [table for key, table in walk.containers.items() if key not in known]
    is_copy = any(_have_equal_rows(table, container) for table in tables for container, _ in containers)
    # With few records, something else has as many rows by accident.
    if not tables or not (is_copy or others.length >= _NO_ACCIDENT):
        return loss_fn, False
    return view, is_copy


def _have_equal_rows(one: Any, other: Any) -> bool:
    """Returns whether two containers hold the same numbers, more than one, in each of some rows."""
    try:
        length = len(one)
        if length != len(other):
            return False
        pairs = [
            (np.asarray(one[row], dtype=np.float32), np.asarray(other[row], dtype=np.float32))
            for row in np.linspace(0, length - 1, _ROWS_COMPARED).astype(np.int64).tolist()
        ]
    except Exception:  # not numbers, or not indexed by rows
        return False
    return all(a.size > 1 and a.size == b.size and np.array_equal(a.ravel(), b.ravel()) for a, b in pairs)


class _ExchangedMemory:
    """The memory of a dataset's tensors and arrays, with copies in which rows are exchanged, made when they are read.

    Args:
        containers: what the dataset holds, with the rows that are exchanged.

    """

    def __init__(self, containers: Containers) -> None:
        self._regions: dict[tuple[int, int], list[tuple[Tensor, Exchange]]] = {}
        self._copies: dict[tuple[int, int], torch.UntypedStorage] = {}
        self.was_read, self.was_too_large = False, False
        for container, exchange in containers:
            tensor = as_tensor_of_rows(container)
            if tensor is not None:
                storage = tensor.untyped_storage()
                region = (storage.data_ptr(), storage.data_ptr() + storage.nbytes())
                self._regions.setdefault(region, []).append((tensor, exchange))

    def find_region(self, tensor: Tensor) -> tuple[int, int] | None:
        """Returns the part of the dataset's memory that a tensor lies in, or None."""
        if not self._regions:
            return None
        try:
            address = tensor.data_ptr()
        except (RuntimeError, NotImplementedError):  # wrappers of torch.func, sparse tensors
            return None
        return next((region for region in self._regions if region[0] <= address < region[1]), None)

    def exchange(self, tensor: Tensor) -> Tensor:
        """Returns a tensor of the same shape and strides in a copy of the memory in which rows are exchanged; the
        tensor itself where it is not of the dataset's memory.
        """
        region = self.find_region(tensor)
        if region is None:
            return tensor
        if region[1] - region[0] > MATERIALISED_BYTES:
            self.was_too_large = True
            return tensor
        offset = tensor.data_ptr() - region[0]
        if offset % tensor.element_size():
            return tensor
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
            self._copy_of(region), offset // tensor.element_size(), tensor.size(), tensor.stride()
        )

    def _copy_of(self, region: tuple[int, int]) -> torch.UntypedStorage:
        """Returns the copy of one part of the memory, in which the rows of all containers in it are exchanged."""
        if region not in self._copies:
            held = self._regions[region]
            copied = held[0][0].untyped_storage().clone()
            for tensor, exchange in held:
                rows = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
                    copied, tensor.storage_offset(), tensor.size(), tensor.stride()
                )
                rows.copy_(tensor.detach()[torch.from_numpy(exchange.source).to(tensor.device)])
            self._copies[region] = copied
        return self._copies[region]


def as_tensor_of_rows(container: Any) -> Tensor | None:
    """Returns a tensor over the memory of a container of rows, or None if it has none that torch can see."""
    if isinstance(container, Tensor):
        return container.detach() if container.layout is torch.strided and container.numel() else None
    if not isinstance(container, np.ndarray) or not container.size:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an array that may not be written to; nothing is written
            return torch.from_numpy(container)
    except (TypeError, ValueError):  # a type or strides that torch does not have
        return None


class _MemoryWatch(TorchDispatchMode):
    """Notes whether operations read memory of the dataset, and lets them read exchanged rows in its place.

    Args:
        memory: of the dataset.
        exchange: whether operations read exchanged rows.

    """

    def __init__(self, memory: _ExchangedMemory, *, exchange: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory, self._exchange = memory, exchange

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, on exchanged rows where it reads memory of the dataset."""

        def look(tensor: Tensor) -> Tensor:
            if self._memory.find_region(tensor) is None:
                return tensor
            self._memory.was_read = True
            return self._memory.exchange(tensor) if self._exchange else tensor

        args, kwargs = tree_map_only(Tensor, look, (args, kwargs or {}))
        return func(*args, **kwargs)

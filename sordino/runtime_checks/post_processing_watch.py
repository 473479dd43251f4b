"""Post-processing watch: what goes into the blocks that a user declares to be post-processing.

A generator is trained through a private discriminator: its loss is made of the discriminator's parameters, which are
released, and of random numbers. Nothing of that is private, so it is free. It stays so only if no record comes into the
block. `PostProcessingWatch` looks at every tensor operation inside a block and sorts what it reads:

- parameters, buffers of modules that are called, gradients that were released, optimizer states and everything that was
  made inside a block may be read;
- memory of the dataset, or rows that are equal to a record, void the claim;
- other tensors that were made outside are named in the claim if the block takes gradients: they rest on the user's word.

Privacy: this finds accidents, such as real images in a generator's loss. Numbers that leave torch, and values that were
computed from records outside the block, cannot be recognised. The claim therefore names the block, its reason, and whether
it read tensors from outside.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from sordino.ledger.voiding import find_user_frame
from sordino.rng.global_generators import preserve_generators

RECORDS_READ = (
    "records of the dataset were read inside `with private.post_processing(...)`.\n"
    "What is made of records is no post-processing.\n"
    "Keep them out of the block, and train what must see them by a Private with the same ledger."
)
"""Why there is no guarantee if records come into a block."""
BACKWARD_INSIDE = (
    "inside this post-processing gradients were taken through the released parameters; every tensor operation was looked "
    "at, and none read memory of the dataset or a row equal to a record"
)
_READS_OUTSIDE = (
    "inside this post-processing tensors made outside of it were read, taken to hold nothing of the records: {}"
)

_FEWEST_NUMBERS = 16
"""Rows of whole numbers with fewer entries are not compared: labels and one-hot vectors are equal by chance."""
_RECORDS_READ = 256
"""Records of a dataset without tensors of its own that are read to compare them, for one tensor from outside."""
_COMPARISONS = 64
"""Tensors from outside that are compared with such a dataset, in one run."""
_TENSORS_LISTED = 100_000
"""Tensors of a list of records whose memory is remembered."""
_PLACES_NAMED = 3


class PostProcessingWatch:
    """Watches the blocks of one run that are declared to be post-processing."""

    def __init__(self, void: Callable[[str], None], declare: Callable[[str], None]) -> None:
        self._void, self._declare = void, declare
        self._made_inside: dict[int, StorageWeakRef] = {}  # memory that may be read, by its key
        self._of_records: dict[int, StorageWeakRef] = {}  # memory of the datasets
        self._datasets: list[Callable[[], Any]] = []
        self._comparisons_left = _COMPARISONS

    def note_dataset(self, dataset: Any) -> None:
        """Remembers the dataset of a call of `draws`: its records must not be read inside a block of post-processing.

        Only keys of its memory are kept, and a weak reference where the dataset allows one.
        """
        if any(known() is dataset for known in self._datasets):
            return
        try:
            self._datasets.append(weakref.ref(dataset))
        except TypeError:  # a plain list
            self._datasets.append(lambda: dataset)
        for tensor in _tensors_of_dataset(dataset):
            _remember(self._of_records, tensor)

    @contextmanager
    def block(self, released: Iterable[Tensor], was_backward: Callable[[], bool]) -> Iterator[None]:
        """Watches every tensor operation inside a block of post-processing; at the end the claim is told what it rests
        on.

        Args:
            released: tensors that were released and may be read, such as parameters and their gradients.
            was_backward: returns whether gradients of the run's parameters were taken inside.

        """
        for tensor in released:
            _remember(self._made_inside, tensor)
        # Memory that is gone needs no entry any more; while the entry is there, its address is not used again.
        self._made_inside = {key: held for key, held in self._made_inside.items() if not held.expired()}
        mode = _OperationWatch(self)
        # Buffers are plain tensors. Those of modules that are called are the model's own, as its parameters are.
        handle = register_module_forward_pre_hook(lambda module, _: self._accept_buffers(module))
        try:
            with mode:
                yield
        finally:
            handle.remove()
        if was_backward():
            self._declare(BACKWARD_INSIDE)
            if mode.places:
                self._declare(_READS_OUTSIDE.format(_join_places(mode.places)))

    def _accept_buffers(self, module: nn.Module) -> None:
        for buffer in module._buffers.values():
            if buffer is not None:
                _remember(self._made_inside, buffer)

    def may_read(self, tensor: Tensor, key: int) -> bool:
        """Returns whether post-processing may read a tensor: it comes from released values, or is a constant of one
        number.

        A parameter may be read: it is released, or it is trained inside blocks from public initial weights.
        """
        if key in self._of_records:
            return False
        if key in self._made_inside:
            return True
        if isinstance(tensor, nn.Parameter) or tensor.numel() <= 1:
            _remember(self._made_inside, tensor)
            return True
        return False

    def remember_result(self, tensor: Tensor) -> None:
        """Remembers a tensor that an operation inside a block has made."""
        _remember(self._made_inside, tensor)

    def judge(self, tensor: Tensor, key: int) -> bool:
        """Voids the claim if a tensor that post-processing reads from outside its block holds records; returns whether
        it does.
        """
        if key in self._of_records or self._equals_a_record(tensor):
            self._void(RECORDS_READ)
            return True
        return False

    def _equals_a_record(self, tensor: Tensor) -> bool:
        """Returns whether a tensor that post-processing reads is equal to a record of a dataset: its first or last row,
        or all of it.
        """
        rows = [tensor.detach().reshape(-1)]
        if tensor.dim() > 1 and len(tensor):
            rows += [tensor[at].detach().reshape(-1) for at in {0, len(tensor) - 1}]
        rows = [row for row in rows if is_distinctive(row)]
        if not rows:
            return False
        for reference in self._datasets:
            dataset = reference()
            if dataset is None:
                continue
            columns = _columns_of(dataset)
            if columns is not None:
                if any(has_row(column, row) for column in columns for row in rows):
                    return True
            elif self._comparisons_left > 0:
                self._comparisons_left -= 1
                if _some_record_equals(dataset, rows):
                    return True
        return False


class _OperationWatch(TorchDispatchMode):
    """Shows every tensor operation of one block to the watch."""

    def __init__(self, watch: PostProcessingWatch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch
        self._from_outside: dict[int, StorageWeakRef] = {}
        self.places: dict[str, None] = {}
        """Where in the user's code tensors from outside were read, as file:line, in order."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Sorts what an operation reads, runs it, and remembers what it made."""
        kwargs = kwargs or {}
        for tensor in _tensors_in((args, kwargs)):
            key = _memory_key(tensor)
            if key is None or key in self._from_outside or self._watch.may_read(tensor, key):
                continue
            _remember(self._from_outside, tensor)
            if not self._watch.judge(tensor, key):
                frame = find_user_frame()
                if frame is not None:
                    self.places[f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"] = None
        result = func(*args, **kwargs)
        # A view of memory from outside stays from outside; everything else was made here.
        for tensor in _tensors_in(result):
            if _memory_key(tensor) not in self._from_outside:
                self._watch.remember_result(tensor)
        return result


def _tensors_in(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _memory_key(tensor: Tensor) -> int | None:
    """Returns the key by which the watch over post-processing knows the memory of a tensor; views of one memory have
    one key. None if it has no memory.
    """
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # wrappers of torch.func, sparse tensors
        return None


def _remember(table: dict[int, StorageWeakRef], tensor: Tensor) -> None:
    """Enters the memory of a tensor in a table of the watch over post-processing, held weakly."""
    key = _memory_key(tensor)
    if key is not None and key not in table:
        table[key] = StorageWeakRef(tensor.untyped_storage())


def _tensors_of_dataset(dataset: Any) -> list[Tensor]:
    """Returns the tensors of a dataset, which post-processing must not read: its columns, its attributes, or those of a
    list of records.
    """
    if isinstance(dataset, Subset):
        return _tensors_of_dataset(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return [tensor for part in dataset.datasets for tensor in _tensors_of_dataset(part)]
    values = dataset if isinstance(dataset, list | tuple) else list(getattr(dataset, "__dict__", {}).values())
    return _tensors_in([*values])[:_TENSORS_LISTED]


def _columns_of(dataset: Any) -> list[Tensor] | None:
    """Returns the columns of a dataset, with a row for each record, that the inputs of post-processing are compared
    with; None if it is not made of tensors.
    """
    if isinstance(dataset, Subset):
        return _columns_of(dataset.dataset)
    return list(dataset.tensors) if isinstance(dataset, TensorDataset) else None


def is_distinctive(row: Tensor) -> bool:
    """Returns whether a row that post-processing reads would hardly be equal to a record by chance."""
    if row.dtype == torch.bool or row.is_complex() or row.numel() < 2 or bool((row == row[0]).all()):
        return False
    has_fractions = row.is_floating_point() and int((row != row.round()).sum()) >= 2
    return has_fractions or row.numel() >= _FEWEST_NUMBERS


def has_row(column: Tensor, row: Tensor) -> bool:
    """Returns whether a row that post-processing reads, with the same numbers in whatever type and shape, is in a
    column of records.
    """
    if not len(column) or column[0].numel() != row.numel() or column.is_complex():
        return False
    flat, row = column.detach().reshape(len(column), -1), row.to(column.device)
    # A few numbers leave few candidates, which are then compared whole.
    candidates = torch.arange(len(flat), device=column.device)
    for at in torch.linspace(0, row.numel() - 1, min(8, row.numel())).long().tolist():
        candidates = candidates[flat[candidates, at].to(row.dtype) == row[at]]
    return any(torch.equal(flat[at].to(row.dtype), row) for at in candidates[:16].tolist())


def _some_record_equals(dataset: Any, rows: list[Tensor]) -> bool:
    """Returns whether one of the rows that post-processing reads is equal to a tensor of one of some records, drawn at
    random.
    """
    with preserve_generators():
        order = torch.randperm(len(dataset))[:_RECORDS_READ].tolist()
        for at in order:
            record = dataset[at]
            fields = tree_leaves(dict(record) if isinstance(record, Mapping) else record)
            for field in fields:
                if not isinstance(field, Tensor):
                    continue
                for row in rows:
                    if field.numel() == row.numel() and torch.equal(field.detach().reshape(-1).to(row), row):
                        return True
    return False


def _join_places(places: Iterable[str]) -> str:
    named = list(places)
    rest = len(named) - _PLACES_NAMED
    return ", ".join(named[:_PLACES_NAMED]) + (f" and {rest} more places" if rest > 0 else "")

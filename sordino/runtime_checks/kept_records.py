"""Kept records: finds values of records that a module keeps beside parameters and buffers.

A forward pass may store what it sees: `self.last_input = x`, `self.history.append(loss.item())`. A state dict does not
hold these attributes, but `torch.save(model)` does, and so do pickles and copies. The claim is about what was released,
so it must say that it does not cover them.

Many modules keep something that tells nothing of a record: a table of positions, a mask, a weight made of other
weights. So an attribute that was filled since the run began is compared after two passes over batches of equal shapes
that hold other records, with the same random numbers and from the same state. Only what differs between the two depends
on the records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.per_sample import batch_structure as batches
from sordino.rng.global_generators import preserve_generators, seed_all

Place = tuple[str, str]
"""A module's name and the name of its attribute."""

_OWN = frozenset(vars(nn.Module()))
"""What every module has: parameters, buffers, hooks."""
_CONTAINERS = (list, tuple, dict, set, deque)
_DEEP = 4
_MOST = 256
"""Things of one container that are looked at, from its end, where new ones are."""
_FEW = 8
"""Records of a batch on which two passes are compared."""


class KeptRecords:
    """Looks at the attributes of one model's modules."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._begun = {place: _fingerprint(value) for place, value in _attributes_of_model(model)}
        self._initial = {place: _copy_attribute(value) for place, value in _attributes_of_model(model)}
        # Held, so that nothing new can have the identity of something that is gone.
        self._held = [
            _last_entries(value) if isinstance(value, _CONTAINERS) else value
            for _, value in _attributes_of_model(model)
        ]

    def find(self, losses: Callable[[Any], object], load: Callable[[], Any]) -> list[Place]:
        """Returns the attributes of modules that keep values of the records of the batch that `load` gives; `losses`
        runs the model on one.

        Nothing is loaded or run unless an attribute was filled or changed since the run began.
        """
        # Only attributes that changed since the run began can hold records.
        grown = [
            place for place, value in _attributes_of_model(self._model) if self._begun.get(place) != _fingerprint(value)
        ]
        if not grown:
            return []
        batch = load()
        rows = batches.batch_size(batch)
        if rows < 2:
            return []
        # Two passes over a few records: once as they are, once with the first record in all places. What differs
        # afterwards depends on the records.
        probe_batch = batches.take_rows(batch, torch.arange(min(rows, _FEW)))
        equal_records = batches.take_rows(
            probe_batch, torch.zeros(min(rows, _FEW), dtype=torch.long)
        )  # every record is the first one
        one, other = (self._contents_after(losses, each, grown) for each in (probe_batch, equal_records))
        return [place for place in grown if one.get(place) != other.get(place)]

    def _contents_after(self, losses: Callable[[Any], object], batch: Any, grown: list[Place]) -> dict[Place, Hashable]:
        """Returns what all attributes that may keep records hold after a pass over the batch, and puts every one of
        them back.

        The pass begins with what the grown attributes were when the run began, where they were anything: a running mean
        that has become nan would be nan after any batch.
        """
        # Everything is put back afterwards, in whatever way the pass ends.
        before = [
            (module, {name: _copy_attribute(value) for name, value in _own_attributes(module)})
            for module in self._model.modules()
        ]
        modules = dict(self._model.named_modules())
        try:
            # Both passes begin with what the attributes held at the beginning of the run.
            for place in grown:
                if place in self._initial:
                    modules[place[0]].__dict__[place[1]] = _copy_attribute(self._initial[place])
            # No gradients are needed, and equal random numbers leave only the records to differ.
            with preserve_generators(), torch.no_grad():
                seed_all(0)
                losses(batch)
            return {place: _content_of(value) for place, value in _attributes_of_model(self._model)}
        finally:
            for module, held in before:
                for name, _ in list(_own_attributes(module)):
                    del vars(module)[name]
                vars(module).update(held)


def _own_attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yields the attributes of a module that are not torch's own."""
    return ((name, value) for name, value in vars(module).items() if name not in _OWN)


def _attributes_of_model(model: nn.Module) -> Iterator[tuple[Place, Any]]:
    for name, module in model.named_modules():
        for attribute, value in _own_attributes(module):
            yield (name, attribute), value


def _fingerprint(value: Any, deep: int = _DEEP) -> Hashable:
    """Returns a cheap fingerprint of a module's attribute, which tells whether it may have kept a record: identities,
    versions and lengths.
    """
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, float | int | str | bytes | bool):
        return value
    if isinstance(value, _CONTAINERS) and deep:
        return len(value), *(_fingerprint(each, deep - 1) for each in _last_entries(value))
    return id(value)


def _content_of(value: Any, deep: int = _DEEP) -> Hashable:
    """Returns the content of a module's attribute, compared before and after a pass to find kept records.

    Seen are numbers, text and containers of them.
    """
    if isinstance(value, Tensor):
        plain = value.detach().cpu()
        return tuple(plain.shape), hash(plain.to_dense().flatten().nan_to_num().double().numpy().tobytes())
    if isinstance(value, np.ndarray):
        return value.shape, hash(value.tobytes())
    if isinstance(value, float | int | str | bytes | bool):
        return value
    if isinstance(value, _CONTAINERS) and deep:
        return len(value), *(_content_of(each, deep - 1) for each in _last_entries(value))
    return None


def _last_entries(container: Any) -> list[Any]:
    """Returns the things in a container, of many the last ones."""
    values = container.values() if isinstance(container, dict) else container
    return list(values)[-_MOST:]


def _copy_attribute(value: Any) -> Any:
    """Returns a copy of a module's attribute that can be put back after the search for kept records: tensors and
    containers are copied, other objects are not.
    """
    if isinstance(value, Tensor):
        return value.detach().clone() if not value.requires_grad else value
    return value.copy() if isinstance(value, list | dict | set | deque) and type(value).__module__ != "torch" else value

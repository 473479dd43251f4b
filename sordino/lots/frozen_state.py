"""Restores the state of a user's code, so that what it learns from one record misses the next.

A model, a loss, a collate function and a dataset may keep something of a record: in an attribute, in a list of a
closure, in a global variable, in a default argument, in a random generator. Before a pass everything that can be
reached from them is listed once, with what it holds. After every record each of these things is given back what it
held.

What is followed: closures, default arguments and attributes of functions; global variables that a function names;
attributes and slots of objects, and of the classes that the user wrote; lists, dicts, sets and deques; tensors and
arrays; torch's, numpy's and Python's random generators. Objects of installed packages without attributes, such as
tokenizers, are taken to keep nothing.

Raises `Refusal` for what remembers and cannot be put back: an iterator or a generator that a function goes on with.

Privacy: the isolation of records rests on this list. What code keeps outside of it (files, other processes, a module
that it imports by name inside the function) remains the user's word, and the claim says so.
"""

from __future__ import annotations

import random
import site
import sys
import sysconfig
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Subset

from sordino.refusal import Refusal

_ATOMS = (
    int,
    float,
    complex,
    str,
    bytes,
    bool,
    type(None),
    type(Ellipsis),
    range,
    slice,
    types.ModuleType,
    types.CodeType,
    types.BuiltinFunctionType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    torch.dtype,
    torch.device,
    torch.Size,
    np.generic,
    np.dtype,
)
_ITERATORS: tuple[type, ...] = (
    types.GeneratorType,
    zip,
    map,
    filter,
    enumerate,
    reversed,
    type(iter([])),
    type(iter(())),
    type(iter({})),
)
_FRAMEWORKS = ("sordino.", "lightning.", "pytorch_lightning.", "lightning_fabric.", "transformers.trainer")
_SMALL_BYTES = 1 << 20
"""Tensors and arrays of up to so many bytes are written back after every record; larger ones must not be written to."""
_FEWEST_RECORDS, _LONG_CONTAINER = 8, 1000
"""Below the first number of records, a container of that length is an accident; from the second on, containers of the
dataset with one entry per record are not followed."""
_SHORT = 64
"""Containers in a dataset with more entries are not searched for tensors."""
_MOST_OBJECTS = 200_000
"""The largest number of objects that are followed."""


class FrozenState:
    """Everything that some objects reach, as it was when this was made.

    Args:
        model: its parameters and buffers may have any shape.
        code: the loss and the collate function. Neither they nor the model may hold anything with one entry per record:
            they could read other records there.
        dataset: its containers with one entry per record are not followed if they are long; `one_record` hides them.
        records: the number of records.

    """

    def __init__(self, model: nn.Module, code: Iterable[Any], dataset: Any, records: int) -> None:
        self._records = records
        self._seen: set[int] = set()
        self._kept_alive: list[Any] = []  # so that no identity is given out again
        self._restorers: list[Callable[[], None]] = []
        self._model_tensors = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self._memory_of_records = _find_memory(dataset)
        self._following_dataset = False
        self._note_everything_reachable((model, *code))
        self._following_dataset = True
        self._note_everything_reachable((dataset,))

    def _note_everything_reachable(self, roots: Iterable[Any]) -> None:
        """Notes everything in the frozen state of the user's code that can be reached from these roots, each thing
        once.
        """
        # A breadth-first walk over everything reachable, each object once, because objects may refer to each other in
        # circles.
        waiting = deque(roots)
        while waiting:
            thing = waiting.popleft()
            if isinstance(thing, _ATOMS) or id(thing) in self._seen:
                continue
            self._seen.add(id(thing))
            # Objects are held as long as their ids are compared, or an id could be given to another object.
            self._kept_alive.append(thing)
            if len(self._kept_alive) > _MOST_OBJECTS:
                raise Refusal(
                    "isolate=True: the model, the loss and the dataset reach too many objects to put them all back.\n"
                    "What is not put back could carry something of one record to the next.\n"
                    "Leave isolate out, or let them hold less."
                )
            # Objects of this library are not the user's code.
            if type(thing).__module__.startswith(_FRAMEWORKS) and not isinstance(thing, nn.Module):
                continue  # the objects of this library and of a framework around the loop keep nothing of a record
            if not self._holds_one_entry_per_record(thing):
                waiting.extend(self._note_object_state(thing))

    def _holds_one_entry_per_record(self, thing: Any) -> bool:
        """Returns whether a container of the dataset holds the records, which the frozen state leaves out; refuses one
        that the model or loss holds.
        """
        # Memory of the dataset holds other records, whatever part of it is seen.
        if not self._following_dataset and _lies_in(thing, self._memory_of_records):
            raise Refusal(
                f"isolate=True: the model, the loss or collate holds a {type(thing).__name__} in memory of the dataset.\n"
                "A record's loss could read other records in it.\n"
                "Let the dataset give each record all that belongs to it."
            )
        # A container with as many entries as there are records is taken to hold them.
        if isinstance(thing, Tensor | np.ndarray):
            held = thing.ndim > 0 and thing.shape[0] == self._records and id(thing) not in self._model_tensors
        else:
            held = isinstance(thing, list | tuple | dict | deque) and len(thing) == self._records
        if not held or self._records < _FEWEST_RECORDS:
            return False
        # A table with an entry per record, outside the dataset, would let one record's loss read another's values.
        if not self._following_dataset:
            raise Refusal(
                f"isolate=True: the model, the loss or collate holds a {type(thing).__name__} with one entry per "
                "record.\n"
                "A record's loss could read other records in it.\n"
                "Let the dataset give each record all that belongs to it."
            )
        return isinstance(thing, Tensor | np.ndarray) or self._records >= _LONG_CONTAINER

    def put_back(self) -> None:
        """Gives everything back what it held."""
        for restore in self._restorers:
            restore()

    def _note_object_state(self, thing: Any) -> Iterable[Any]:
        """Notes how the frozen state puts one thing of the user's code back, and returns what the thing holds."""
        # Arrays and tensors have a memory of their own and are noted by their numbers.
        if isinstance(thing, Tensor):
            return self._note_tensor(thing)
        if isinstance(thing, np.ndarray):
            return self._note_array(thing)
        # Random generators go back to where they stood.
        if isinstance(thing, torch.Generator):
            saved_state = thing.get_state()
            self._restorers.append(lambda: _discard(thing.set_state(saved_state)))
            return ()
        if isinstance(thing, np.random.Generator):
            self._restorers.append(partial(setattr, thing.bit_generator, "state", thing.bit_generator.state))
            return ()
        if isinstance(thing, np.random.RandomState):
            self._restorers.append(partial(thing.set_state, thing.get_state()))
            return ()
        if isinstance(thing, random.Random):
            self._restorers.append(partial(thing.setstate, thing.getstate()))
            return ()
        # Containers are refilled; functions, methods and classes are followed to what they hold.
        if isinstance(thing, dict | list | set | deque | bytearray):
            return self._note_container(thing)
        if isinstance(thing, tuple | frozenset):
            return thing
        if isinstance(thing, types.FunctionType):
            return self._note_function(thing)
        if isinstance(thing, types.MethodType):
            return thing.__func__, thing.__self__
        if isinstance(thing, partial):
            return thing.func, thing.args, thing.keywords
        if isinstance(thing, staticmethod | classmethod):
            return (thing.__func__,)
        if isinstance(thing, property):
            return thing.fget, thing.fset
        if isinstance(thing, types.CellType):
            return self._note_cell(thing)
        if isinstance(thing, type):
            return self._note_class(thing)
        # An iterator has moved on and cannot be put back.
        if isinstance(thing, _ITERATORS) or (hasattr(type(thing), "__next__") and _is_stateful_builtin(thing)):
            raise Refusal(
                f"isolate=True: the model, the loss, collate or the dataset holds a {type(thing).__name__}.\n"
                "It moves on with every record and cannot be put back, so that one record changes what the next one "
                "sees.\n"
                "Keep a list, or a number that the loop sets."
            )
        return self._note_object(thing)

    def _note_tensor(self, tensor: Tensor) -> Iterable[Any]:
        """Notes a tensor in the frozen state: a small one is written back after every record, a large one must not be
        written to.
        """
        # A leaf's gradient is a tensor of its own and is noted as well.
        held = [tensor.grad] if tensor.is_leaf and tensor.grad is not None else []
        # Copying a large tensor after every record would be slow; its version shows whether it was written to.
        if (
            isinstance(tensor, nn.Parameter)
            or tensor.numel() * tensor.element_size() > _SMALL_BYTES
            or tensor.requires_grad
        ):
            known = tensor._version

            def check() -> None:
                """Raises Refusal if a pass over a record wrote to a parameter or large tensor of the frozen state."""
                if tensor._version != known:
                    raise Refusal(
                        "isolate=True: a pass over a record wrote to a parameter or to a large tensor.\n"
                        "Something of the record would stay in it.\n"
                        "Leave the write out, or make it outside of the loss."
                    )

            self._restorers.append(check)
        else:
            kept = tensor.detach().clone()

            def write_back() -> None:
                """Writes the numbers of a small tensor in the frozen state back where a record's pass changed them."""
                now = tensor.detach()
                if now.shape != kept.shape:
                    raise Refusal(
                        "isolate=True: a pass over a record gave a tensor another shape.\n"
                        "It cannot be put back to what it was before the record.\n"
                        "Keep its shape, or make a new tensor."
                    )
                if not torch.equal(now.nan_to_num(), kept.nan_to_num()):
                    now.copy_(kept)

            self._restorers.append(write_back)
        return held

    def _note_array(self, array: np.ndarray[Any, Any]) -> Iterable[Any]:
        """Notes an array in the frozen state: a small one is written back after every record, one of objects is
        followed.
        """
        if array.dtype == object:
            kept = array.copy()
            self._restorers.append(lambda: np.copyto(array, kept) if array.flags.writeable else None)
            return tuple(array.flat)
        if array.nbytes <= _SMALL_BYTES and array.flags.writeable:
            copied = array.copy()
            self._restorers.append(lambda: np.copyto(array, copied))
        return ()

    def _note_container(self, thing: Any) -> Iterable[Any]:
        """Notes a list, dict, set or deque in the frozen state by the things in it; they are compared by identity,
        which is quick.
        """
        if isinstance(thing, dict):
            # By the methods of dict itself: a class of its own may give other things than it holds.
            keys = list(dict.keys(thing))
            values = [dict.__getitem__(thing, key) for key in keys]
            base: Any = OrderedDict if isinstance(thing, OrderedDict) else dict

            def restore() -> None:
                """Restores the entries of a dict in the frozen state if a record's pass changed them."""
                if len(thing) != len(keys) or not all(map(_is_same_object, dict.values(thing), values)):
                    base.clear(thing)
                    for key, value in zip(keys, values, strict=True):
                        base.__setitem__(thing, key, value)

            self._restorers.append(restore)
            return (*keys, *values)
        # Lists, sets and deques are emptied and filled again if anything in them changed.
        kept = list(thing)

        def refill() -> None:
            if len(thing) != len(kept) or not all(map(_is_same_object, thing, kept)):
                thing.clear()
                (thing.update if isinstance(thing, set) else thing.extend)(kept)

        self._restorers.append(refill)
        return () if isinstance(thing, bytearray) else kept

    def _note_function(self, function: types.FunctionType) -> Iterable[Any]:
        """Notes a function of the user's in the frozen state: what it captured and defaults to, and the global
        variables that its code names.
        """
        # Closures and defaults are the usual places in which a function remembers something.
        held: list[Any] = [*(function.__closure__ or ()), function.__defaults__, function.__kwdefaults__]
        if function.__dict__:
            held.append(function.__dict__)
        if not _is_user_module(function.__module__):
            return held
        # Global variables that the code names are set back, and those that it creates are removed.
        space = function.__globals__
        for name in _names_in_code(function.__code__):
            if name in space:
                value = space[name]
                held.append(value)
                self._restorers.append(partial(_set_global, space, name, value))
            else:
                self._restorers.append(partial(space.pop, name, None))
        return held

    def _note_cell(self, cell: types.CellType) -> Iterable[Any]:
        """Notes what the cell of a user's closure holds, for the frozen state to restore."""
        try:
            value = cell.cell_contents
        except ValueError:
            return ()
        self._restorers.append(partial(setattr, cell, "cell_contents", value))
        return (value,)

    def _note_class(self, kind: type) -> Iterable[Any]:
        """Notes the attributes of a class that the user wrote, for the frozen state to restore."""
        if not _is_user_module(kind.__module__):
            return ()
        # A counter kept in a class attribute is as much a memory as one in an object.
        members = {n: v for n, v in vars(kind).items() if n not in ("__dict__", "__weakref__", "__doc__", "__module__")}

        def restore() -> None:
            """Sets changed attributes of a class in the frozen state back and deletes new ones."""
            for name, value in members.items():
                if vars(kind).get(name) is not value:
                    setattr(kind, name, value)
            for name in [name for name in vars(kind) if name not in members and not name.startswith("__")]:
                delattr(kind, name)

        self._restorers.append(restore)
        return (*members.values(), *kind.__bases__)

    def _note_object(self, thing: Any) -> Iterable[Any]:
        """Notes an object of the user's code in the frozen state by its attributes and slots, and by those of its
        class.
        """
        # An object's attributes live in its `__dict__`, which is a container like any other.
        held: list[Any] = [type(thing)]
        space = getattr(thing, "__dict__", None)
        if isinstance(space, dict):
            held.append(space)
        # Slots are attributes outside of `__dict__`, declared by any class of the hierarchy.
        for kind in type(thing).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__") and hasattr(thing, name):
                    value = getattr(thing, name)
                    held.append(value)
                    self._restorers.append(partial(_set_slot, thing, name, value))
        return held


def _discard(_: object) -> None:
    """Returns nothing, whatever a setter returned."""


def _is_same_object(one: Any, other: Any) -> bool:
    return one is other


def _set_global(space: dict[str, Any], name: str, value: Any) -> None:
    if space.get(name) is not value:
        space[name] = value


def _set_slot(thing: Any, name: str, value: Any) -> None:
    if getattr(thing, name, None) is not value:
        object.__setattr__(thing, name, value)


def _is_stateful_builtin(thing: Any) -> bool:
    """Returns whether an object that is an iterator keeps its place where Python cannot reach it."""
    return getattr(thing, "__dict__", None) is None


def _names_in_code(code: types.CodeType) -> Iterator[str]:
    """Yields the names of global variables and attributes in the code of a user's function, and of functions that it
    defines, which the frozen state follows.
    """
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in_code(constant)


_INSTALLED = tuple(
    str(Path(place).resolve())
    for place in {
        *sysconfig.get_paths().values(),
        *site.getsitepackages(),
        site.getusersitepackages(),
        str(Path(__file__).parents[1]),
    }
    if Path(place).resolve() not in (Path(sys.prefix).resolve(), Path("/"))
)


def _is_user_module(module: str | None) -> bool:
    """Returns whether a module is the user's own, so that the frozen state covers it, and not of an installed package,
    of Python or of this library.
    """
    found = sys.modules.get(module or "")
    file = getattr(found, "__file__", None)
    if file is None:
        return (module or "").split(".")[0] not in sys.builtin_module_names and (module or "") != "builtins"
    return not str(Path(file).resolve()).startswith(_INSTALLED)


def _find_memory(dataset: Any) -> list[tuple[int, int]]:
    """Returns where the tensors and arrays of a dataset lie in memory, as first and last address."""
    # Torch's own wrappers are opened; of other datasets the attributes are looked at, and short containers in them.
    if isinstance(dataset, Subset):
        return _find_memory(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return [region for part in dataset.datasets for region in _find_memory(part)]
    waiting = deque(vars(dataset).values()) if hasattr(dataset, "__dict__") else deque([dataset])
    regions = []
    while waiting:
        thing = waiting.popleft()
        if isinstance(thing, list | tuple | dict) and len(thing) <= _SHORT:
            waiting.extend(thing.values() if isinstance(thing, dict) else thing)
        elif isinstance(thing, Tensor | np.ndarray) and thing.ndim > 0:
            start = _address_of(thing)
            if start is not None and thing.nbytes:
                regions.append((start, start + thing.nbytes))
    return regions


def _lies_in(thing: Any, regions: list[tuple[int, int]]) -> bool:
    """Returns whether a tensor or an array of the user's code begins in one of these parts of memory."""
    if not regions or not isinstance(thing, Tensor | np.ndarray):
        return False
    address = _address_of(thing)
    return address is not None and any(start <= address < end for start, end in regions)


def _address_of(thing: Tensor | NDArray[Any]) -> int | None:
    """Returns where the first number of a tensor or an array of the user's code lies in memory, or None."""
    if isinstance(thing, np.ndarray):
        return int(thing.ctypes.data)
    try:
        return thing.data_ptr()
    except (RuntimeError, NotImplementedError):  # a tensor without memory of its own
        return None

"""Takes and puts back the state that a user's model, loss, collate and dataset keep.

A test runs the same code several times. Code that computes a statistic once and reuses it would show the first batch's
statistic in every later pass, and so hide a coupling. Each pass therefore starts from the state in which the test found
the code, and the test leaves that state behind.

What is followed: attributes of modules and of objects of the user's own classes, closures, defaults and attributes of
functions, global variables that the user's functions name, dicts, lists, sets and deques, tensors and arrays, buffers
by content and parameters by identity, random generators, and caches of `functools`. Objects of frameworks (a Trainer, a
logger, an optimizer) are left alone: putting them back could break them.

Privacy: nothing of the state leaves this module; it is compared and put back.
"""

from __future__ import annotations

import argparse
import collections
import functools
import pickle
import random
import sys
import threading
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_MOST_OBJECTS = 20_000
"""Objects that are followed at most, so that a test stays cheap beside a large dataset in a closure."""
_MOST_ITEMS = 512
"""Containers with more items than this are put back as a whole, without following their items."""
_MOST_BYTES = 1 << 24
"""Bytes of tensors and arrays that are copied at most."""

_FOREIGN = frozenset(
    {"torch", "torchvision", "numpy", "scipy", "pandas", "pyarrow", "PIL", "datasets", "tokenizers", "transformers"}
    | {
        "accelerate",
        "lightning",
        "pytorch_lightning",
        "lightning_fabric",
        "skorch",
        "sklearn",
        "sordino",
        "tensorboard",
    }
    | {"wandb", "mlflow", "tqdm", "pytest", "_pytest"}
    | set(sys.stdlib_module_names)
) - {"__main__"}
"""Packages whose objects and functions are left alone; modules (`nn.Module`) are followed wherever they are from."""

_FOLLOWED = (types.SimpleNamespace, threading.local, argparse.Namespace)
"""Classes of the standard library that users keep state in."""

_LARGE = 1 << 16
"""Tensors of more bytes than this are compared by their versions alone."""

_SKIPPED_ATTRIBUTES = frozenset({"training", "_parameters", "_modules"})
"""Attributes of modules that the test itself changes, or that are watched by other checks."""


class UserState:
    """Holds the state of some objects at one moment.

    Args:
        roots: the model, the loss, the dataset and collate.

    """

    def __init__(self, roots: Iterable[Any]) -> None:
        self._undo: list[Callable[[], Any]] = []
        self._undo_generators: list[Callable[[], Any]] = []
        self._empty: list[dict[Any, Any]] = []  # dicts that held nothing; a module of torch has a dozen for its hooks
        self._generators: list[tuple[Callable[[], Any], bytes]] = []  # how to read the state of each, and what it was
        self._seen: set[int] = set()
        self._kept: list[Any] = []  # so that no id is used again while it is in `_seen`
        self._bytes = 0
        # Follow references breadth first, so that what is near the roots is remembered before the limit is reached.
        waiting = collections.deque(roots)
        while waiting and len(self._seen) < _MOST_OBJECTS:
            found = waiting.popleft()
            if found is None or isinstance(found, (bool, int, float, str, bytes, complex)) or id(found) in self._seen:
                continue
            self._seen.add(id(found))
            self._kept.append(found)
            try:
                waiting.extend(self._remember(found))
            except Exception:  # an object of a user's class may forbid being looked at
                continue

    def put_back(self) -> None:
        """Puts the user's state back: gives every object the content it had. What cannot be written to is left as it
        is.
        """
        for mapping in self._empty:
            if mapping:
                mapping.clear()
        _run_all_undos(self._undo)
        self.put_generators_back()

    def put_generators_back(self) -> None:
        """Sets the user's own random generators back and nothing else."""
        _run_all_undos(self._undo_generators)

    def have_generators_moved(self) -> bool:
        """Returns whether a random generator of the user's own has drawn since."""
        return any(pickle.dumps(read()) != state for read, state in self._generators)

    def _remember(self, found: Any) -> Iterable[Any]:
        """Notes how to put one object of the user's state back, and returns what the object refers to."""
        # Empty dicts are most of what a module holds, so they come first and are emptied again without a function each.
        if type(found) in (dict, collections.OrderedDict) and not found:
            self._empty.append(found)
            return ()
        # Numbers in memory, and code with what it holds.
        if isinstance(found, Tensor):
            return self._remember_tensor(found)
        if isinstance(found, np.ndarray):
            return self._remember_array(found)
        if isinstance(found, nn.Module):
            return self._remember_module(found)
        if isinstance(found, types.FunctionType):
            return self._remember_function(found)
        if isinstance(found, types.MethodType):
            return [found.__self__, found.__func__]
        if isinstance(found, functools.partial):
            return [found.func, *found.args, *found.keywords.values()]
        # Containers.
        if isinstance(found, dict):
            return self._remember_mapping(found)
        if isinstance(found, (list, collections.deque)):
            return self._remember_sequence(found)
        if isinstance(found, set):
            return self._remember_set(found)
        if isinstance(found, (tuple, frozenset)):
            return found if len(found) <= _MOST_ITEMS else ()
        if isinstance(found, types.CellType):
            return self._remember_cell(found)
        # Random generators and caches.
        if isinstance(found, (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)):
            return self._remember_generator(found)
        if isinstance(found, functools._lru_cache_wrapper):
            self._undo.append(found.cache_clear)  # a cache is transparent: emptying it changes no honest result
            return [found.__wrapped__]
        # Classes and objects of the user's own; those of frameworks are left alone.
        if isinstance(found, type):
            return self._remember_class(found)
        if isinstance(found, types.ModuleType) or (_is_foreign(type(found)) and not isinstance(found, _FOLLOWED)):
            return ()
        return self._remember_object(found)

    def _remember_tensor(self, found: Tensor) -> Iterable[Any]:
        """Notes the content of a tensor in the user's state, unless it is too large to be copied."""
        # Large parameters are left to the tripwire; other large tensors would cost too much memory to copy.
        size = found.numel() * found.element_size()
        if isinstance(found, nn.Parameter) and size > _LARGE:
            return ()  # the model's own are watched by the tripwire
        if self._bytes + size > _MOST_BYTES or found.layout is not torch.strided:
            return ()
        self._bytes += size
        kept, version = found.detach().clone(), found._version

        def undo() -> None:
            """Writes the content of a tensor in the user's state back if it has changed."""
            # A write moves the version that autograd looks at, so only what changed is written.
            if found._version == version and size > _LARGE:
                return
            now = found.detach()
            if now.shape != kept.shape:
                found.data = kept.clone()
            elif not _equal(now, kept):
                with torch.no_grad():
                    found.copy_(kept)

        self._undo.append(undo)
        return ()

    def _remember_array(self, found: np.ndarray[Any, Any]) -> Iterable[Any]:
        """Notes the content of a numpy array in the user's state, unless it is too large to be copied."""
        # An array that cannot be written to needs no copy.
        if self._bytes + found.nbytes > _MOST_BYTES or found.dtype.hasobject or not found.flags.writeable:
            return ()
        self._bytes += found.nbytes
        kept = found.copy()

        def undo() -> None:
            """Writes the content back."""
            if found.shape == kept.shape:
                found[...] = kept

        self._undo.append(undo)
        return ()

    def _remember_module(self, found: nn.Module) -> Iterable[Any]:
        """Notes the attributes of a module in the user's state, and returns what the module holds."""
        # Parameters and submodules are remembered by themselves; here it is the other attributes.
        own = vars(found)
        kept = {name: value for name, value in own.items() if name not in _SKIPPED_ATTRIBUTES}

        def undo() -> None:
            """Removes attributes that were added to a module in the user's state, and puts the others back."""
            for name in [name for name in own if name not in kept and name not in _SKIPPED_ATTRIBUTES]:
                del own[name]
            for name, value in kept.items():
                if own.get(name, kept) is not value:
                    own[name] = value

        self._undo.append(undo)
        return [*kept.values(), *found._modules.values(), *found._parameters.values(), type(found), type(found).forward]

    def _remember_function(self, found: types.FunctionType) -> Iterable[Any]:
        """Notes the globals that a user's function names, and returns what the function holds: closure, defaults,
        attributes.
        """
        # Functions of libraries keep no state of the user's.
        if _is_foreign_name(found.__module__):
            return ()
        inside: list[Any] = [*(found.__closure__ or ()), *(found.__defaults__ or ()), vars(found)]
        inside += (found.__kwdefaults__ or {}).values()
        # Globals by name, also those of modules of the user's own.
        names = [name for name in _global_names(found.__code__) if name in found.__globals__]
        for name in names:
            self._remember_global(found.__globals__, name)
            value = found.__globals__[name]
            inside.append(value)
            if isinstance(value, types.ModuleType) and not _is_foreign_name(value.__name__):
                for other in _global_names(found.__code__):
                    if other in vars(value):
                        self._remember_global(vars(value), other)
                        inside.append(vars(value)[other])
        wrapped = getattr(found, "__wrapped__", None)
        return inside if wrapped is None else [*inside, wrapped]

    def _remember_global(self, space: dict[str, Any], name: str) -> None:
        """Notes which object a global name that the user's code reads stands for."""
        kept = space[name]
        if isinstance(kept, (types.ModuleType, type, types.FunctionType)):
            return

        def undo() -> None:
            """Binds the name to that object again."""
            if space.get(name, undo) is not kept:
                space[name] = kept

        self._undo.append(undo)

    def _remember_mapping(self, found: dict[Any, Any]) -> Iterable[Any]:
        """Notes the items of a dict in the user's state, and returns its values.

        A class of its own may give other things than it holds (`ACT2FN` of transformers holds classes and gives objects),
        so items are read and written by the methods of dict itself.
        """
        # Read around methods of subclasses, which may count or change what is read.
        kept = {key: dict.__getitem__(found, key) for key in dict.keys(found)}
        base: Any = collections.OrderedDict if isinstance(found, collections.OrderedDict) else dict

        def undo() -> None:
            """Puts the items of a dict in the user's state back if any has changed."""
            if len(found) != len(kept) or any(dict.get(found, key, kept) is not value for key, value in kept.items()):
                base.clear(found)
                for key, value in kept.items():
                    base.__setitem__(found, key, value)

        self._undo.append(undo)
        # Large containers are put back but not followed: they hold data as a rule.
        if len(kept) > _MOST_ITEMS:
            return ()
        return kept.values()

    def _remember_sequence(self, found: Any) -> Iterable[Any]:
        """Notes the items of a list or deque in the user's state, and returns them."""
        kept = list(found)

        def undo() -> None:
            """Puts the items of a list or deque in the user's state back if any has changed."""
            if len(found) != len(kept) or any(now is not value for now, value in zip(found, kept, strict=True)):
                found.clear()
                found.extend(kept)

        # The order of the items counts as well.
        self._undo.append(undo)
        if len(kept) > _MOST_ITEMS:
            return ()
        return kept

    def _remember_set(self, found: set[Any]) -> Iterable[Any]:
        """Notes the members of a set in the user's state."""
        kept = set(found)

        def undo() -> None:
            """Puts the members of a set in the user's state back if they have changed."""
            if found != kept:
                found.clear()
                found.update(kept)

        self._undo.append(undo)
        return ()

    def _remember_cell(self, found: types.CellType) -> Iterable[Any]:
        """Notes the content of a cell of a user's closure, and returns it."""
        try:
            kept = found.cell_contents
        except ValueError:  # empty
            return ()

        def undo() -> None:
            """Puts the content back if it is another object."""
            if found.cell_contents is not kept:
                found.cell_contents = kept

        self._undo.append(undo)
        return [kept]

    def _remember_generator(self, found: Any) -> Iterable[Any]:
        """Notes the state of a random generator of torch, numpy or Python that the user's state holds."""
        read: Callable[[], Any]
        write: Callable[[Any], Any]
        # Each kind of generator has another way to read and write its state.
        if isinstance(found, torch.Generator):
            read, write = found.get_state, found.set_state
        elif isinstance(found, random.Random):
            read, write = found.getstate, found.setstate
        elif isinstance(found, np.random.RandomState):
            read, write = functools.partial(found.get_state, legacy=False), found.set_state
        else:
            read = functools.partial(getattr, found.bit_generator, "state")
            write = functools.partial(setattr, found.bit_generator, "state")
        state: Any = read()
        self._generators.append((read, pickle.dumps(state)))
        self._undo_generators.append(functools.partial(write, state))
        return ()

    def _remember_class(self, found: type) -> Iterable[Any]:
        """Notes the class attributes of a user's class; its methods are followed for what they name."""
        # Only classes that the user wrote.
        if _is_foreign(found):
            return ()
        kept = {name: value for name, value in vars(found).items() if not name.startswith("__")}
        # Methods are not put back, but followed for the globals that they name.
        plain = {
            name: value
            for name, value in kept.items()
            if not isinstance(value, (types.FunctionType, property, classmethod, staticmethod, type))
        }

        def undo() -> None:
            """Puts changed attributes of a user's class back, and removes those that were added."""
            for name, value in plain.items():
                if vars(found).get(name, plain) is not value:
                    setattr(found, name, value)
            for name in [name for name in vars(found) if name not in kept and not name.startswith("__")]:
                delattr(found, name)

        self._undo.append(undo)
        functions = [
            value.__func__ if isinstance(value, (classmethod, staticmethod)) else value for value in kept.values()
        ]
        return [
            *plain.values(),
            *(value for value in functions if isinstance(value, types.FunctionType)),
            *found.__bases__,
        ]

    def _remember_object(self, found: Any) -> Iterable[Any]:
        """Notes the attributes of an object of a user's own class, in its dict or in slots."""
        # Slots of all classes of the hierarchy, and then the attributes in `__dict__`.
        slots = [name for kind in type(found).__mro__ for name in _own_slots(kind)]
        held = {name: getattr(found, name) for name in slots if hasattr(found, name)}

        def undo_slots() -> None:
            """Puts changed slots of a user's object back, and empties those that were empty."""
            for name in slots:
                if name in held:
                    if getattr(found, name, held) is not held[name]:
                        object.__setattr__(found, name, held[name])
                elif hasattr(found, name):
                    object.__delattr__(found, name)

        if slots:
            self._undo.append(undo_slots)
        own = getattr(found, "__dict__", None)
        inside = [] if not isinstance(own, dict) else [*self._remember_mapping(own)]
        return [*inside, *held.values(), type(found)]


def _run_all_undos(undone: list[Callable[[], Any]]) -> None:
    """Puts the user's state back: runs every undo, and goes on where an object forbids it."""
    for undo in undone:
        try:
            undo()
        except Exception:  # an object may forbid being written to
            continue


def _equal(one: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors of a user's state hold the same, where nan is the same as nan."""
    if torch.equal(one, other):
        return True
    return one.is_floating_point() and torch.equal(one.nan_to_num(), other.nan_to_num())


def _global_names(code: types.CodeType) -> list[str]:
    """Returns the global names that a user's function and the functions inside it use."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _global_names(constant)
    return names


def _own_slots(kind: type) -> tuple[str, ...]:
    """Returns the names of the slots that one class of a user adds."""
    slots = vars(kind).get("__slots__", ())
    named = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in named if name not in ("__dict__", "__weakref__"))


def _is_foreign(kind: type) -> bool:
    """Returns whether a class belongs to a package whose objects are left alone."""
    return _is_foreign_name(getattr(kind, "__module__", None))


def _is_foreign_name(name: str | None) -> bool:
    """Returns whether a module belongs to a package whose objects are left alone."""
    return name is None or name.partition(".")[0] in _FOREIGN

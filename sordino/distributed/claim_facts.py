"""Claim facts: describes what a run depends on, so that ranks can name what differs.

    facts = Facts(key)
    facts.add("query", NoisySum(Flat(1.0), Gaussian(1.1)))
    facts.found["query.noise.multiplier"]        # Fact(shown="1.1", digest=b"…")

An object is taken apart into its fields, and theirs, down to plain values. What a user wrote counts by its code as well: a
clipping rule of one's own is known by its class, the code of its methods, its fields, and the functions and constants that
this code reads. Code of sordino, torch, numpy and the standard library counts by its name: the versions are compared too.
So does the code of well-known frameworks (transformers, peft, Lightning and others), with the version of each that is met.

Two things are meant to differ between ranks and are therefore described in words that do not: a device counts by its kind
(`cuda`, not `cuda:1`), and a variable with "rank" in its name that holds this process's own rank counts as "its own rank".

Privacy: tensors, arrays and records enter as keyed digests (BLAKE2b under the run's key), which are sent to ranks only.
What is shown in an error is public: fields of the query, names of functions, versions. Contents of tensors are not shown.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import re
import sys
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_DIGEST_BYTES = 16
_LONG = 32
"""Elements from which on a list is one fact and not one for each of its elements."""
_DEEPEST = 12
_MOST_SHOWN = 60
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|hpu|npu)(:\d+)?")
_LIBRARIES = frozenset({"sordino", "torch", "numpy", "builtins", *sys.stdlib_module_names}) - {"__main__"}
_FRAMEWORKS = frozenset(
    {"transformers", "peft", "accelerate", "datasets", "tokenizers", "safetensors", "huggingface_hub", "bitsandbytes"}
    | {
        "lightning",
        "pytorch_lightning",
        "lightning_fabric",
        "lightning_utilities",
        "torchmetrics",
        "torchvision",
        "timm",
    }
    | {"scipy", "sklearn", "skorch", "pandas", "pyarrow", "PIL", "ray"}
)
"""Packages whose code counts by its name and the package's version. It reads caches and session numbers, which differ."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CALLS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.MethodDescriptorType)


@dataclass(frozen=True)
class Fact:
    """One thing that all ranks must have in common: its digest, and what may be shown of it in an error."""

    shown: str
    digest: bytes


@dataclass
class ClaimFacts:
    """Named facts about a run, in the order in which they were added.

    Args:
        key: the key of the digests, the same on all ranks.
        rank: the number of this process among the ranks.

    >>> facts = ClaimFacts(b"key")
    >>> facts.add("noise", {"multiplier": 1.1})
    >>> facts.facts["noise['multiplier']"].shown
    '1.1'

    """

    key: bytes
    rank: int = -1
    facts: dict[str, Fact] = field(default_factory=dict)
    _inside: list[int] = field(default_factory=list)  # identities of the objects that are being taken apart
    _described: set[int] = field(default_factory=set)  # identities of functions and classes whose code is in it already

    def add(self, name: str, thing: Any) -> None:
        """Adds everything that `thing` consists of to the claim facts that ranks compare, under names that begin with
        `name`.
        """
        # Plain values, devices and tensors are facts by themselves.
        if isinstance(thing, Enum):
            self._add_fact(name, str(thing))
        elif isinstance(thing, _PLAIN):
            self._add_plain(name, thing)
        elif isinstance(thing, torch.dtype | torch.Size | torch.layout | np.dtype | types.ModuleType | range | slice):
            self._add_fact(name, getattr(thing, "__name__", repr(thing)))
        elif isinstance(thing, torch.device):
            self._add_fact(name, f"device {thing.type}")
        elif isinstance(thing, Tensor | np.ndarray | np.generic):
            self._add_fact(name, "a tensor of other values", digest_of_record(self.key, thing))
        # An object that contains itself, or is nested very deeply, counts by its class.
        elif id(thing) in self._inside or len(self._inside) >= _DEEPEST:
            self._add_fact(name, _qualified_name(type(thing)))
        else:
            self._inside.append(id(thing))
            try:
                self._take_apart(name, thing)
            finally:
                self._inside.pop()

    def _take_apart(self, name: str, thing: Any) -> None:
        """Adds the parts of a container, a function, a class, a module or an object to the claim facts, each as a fact
        of its own.
        """
        # Containers: by their elements.
        if isinstance(thing, Mapping):
            self._add_elements(name, [(f"{name}[{key!r}]", value) for key, value in thing.items()])
        elif isinstance(thing, list | tuple):
            self._add_elements(name, [(f"{name}[{place}]", value) for place, value in enumerate(thing)])
        elif isinstance(thing, set | frozenset):
            self._add_fact(name, f"a set of {len(thing)}", self._digest_of_parts(sorted(map(repr, thing))))
        # Things that are called: by their code and what is bound to them.
        elif isinstance(thing, functools.partial):
            self.add(f"{name}.func", thing.func)
            self.add(f"{name}.args", thing.args)
            self.add(f"{name}.keywords", thing.keywords)
        elif isinstance(thing, types.MethodType):
            self.add(f"{name}.self", thing.__self__)
            self.add(f"{name}.function", thing.__func__)
        elif isinstance(thing, types.FunctionType):
            self._add_function(name, thing)
        elif isinstance(thing, types.BuiltinFunctionType | types.MethodDescriptorType):
            self._add_fact(name, f"{getattr(thing, '__module__', None)}.{thing.__qualname__}")
        elif callable(getattr(thing, "__wrapped__", None)):
            self.add(f"{name}.__wrapped__", thing.__wrapped__)
        # Classes, models and any other object.
        elif isinstance(thing, type):
            self._add_class(name, thing)
        elif isinstance(thing, nn.Module):
            self._add_module(name, thing)
        else:
            self._add_object(name, thing)

    def _add_elements(self, name: str, parts: list[tuple[str, Any]]) -> None:
        """Adds a container's elements to the claim facts: each under its own name, or all as one fact where there are
        many.
        """
        # Short containers show which element differs; long ones count as one fact.
        if len(parts) <= _LONG:
            self._add_fact(name, f"{len(parts)} elements")
            for path, value in parts:
                self.add(path, value)
            return
        inner = ClaimFacts(self.key, self.rank, _inside=self._inside, _described=set(self._described))
        for path, value in parts:
            inner.add(path, value)
        self._add_fact(name, f"{len(parts)} elements", inner.digest())

    def _add_object(self, name: str, thing: Any) -> None:
        """Adds an object to the claim facts by its class and its fields; of other libraries' objects only those of
        dataclasses.
        """
        # A dataclass is described by its fields, of whatever library it is.
        kind = type(thing)
        self._add_class(name, kind)
        if is_dataclass(thing):
            for each in fields(thing):
                if each.init or each.compare:  # what is neither is a cache
                    self.add(f"{name}.{each.name}", getattr(thing, each.name, None))
        # An object of the user's own by all of its attributes, one of this library by those that are values.
        elif not _is_of_library(kind):
            for attribute, value in _attributes(thing):
                self.add(f"{name}.{attribute}", value)
        elif kind.__module__.partition(".")[0] == "sordino":
            for attribute, value in _attributes(thing):
                self._add_outside_value(f"{name}.{attribute}", value)

    def _add_class(self, name: str, kind: type) -> None:
        """Adds a class to the claim facts by its name and, where it is a user's, by the code of all its methods."""
        self._add_fact(name, _qualified_name(kind))
        # Methods that a user wrote are part of what is computed, so their code is compared; each class is described
        # once.
        for base in kind.__mro__:
            self._add_version(base)
            if _is_of_library(base) or _package_of(base) in _FRAMEWORKS or id(base) in self._described:
                continue
            self._described.add(id(base))
            for attribute, value in sorted(vars(base).items()):
                function = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
                if isinstance(function, types.FunctionType):
                    self._add_function(f"{name}.{attribute}()", function)
                elif not attribute.startswith("__") and isinstance(value, (*_PLAIN, tuple)):
                    self.add(f"{name}.{attribute}", value)

    def _add_function(self, name: str, function: types.FunctionType) -> None:
        """Adds a function to the claim facts by its code, its defaults, and what it reads from around it."""
        # Code of a library is known by its name: all ranks must have the same versions, which is compared elsewhere.
        if _is_of_library(function) or id(function) in self._described:
            self._add_fact(name, f"{function.__module__}.{function.__qualname__}")
            return
        self._described.add(id(function))
        code = function.__code__
        # A framework's function counts by its name and version, but what a user bound to it counts as ever.
        if _package_of(function) in _FRAMEWORKS:
            self._add_fact(name, f"{function.__module__}.{function.__qualname__}")
            self._add_version(function)
            self._add_closure(name, function)
            return
        self._add_fact(name, f"other code of {function.__qualname__}", self._digest_of_parts(_code_parts(code)))
        # Defaults, captured variables and named globals can change what equal code computes.
        self.add(f"{name} defaults", function.__defaults__)
        self.add(f"{name} keyword defaults", function.__kwdefaults__)
        self._add_closure(name, function)
        for variable in sorted(_global_names(code)):
            if variable in function.__globals__:
                self._add_outside_value(f"{name} global {variable!r}", function.__globals__[variable])

    def _add_closure(self, name: str, function: types.FunctionType) -> None:
        """Adds the variables around a function to the claim facts."""
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._add_outside_value(f"{name} variable {variable!r}", cell.cell_contents if _is_filled(cell) else None)

    def _add_version(self, thing: Any) -> None:
        """Adds the version of the framework that a class or a function is from to the claim facts."""
        package = _package_of(thing)
        if package in _FRAMEWORKS:
            self._add_fact(f"version of {package}", str(getattr(sys.modules.get(package), "__version__", "unknown")))

    def _add_outside_value(self, name: str, value: Any) -> None:
        """Adds to the claim facts what a function reads from outside of it: values, functions, classes; of other
        objects the class.
        """
        # A rank may know its own number; that difference is wanted.
        if type(value) is int and value == self.rank and "rank" in name.lower():
            self._add_fact(name, "its own rank")
        elif (
            isinstance(value, (*_PLAIN, *_CALLS, Enum, Tensor, np.ndarray, functools.partial, list, tuple, dict, type))
            or is_dataclass(value)
            or isinstance(value, nn.Module)
        ):
            self.add(name, value)
        else:
            self._add_fact(name, _qualified_name(type(value)))

    def _add_module(self, name: str, module: nn.Module) -> None:
        """Adds a model to the claim facts: its layers with their settings, which of its parameters are trained, and its
        users' code.
        """
        # Layers by their settings and mode; weights are compared by their own digest.
        for path, each in module.named_modules():
            where = f"{name}.{path}" if path else name
            self._add_class(where, type(each))
            self._add_fact(f"{where} settings", each.extra_repr())
            self._add_fact(f"{where} mode", "training" if each.training else "evaluation")
            for attribute, value in sorted(each.__dict__.items()):
                if not attribute.startswith("_") and attribute != "training" and isinstance(value, _PLAIN):
                    self._add_plain(f"{where}.{attribute}", value)
        # Which parameters are trained decides what is released.
        for path, p in module.named_parameters():
            trained = "trained" if p.requires_grad else "frozen"
            self._add_fact(f"{name}.{path}", f"{trained}, {tuple(p.shape)}, {p.dtype}")

    def _add_plain(self, name: str, value: Any) -> None:
        """Adds a number or a text to the claim facts; the name of a device by its kind."""
        if isinstance(value, str) and _DEVICE.fullmatch(value):
            self._add_fact(name, value.partition(":")[0])
        else:
            shown = value.hex() if isinstance(value, float) else repr(value)
            self._add_fact(name, repr(value), f"{type(value).__name__} {shown}".encode())

    def _add_fact(self, name: str, shown: str, known: bytes | None = None) -> None:
        digest = self._digest_of_parts([shown]) if known is None else self._digest_of_parts([known])
        self.facts[name] = Fact(shown if len(shown) <= _MOST_SHOWN else shown[: _MOST_SHOWN - 1] + "…", digest)

    def _digest_of_parts(self, parts: Iterable[str | bytes]) -> bytes:
        """Returns the keyed digest of the parts of one claim fact, each with its length."""
        made = hashlib.blake2b(key=self.key[:64], digest_size=_DIGEST_BYTES)
        for part in parts:
            bare = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
            made.update(len(bare).to_bytes(8, "little") + bare)
        return made.digest()

    def digest(self) -> bytes:
        """Returns one digest of all facts and their names."""
        return self._digest_of_parts(part for name, fact in self.facts.items() for part in (name, fact.digest))


def digest_of_record(key: bytes, thing: Any) -> bytes:
    """Returns a keyed digest of a record for the claim facts: tensors, arrays, numbers, texts and containers of them,
    by value.

    Objects of other kinds count by their bytes (`tobytes`, as pictures have it) or else by their class alone.
    """
    made = hashlib.blake2b(key=key[:64], digest_size=_DIGEST_BYTES)
    _feed_hash(made, thing, 0)
    return made.digest()


def _feed_hash(made: Any, thing: Any, depth: int) -> None:
    """Adds a record's content to the hash that becomes a claim fact, with the type and the length of every part."""
    # Numbers enter as their bytes, with type and shape, so that two layouts never look alike.
    if isinstance(thing, Tensor):
        held = thing.detach().cpu().contiguous()
        made.update(f"tensor {thing.dtype} {tuple(thing.shape)};".encode())
        made.update(held.reshape(-1).view(torch.uint8).numpy().data if held.numel() else b"")
    elif isinstance(thing, np.ndarray | np.generic) and thing.dtype != object:
        held_array = np.ascontiguousarray(thing)
        made.update(f"array {held_array.dtype} {held_array.shape};".encode())
        made.update(held_array.tobytes())
    # Containers enter with their length, then element by element.
    elif isinstance(thing, Mapping) and depth < _DEEPEST:
        made.update(f"mapping {len(thing)};".encode())
        for name, value in thing.items():
            _feed_hash(made, name, depth + 1)
            _feed_hash(made, value, depth + 1)
    elif isinstance(thing, list | tuple | np.ndarray) and depth < _DEEPEST:
        made.update(f"list {len(thing)};".encode())
        for value in thing:
            _feed_hash(made, value, depth + 1)
    elif isinstance(thing, _PLAIN):
        bare = thing if isinstance(thing, bytes) else repr(thing).encode("utf-8", "surrogatepass")
        made.update(f"{type(thing).__name__} {len(bare)};".encode() + bare)
    elif is_dataclass(thing) and not isinstance(thing, type) and depth < _DEEPEST:
        made.update(_qualified_name(type(thing)).encode())
        for each in fields(thing):
            _feed_hash(made, getattr(thing, each.name, None), depth + 1)
    # What is left counts by its bytes if it has any, else by its class alone.
    elif callable(getattr(thing, "tobytes", None)):
        made.update(f"{_qualified_name(type(thing))};".encode() + thing.tobytes())
    else:
        made.update(f"{_qualified_name(type(thing))};".encode())


def describe_differences(by_rank: list[dict[str, Fact]]) -> list[str]:
    """Returns one line for every claim fact in which some rank differs from the first, with what may be shown of both."""
    first, lines = by_rank[0], list[str]()
    # Facts are listed in the order of the first rank, and those that only others have after them.
    for name in dict.fromkeys(name for found in by_rank for name in found):
        missing = Fact("nothing", b"")
        values = [found.get(name, missing) for found in by_rank]
        # Only digests are compared; values that are shown were marked as public when the fact was added.
        other = next((rank for rank, fact in enumerate(values) if fact.digest != values[0].digest), None)
        if other is None:
            continue
        one, two = first.get(name, missing).shown, values[other].shown
        difference = f"rank 0 has {one}, rank {other} has {two}" if one != two else f"not the same on rank {other}"
        lines.append(f"{name}: {difference}")
    return lines


def _qualified_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _package_of(thing: Any) -> str:
    return str(getattr(thing, "__module__", None) or "builtins").partition(".")[0]


def _is_of_library(thing: Any) -> bool:
    return _package_of(thing) in _LIBRARIES


def _attributes(thing: Any) -> list[tuple[str, Any]]:
    """Returns an object's own attributes by name, those in slots included, for the claim facts about it."""
    # Slots count like attributes.
    attributes = dict(getattr(thing, "__dict__", {}))
    for base in type(thing).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(thing, name):
                attributes[name] = getattr(thing, name)
    return sorted(attributes.items())


def _is_filled(cell: types.CellType) -> bool:
    """Returns whether a cell of a function's closure holds a value, which then belongs to the claim facts."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


@functools.lru_cache(maxsize=1024)
def _code_parts(code: types.CodeType) -> tuple[bytes | str, ...]:
    """Returns what of a code object goes into the claim facts: what it does, without file names, line numbers and the
    docstring's place.
    """
    # Names and constants are part of what code does; file names and line numbers are not.
    parts: list[bytes | str] = [code.co_code, str(code.co_names), str(code.co_varnames), str(code.co_argcount)]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            parts += _code_parts(constant)
        elif isinstance(constant, frozenset):  # whose order is another in every process
            parts += sorted(map(repr, constant))
        else:
            parts.append(repr(constant))
    return tuple(parts)


@functools.lru_cache(maxsize=1024)
def _global_names(code: types.CodeType) -> frozenset[str]:
    """Returns the global names that a code object and the functions inside it look up, whose values belong to the claim
    facts.
    """
    names = {str(each.argval) for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return frozenset(names)

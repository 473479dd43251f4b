"""Decides whether a function, with everything that it holds, is code of this library.

A clipping rule of this library is proved row by row in its own file, so it is not tested again at every batch. Which
functions are the library's own must not be decided by an attribute that can be copied: `functools.wraps` gives a
stranger's function the `__module__` of the rule that it wraps.

Privacy: a function counts as the library's own only if the namespace that its code runs in is that of a module of this
package, and if everything that it holds (its closure, its defaults, the object of a method) consists of numbers,
tensors, instances of this package's own classes and such functions. Whatever is not recognised is taken for a
stranger's, which costs time and no privacy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

_VALUES = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size, np.generic)
_PACKAGE = "sordino."


def is_own_code(function: Callable[..., Any]) -> bool:
    """Returns whether `function`, and all that it holds, is code of this package.

    >>> from sordino import Flat
    >>> is_own_code(Flat(1.0).rule(None, lambda: None).weights)
    True
    >>> is_own_code(lambda norms: norms)
    False
    """
    return _is_own(function, set())


def _is_own(thing: Any, seen: set[int]) -> bool:
    """Returns whether `thing` is a plain value or the library's own; `seen` holds what is being looked at already."""
    if isinstance(thing, _VALUES) or type(thing) in (Tensor, np.ndarray) or id(thing) in seen:
        return True
    # Each kind of object is followed to everything that its code could reach.
    seen.add(id(thing))
    if isinstance(thing, FunctionType):
        held = [
            *map(_cell_content, thing.__closure__ or ()),
            *(thing.__defaults__ or ()),
            *(thing.__kwdefaults__ or {}).values(),
        ]
        return _is_own_namespace(thing.__globals__) and all(_is_own(each, seen) for each in held)
    if isinstance(thing, MethodType):
        return _is_own(thing.__func__, seen) and _is_own(thing.__self__, seen)
    if type(thing) is partial:
        return all(_is_own(each, seen) for each in (thing.func, *thing.args, *thing.keywords.values()))
    if type(thing) in (tuple, list, set, frozenset):
        return all(_is_own(each, seen) for each in thing)
    if type(thing) is dict:
        return all(_is_own(each, seen) for pair in thing.items() for each in pair)
    if isinstance(thing, BuiltinFunctionType):
        return thing.__self__ is None or isinstance(thing.__self__, ModuleType | type)  # not a method of some container
    if isinstance(thing, type):
        return _is_own_class(thing)
    # An instance is the library's own if its very class is, not a subclass of it, and if all its fields are.
    return _is_own_class(type(thing)) and all(_is_own(each, seen) for each in vars(thing).values())


def _cell_content(cell: CellType) -> Any:
    """Returns what a closure's cell holds, or the cell itself, which is not recognised, if it is still empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def _is_own_namespace(namespace: dict[str, Any]) -> bool:
    """Returns whether this dictionary is, as an object, the namespace of a module of this package."""
    name = namespace.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) and name.startswith(_PACKAGE) else None
    return module is not None and vars(module) is namespace


def _is_own_class(kind: type) -> bool:
    """Returns whether a module of this package has this very class under its name."""
    if not kind.__module__.startswith(_PACKAGE):
        return False
    resolved: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        resolved = getattr(resolved, part, None)
    return resolved is kind

"""Decides when two losses are the same, so that no loss is trusted for another's verification.

A lambda written inside a loop is a new object every time, and the same loss. Two functions made by one factory share
their code and may compute quite different things. So a function is known by its code and by everything that it holds:
the contents of its closure, its default arguments, the arguments of a `partial`, the object of a method. Numbers and
strings are compared by value, functions by this same rule, other objects by identity, while they live.

What a loss reads through a global name, and what changes inside an object that it holds, is not seen here.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any
from weakref import ref

_VALUES = frozenset((int, float, bool, complex, str, bytes, type(None)))


class _ObjectIdentity:
    """Key that is equal to another one of the same living object; it does not keep the object alive where possible."""

    __slots__ = ("_get", "_id")

    def __init__(self, thing: object) -> None:
        self._id = id(thing)
        self._get: Any = ref(thing) if type(thing).__weakrefoffset__ else lambda: thing

    def __hash__(self) -> int:
        return self._id

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _ObjectIdentity) or self._id != other._id:
            return False
        mine = self._get()
        return mine is not None and mine is other._get()


def find_loss_identity(thing: object, depth: int = 3) -> Hashable:
    """Returns the identity of a loss: a key that is equal for losses that are the same.

    Functions that are held by functions are followed to a depth, because they may hold each other; below it they are
    compared by identity, which may verify a loss once more than needed and never trusts one too many.
    """
    # Numbers and strings count by value.
    kind = type(thing)
    if kind in _VALUES:
        return kind, repr(thing) if kind is float else thing  # nan is not equal to itself
    if depth:
        # A function is its code, the module it looks names up in, and all that it holds.
        if isinstance(thing, FunctionType):
            code, names = _ObjectIdentity(thing.__code__), _ObjectIdentity(thing.__globals__)
            if thing.__closure__ is None and thing.__defaults__ is None and thing.__kwdefaults__ is None:
                return code, names
            held = [_cell_content(cell) for cell in thing.__closure__ or ()] + [*(thing.__defaults__ or ())]
            named = thing.__kwdefaults__ or {}
            return code, names, *[find_loss_identity(each, depth - 1) for each in (*held, *named, *named.values())]
        # A method is its function and its object; a partial or a tuple is what it contains.
        if isinstance(thing, MethodType):
            return find_loss_identity(thing.__func__, depth - 1), _ObjectIdentity(thing.__self__)
        if kind is partial:
            assert isinstance(thing, partial), "just asked"
            held = [thing.func, *thing.args, *thing.keywords, *thing.keywords.values()]
            return (partial, *[find_loss_identity(each, depth - 1) for each in held])
        if kind is tuple:
            assert isinstance(thing, tuple), "just asked"
            return (tuple, *[find_loss_identity(each, depth - 1) for each in thing])
    # Anything else is the same only if it is the same living object.
    return _ObjectIdentity(thing)


def _cell_content(cell: CellType) -> object:
    """Returns what a cell of a loss's closure holds, for the loss's identity, or the cell itself while nothing is
    assigned to it.
    """
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return cell

"""Checks that a function promised to work row by row does: each row's result depends on it alone.

The function is tried on the same rows in another order, and on half of them.

A weight, a tally, a rate or a vector per record may look at that record alone: a statistic over the rows makes every
record depend on every other, and nothing bounds what one of them moves. Such a function gives something else on a
permutation or on a part of the rows, unless it hides, and a random choice that it does not know makes hiding hard.

A clipping rule of this library is proved row by row in its own file, so it is not tried again at every batch. Which
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
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.distributed.shared_lot import RankedLot
from sordino.per_sample.protocol import Norms
from sordino.refusal import Refusal
from sordino.rng.streams import Rng

_VALUES = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size, np.generic)
_PACKAGE = "sordino."

Given = Tensor | NDArray[np.float64]
Rows = TypeVar("Rows", Tensor, Norms, "NDArray[np.float64]", "NDArray[np.float32]")

TOLERANCE = 1e-4
"""Relative to the largest value of a row: what products in another order may differ by."""
LARGEST_SAMPLE = 512
"""The number of rows that are tried; of more, so many are chosen at random."""


def works_row_by_row(
    function: Callable[[Rows], Given],
    rows: Rows,
    rng: Rng,
    result: Given | None = None,
    largest_sample: int = LARGEST_SAMPLE,
) -> bool:
    """Checks whether `function` works rowwise: each row gets the same on a permutation of the rows, and on half of them
    alone.

    `result` is what it gave for all rows, if that is known already.

    >>> lengths = torch.tensor([1.0, 2.0, 3.0, 4.0])
    >>> works_row_by_row(lambda r: 1 / r, lengths, Rng.from_seed(0))
    True
    >>> works_row_by_row(lambda r: r / r.max(), lengths, Rng.from_seed(0))
    False
    """
    # One row has no others that it could depend on.
    n = len(rows.squared) if isinstance(rows, Norms) else len(rows)
    if n < 2:
        return True
    all_rows = _as_float64(function(rows) if result is None else result)
    # A sample is enough: a function that mixes rows shows it in almost any of them.
    sample = (
        np.arange(n) if n <= largest_sample else np.unique(rng.integers(largest_sample, n))
    )  # none twice: the halves have no row in common
    # A permutation shows what depends on places, and the two halves show what depends on other rows.
    order = sample[rng.permutation(len(sample))]
    half = np.sort(order[: len(order) // 2])
    other = np.sort(order[len(order) // 2 :])
    return all(
        _agrees_with_rows(all_rows, where, _as_float64(function(_take_rows(rows, where))))
        for where in (order, half, other)
    )


SMALL_SAMPLE = 64
"""The number of rows that are tried wherever such a function is used: it costs as much as 128 rows more."""


def refuse_statistics(function: Callable[[Rows], Given], rows: Rows, result: Given, rng: Rng, name: str) -> None:
    """Raises Refusal for a function that fails the rowwise check, with its name and the cure; `result` is its result on
    all rows.
    """
    if not works_row_by_row(function, rows, rng, result, SMALL_SAMPLE):
        raise Refusal(
            f"{name}: what it gives a record changes with the other records.\n"
            "A record could then move the contributions of others, which its noise does not cover.\n"
            "Give a function of each row on its own. Take statistics such as a mean or a maximum from public data, "
            "or release them with noise first."
        )


class RowwiseWatch:
    """Watches the functions of a rule that is not of this library: each is tried on every batch it is used on."""

    STATISTIC = "the rule's weights or tally change with other rows of a batch: nothing bounds what one record moves"

    def __init__(self) -> None:
        self.is_broken, self.is_watching = False, False

    def __call__(self, function: Callable[[Norms], Tensor]) -> Callable[[Norms], Tensor]:
        """Returns the function, watched. The library's own functions are proved and returned as they are."""
        # Functions of this library are proved on paper; only a user's own are tried out.
        if is_own_code(function):
            return function
        # The choice of rows must be secret, or the function could recognise the check.
        self.is_watching = True
        self._rng = Rng.from_entropy()

        def call_and_check(norms: Norms) -> Tensor:
            """Returns the function's result, after the rowwise check tried the function on other rows; a failure is
            remembered.
            """
            # The user's result is what is used in any case, so a check never changes what is trained.
            result = function(norms)
            if not self.is_broken and len(norms.squared):
                # Work on a copy: the function might keep the tensor and write to it later.
                kept_result = result.clone()
                self.is_broken = not (
                    works_row_by_row(function, norms, self._rng, kept_result)
                    and works_row_by_row(
                        function, self._rescale_rows(norms), self._rng
                    )  # lengths that a neighbour might have
                    and torch.equal(function(norms), kept_result)  # and nothing was kept of them
                )
            return result

        return call_and_check

    def is_broken_anywhere(self, ranked: RankedLot | None) -> bool:
        """Returns whether a function is broken, here or on any other rank."""
        return self.is_broken if ranked is None or not self.is_watching else ranked.any_rank(self.is_broken)

    def _rescale_rows(self, norms: Norms) -> Norms:
        """Returns rows of any length: each norm is multiplied by 10⁻³ to 10³."""
        exponents = torch.from_numpy(self._rng.uniform(len(norms.squared)) * 12 - 6).to(norms.squared)
        return Norms(norms.squared * (10.0**exponents).unsqueeze(1), norms.names, norms.estimate)


def _take_rows(rows: Rows, where: NDArray[np.int64]) -> Rows:
    """Returns the rows at these places, on which the rowwise check tries a function again."""
    # Norms are taken with their names, so that the function sees what it would see in a smaller lot.
    if isinstance(rows, Norms):
        chosen: Any = Norms(rows.squared[torch.from_numpy(where).to(rows.squared.device)], rows.names, rows.estimate)
    else:
        chosen = rows[torch.from_numpy(where).to(rows.device) if isinstance(rows, Tensor) else where]
    taken: Rows = chosen
    return taken


def _as_float64(values: Given) -> NDArray[np.float64]:
    return (
        values.detach().cpu().double().numpy() if isinstance(values, Tensor) else np.asarray(values, dtype=np.float64)
    )


def _agrees_with_rows(result: NDArray[np.float64], where: NDArray[np.int64], some: NDArray[np.float64]) -> bool:
    """Returns whether, in a rowwise check, `some` agrees up to rounding with the rows `where` of `result`."""
    # A single number for all rows depends on none of them, as long as it is the same for every choice of rows.
    if result.ndim == 0 or some.ndim == 0:  # one number for all rows: the same whatever the rows are
        return result.shape == some.shape and bool(np.array_equal(result, some, equal_nan=True))
    wanted = result[where] if len(result) > 1 or len(where) <= 1 else result
    if wanted.shape != some.shape:
        return False
    # Two values agree if they are near, equal (infinities), or both not a number.
    each = wanted.reshape(len(wanted), -1), some.reshape(len(some), -1)
    # Differences count relative to the largest value in the row.
    size = np.nan_to_num(np.abs(each[0]), posinf=0.0).max(axis=1, initial=0.0, keepdims=True)
    with np.errstate(invalid="ignore"):
        near = np.abs(each[0] - each[1]) <= TOLERANCE * size
    return bool((near | (each[0] == each[1]) | (np.isnan(each[0]) & np.isnan(each[1]))).all())


def is_own_code(function: Callable[..., Any]) -> bool:
    """Returns whether `function`, and all that it holds, is code of this package, which needs no rowwise check.

    >>> from sordino import Flat
    >>> is_own_code(Flat(1.0).rule(None, lambda: None).weights)
    True
    >>> is_own_code(lambda norms: norms)
    False
    """
    return _is_own(function, set())


def _is_own(thing: Any, seen: set[int]) -> bool:
    """Returns whether `thing` is a plain value or the library's own, which needs no rowwise check; `seen` holds what is
    being looked at already.
    """
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
    """Returns what a closure's cell holds, for the rowwise check to recognise, or the cell itself, which it does not
    recognise, if the cell is empty.
    """
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def _is_own_namespace(namespace: dict[str, Any]) -> bool:
    """Returns whether a dictionary is, as an object, the namespace of a module of this package, which needs no rowwise
    check.
    """
    name = namespace.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) and name.startswith(_PACKAGE) else None
    return module is not None and vars(module) is namespace


def _is_own_class(kind: type) -> bool:
    """Returns whether a module of this package has this very class under its name, so that it needs no rowwise check."""
    # The module must hold this very class under its name: a class can be given any module name by hand.
    if not kind.__module__.startswith(_PACKAGE):
        return False
    resolved: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        resolved = getattr(resolved, part, None)
    return resolved is kind

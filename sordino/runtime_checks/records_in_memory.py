"""Records in memory: what a dataset's tensors and arrays show about the rest of the run, beside being read.

Three facts are looked for when a run meets a dataset, and named in its claim:

- a parameter, a buffer or an attribute of the model holds rows that are equal to records, such as prototypes or inducing
  points taken from the data;
- the numbers show that a scaler, a projection or an imputer was fitted on them (`fitted_tables`);
- the modules that the loss refers to beside the model, such as a teacher, were written to many times before the run.

A fourth is looked for before a claim: whether the memory that holds the records was written to since the run met it, as by
pseudo-labels or labels smoothed over neighbours.

None of these proves a breach. Rows may be public numbers in both places, a teacher may have been trained on public data,
and a record may be changed by its own values alone. So the claim says what was seen, and a reader can judge it.

Privacy: what is named quotes nothing of the records.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from sordino.ledger import claims
from sordino.runtime_checks.dataset_view import MATERIALISED_BYTES
from sordino.runtime_checks.fitted_tables import find_what_was_fitted
from sordino.runtime_checks.loss_rows_check import as_tensor_of_rows
from sordino.runtime_checks.post_processing_watch import has_row, is_distinctive

_ROWS_COMPARED = 4
"""Rows of a parameter that are compared with the records."""
_WRITES = 16
"""Weights that were written to so often before a run were trained."""
_SAMPLED = 64
"""Rows of an array by which it is known again; tensors count how often they were written to."""
_MOST_OBJECTS, _MOST_ITEMS = 500, 64
"""Objects that are followed from a loss function, and items of one container."""
_MOST_ROWS, _MOST_COLUMNS = 50_000, 32
"""Tables are looked at up to so many rows and columns."""


@dataclass(frozen=True)
class _Seen:
    """A container of records, held weakly, and how it was when the run met it."""

    whose: weakref.ref[Any]
    stamp: object


class RecordsInMemory:
    """Looks at the containers of records of one run.

    Args:
        disclose: says in the claim what is not covered.
        declare: says in the claim what is the user's word.

    """

    def __init__(self, disclose: Callable[[str], None], declare: Callable[[str], None]) -> None:
        self._disclose, self._declare = disclose, declare
        self._seen: dict[int, _Seen] = {}

    def look(self, containers: Iterable[Any], model: nn.Module, loss_fn: Any, *, is_first: bool) -> None:
        """Looks at the containers of records of a lot that were not seen before; `is_first`: no step of the run was
        made yet, so the weights are the initial ones.
        """
        met = [each for each in containers if isinstance(each, Tensor | np.ndarray) and id(each) not in self._seen]
        if is_first:
            for name in _find_held_rows(model, met):
                self._disclose(claims.name_held_rows(name))
            if any(_was_trained(module) for module in find_modules_beside(loss_fn, model)):
                self._disclose(claims.TEACHER_WRITTEN)
        for each in met:
            fitted = _find_what_was_fitted(each)
            if fitted is not None:
                self._disclose(claims.name_fitted(fitted))
            self._seen[id(each)] = _Seen(weakref.ref(each), _stamp(each))

    def look_for_changes(self) -> None:
        """Names in the claim that containers of records were written to since the run met them."""
        for seen in self._seen.values():
            container = seen.whose()
            if container is not None and _stamp(container) != seen.stamp:
                self._declare(claims.RECORDS_CHANGED)


def _stamp(container: Any) -> object:
    """Returns what changes when a container of records is written to."""
    if isinstance(container, Tensor):
        return None if container.is_inference() else container._version
    rows = container[np.linspace(0, len(container) - 1, min(_SAMPLED, len(container))).astype(np.int64)]
    return None if rows.dtype.hasobject else hash(rows.tobytes())


def _find_held_rows(model: nn.Module, containers: Iterable[Any]) -> list[str]:
    """Returns the names of parameters, buffers and attributes of modules that hold rows equal to records."""
    small = (each for each in containers if each.nbytes <= MATERIALISED_BYTES)
    tensors = [tensor for each in small if (tensor := as_tensor_of_rows(each)) is not None]
    found = []
    attributes = [
        (f"{module}.{name}" if module else name, value)
        for module, each in model.named_modules()
        for name, value in vars(each).items()
        if isinstance(value, Tensor)
    ]
    for name, held in [*model.named_parameters(), *model.named_buffers(), *attributes]:
        if held.is_meta or not held.numel() or held.dim() < 1 or type(held) not in (Tensor, nn.Parameter):
            continue
        # Some rows are enough: whoever takes anchors from the data takes all of them there.
        places = np.linspace(0, len(held) - 1, min(_ROWS_COMPARED, len(held))).astype(np.int64).tolist()
        rows = [held.detach().reshape(-1), *(held[at].detach().reshape(-1) for at in places if held.dim() > 1)]
        if any(is_distinctive(row) and has_row(column, row) for column in tensors for row in rows):
            found.append(name)
    return found


def _find_what_was_fitted(container: Any) -> str | None:
    """Returns what shows that something was fitted on a table of records, or None."""
    if isinstance(container, Tensor):
        if container.dim() != 2 or not container.is_floating_point() or not container.is_cpu:
            return None
        if len(container) > _MOST_ROWS:
            return None
        container = container.detach()[:, :_MOST_COLUMNS].float().numpy()
    if container.ndim != 2 or container.dtype.kind != "f" or len(container) > _MOST_ROWS:
        return None
    return find_what_was_fitted(container[:, :_MOST_COLUMNS])


def _was_trained(module: nn.Module) -> bool:
    return any(p.is_cpu and not p.is_inference() and p._version >= _WRITES for p in module.parameters())


def find_modules_beside(loss_fn: Any, model: nn.Module) -> list[nn.Module]:
    """Returns the modules that a loss function refers to, in its closure, globals, defaults and attributes, and that
    are no part of the model.
    """
    own = {id(module) for module in model.modules()}
    found: list[nn.Module] = []
    waiting: deque[Any] = deque([loss_fn])
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_OBJECTS:
        thing = waiting.popleft()
        if thing is None or id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, nn.Module):
            if id(thing) not in own:
                found.append(thing)
        else:
            waiting.extend(_references_of(thing))
    return found


def _references_of(thing: Any) -> list[Any]:
    """Returns what a function, a container or an object of the user's refers to."""
    if isinstance(thing, types.FunctionType):
        cells = []
        for cell in thing.__closure__ or ():
            try:
                cells.append(cell.cell_contents)
            except ValueError:  # not filled yet
                continue
        named = [thing.__globals__[name] for name in thing.__code__.co_names if name in thing.__globals__]
        return [*cells, *(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values(), *named]
    if isinstance(thing, types.MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, dict):
        return list(thing.values()) if len(thing) <= _MOST_ITEMS else []
    if isinstance(thing, list | tuple):
        return list(thing) if len(thing) <= _MOST_ITEMS else []
    # Objects of libraries are left alone; classes and modules of Python hold no weights of a run.
    library = (type(thing).__module__ or "").partition(".")[0] in ("builtins", "torch", "numpy", "sordino", "types")
    if isinstance(thing, type | types.ModuleType) or library:
        return []
    return list(vars(thing).values()) if hasattr(thing, "__dict__") else []

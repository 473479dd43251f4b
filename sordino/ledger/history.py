"""History of this process: which ledgers parameters were trained and data drawn under.

A second run on the same parameters goes on with their ledger, because what they are now tells about everything they were
trained on. A second run on the same data under another ledger is a fact that a claim must name: the two add up.

Privacy: objects are compared by identity. A copy of the data, or another process, is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

if TYPE_CHECKING:
    from sordino.ledger.ledger import Ledger

_of_parameter: dict[int, tuple[weakref.ref[nn.Parameter], list[Ledger]]] = {}
_of_data: dict[int, tuple[Any, list[Ledger]]] = {}  # a weak reference, or the thing itself where it allows none


def ledger_of(parameters: Iterable[nn.Parameter]) -> Ledger | None:
    """Returns from the process's history the ledger that a run on one of these parameters writes in, or None if there
    was no run on them.

    Of several, one in which something was entered comes first, and of those the last.
    """
    ledgers_known = [ledger for ledgers in _ledgers_of_parameters(parameters) for ledger in ledgers]
    return next(
        (ledger for ledger in reversed(ledgers_known) if not ledger.empty), ledgers_known[-1] if ledgers_known else None
    )


def enter_training(parameters: Iterable[nn.Parameter], ledger: Ledger) -> list[list[Ledger]]:
    """Enters in the process's history that a run on these parameters writes in this ledger, from the moment that the
    run is made.

    Two runs that are made on one model before either has drawn a lot would otherwise not know of each other.

    Returns the lists of all ledgers that each parameter is trained under, which grow as more runs are made.
    """
    for p in parameters:
        key = id(p)
        known = _of_parameter.get(key)
        if known is None or known[0]() is not p:
            known = _of_parameter[key] = weakref.ref(p, _remove_when_gone(_of_parameter, key)), []
        if not any(each is ledger for each in known[1]):
            known[1].append(ledger)
    return _ledgers_of_parameters(parameters)


def _ledgers_of_parameters(parameters: Iterable[nn.Parameter]) -> list[list[Ledger]]:
    """Returns the lists of ledgers that the process's history has for those parameters that are known."""
    ledger_lists = []
    for p in parameters:
        known = _of_parameter.get(id(p))
        if known is not None and known[0]() is p:
            ledger_lists.append(known[1])
    return ledger_lists


def enter_use_of_data(dataset: Any, ledger: Ledger) -> list[list[Ledger]]:
    """Enters in the process's history that the records of this dataset are used under this ledger.

    Returns the ledgers of each thing that the dataset is made of.

    Not the things themselves: a ledger that held its data would keep it in memory as long as the process lives.
    """
    ledger_lists = [_entry_of_part(part)[1] for part in _parts_of_dataset(dataset)]
    for ledgers in ledger_lists:
        if not any(known is ledger for known in ledgers):
            ledgers.append(ledger)
    return ledger_lists


def count_other_ledgers(ledger_lists: Iterable[list[Ledger]], ledger: Ledger) -> int:
    """Returns how many other ledgers, by the process's history, hold something done to these records."""
    other_ledgers: dict[int, Ledger] = {}
    for ledgers in ledger_lists:
        for known in ledgers:
            if known is not ledger and not known.empty:
                other_ledgers[id(known)] = known
    return len(other_ledgers)


def _parts_of_dataset(dataset: Any) -> list[Any]:
    """Returns the tensors or files that a dataset is made of, by which the history knows it: wrappers come and go,
    these stay.
    """
    if type(dataset) is TensorDataset:
        return list(dataset.tensors[:1])
    columns = getattr(dataset, "columns", None)
    if isinstance(columns, dict) and columns:  # a mapping of columns, which is wrapped anew by every call of `draws`
        return [next(iter(columns.values()))]
    if isinstance(dataset, Subset):
        return _parts_of_dataset(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return [part for inner in dataset.datasets for part in _parts_of_dataset(inner)]
    return [dataset]


def _entry_of_part(part: Any) -> tuple[Any, list[Ledger]]:
    """Returns the history's entry of one part of a dataset, which is made if there is none.

    The part is held weakly where it allows that, so that the table keeps no data alive.
    """
    key = _key_of_part(part)
    known = _of_data.get(key)
    if known is None or (isinstance(known[0], weakref.ref) and known[0]() is None):
        try:
            reference: Any = weakref.ref(part, _remove_when_gone(_of_data, key))
        except TypeError:  # a plain list
            reference = part
        known = _of_data[key] = reference, []
    return known


def _remove_when_gone(table: dict[int, Any], key: int) -> Callable[[Any], None]:
    """Returns a callback that removes an entry of the history when its object is gone.

    The table is bound here, because modules may be gone before.
    """
    return lambda _: table.pop(key, None) and None


def _key_of_part(part: Any) -> int:
    """Returns the key of a part; views of one memory are one thing."""
    return part.untyped_storage()._cdata if isinstance(part, Tensor) else id(part)

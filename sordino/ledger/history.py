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
    """Returns the ledger that a run on one of these parameters writes in, or None if there was no run on them.

    Of several, one in which something was entered comes first, and of those the last.
    """
    found = [ledger for ledgers in _known_of(parameters) for ledger in ledgers]
    return next((ledger for ledger in reversed(found) if not ledger.empty), found[-1] if found else None)


def trained(parameters: Iterable[nn.Parameter], ledger: Ledger) -> list[list[Ledger]]:
    """Enters that a run on these parameters writes in this ledger, from the moment that the run is made.

    Two runs that are made on one model before either has drawn a lot would otherwise not know of each other.

    Returns the lists of all ledgers that each parameter is trained under, which grow as more runs are made.
    """
    for p in parameters:
        key = id(p)
        known = _of_parameter.get(key)
        if known is None or known[0]() is not p:
            known = _of_parameter[key] = weakref.ref(p, _dropping(_of_parameter, key)), []
        if not any(each is ledger for each in known[1]):
            known[1].append(ledger)
    return _known_of(parameters)


def _known_of(parameters: Iterable[nn.Parameter]) -> list[list[Ledger]]:
    """Returns the lists of ledgers of those parameters that are known."""
    found = []
    for p in parameters:
        known = _of_parameter.get(id(p))
        if known is not None and known[0]() is p:
            found.append(known[1])
    return found


def drawn_from(dataset: Any, ledger: Ledger) -> list[list[Ledger]]:
    """Enters that the records of this dataset are used under this ledger.

    Returns the ledgers of each thing that the dataset is made of.

    Not the things themselves: a ledger that held its data would keep it in memory as long as the process lives.
    """
    found = [_entry(part)[1] for part in _parts(dataset)]
    for ledgers in found:
        if not any(known is ledger for known in ledgers):
            ledgers.append(ledger)
    return found


def others(of_data: Iterable[list[Ledger]], ledger: Ledger) -> int:
    """Returns how many other ledgers hold something done to these records."""
    found: dict[int, Ledger] = {}
    for ledgers in of_data:
        for known in ledgers:
            if known is not ledger and not known.empty:
                found[id(known)] = known
    return len(found)


def _parts(dataset: Any) -> list[Any]:
    """Returns the tensors or files that a dataset is made of: wrappers come and go, these stay."""
    if type(dataset) is TensorDataset:
        return list(dataset.tensors[:1])
    if isinstance(dataset, Subset):
        return _parts(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return [part for inner in dataset.datasets for part in _parts(inner)]
    return [dataset]


def _entry(part: Any) -> tuple[Any, list[Ledger]]:
    """Returns the entry of one part of a dataset, which is made if there is none.

    The part is held weakly where it allows that, so that the table keeps no data alive.
    """
    key = _key(part)
    known = _of_data.get(key)
    if known is None or (isinstance(known[0], weakref.ref) and known[0]() is None):
        try:
            held: Any = weakref.ref(part, _dropping(_of_data, key))
        except TypeError:  # a plain list
            held = part
        known = _of_data[key] = held, []
    return known


def _dropping(table: dict[int, Any], key: int) -> Callable[[Any], None]:
    """Returns a callback that removes an entry when its object is gone.

    The table is bound here, because modules may be gone before.
    """
    return lambda _: table.pop(key, None) and None


def _key(part: Any) -> int:
    """Returns the key of a part; views of one memory are one thing."""
    return part.untyped_storage()._cdata if isinstance(part, Tensor) else id(part)

"""Dataset view: a copy of a dataset in which all rows but a few are exchanged.

It shows whether a record is read from its own row alone.

`dataset[i]` may read more than row i: a partner for mixup, the mean of a column, the neighbours in a graph. Reading a
record twice with the same seed does not show it, because the partner is the same both times. So the record is read once
more from a view in which every other row holds the values of some other record. If the record changes, it was made of
other records too.

The view is built by walking over what the dataset object holds: attributes, nested datasets, lists and dicts, closures
of transforms, module globals that its methods use. Whatever has one entry per record is replaced by a copy with
exchanged rows; the rest is shared with the original. Large arrays are not copied: they are wrapped, and rows are looked
up when they are asked for.

Privacy: a view holds records of the dataset and nothing else, lives as long as one test, and nothing of it is reported.
"""

from __future__ import annotations

import copy
import functools
import operator
import random
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Subset

Rows = NDArray[np.int64]

COPIED_BYTES = 16 * 2**20
"""Arrays up to this size are copied with their rows exchanged; larger ones are wrapped."""
MATERIALISED_BYTES = 256 * 2**20
"""The most that a wrapped array copies when a dataset asks for all of it at once."""
_MOST_OBJECTS = 4000
"""Objects that a walk visits at most."""
_FEW_ENTRIES = 64
"""Lists and dicts with another number of entries than records are walked into if they have no more than this."""
_DEEPEST = 12
_SOURCES = 5
"""All exchanged rows hold the values of so few other rows that means, extremes, ranks and counts move as well."""
_FOREIGN = ("builtins", "torch", "numpy", "collections", "typing", "abc", "datasets", "pandas", "pyarrow", "sordino")
"""Packages whose classes and functions hold none of a user's data in their globals."""


class CannotExchange(Exception):
    """A dataset asked for more of an exchanged array than may be copied."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """Which rows of `length` rows are kept, and whose values every other row holds."""

    source: Rows
    kept: frozenset[int] | range

    @property
    def length(self) -> int:
        """The number of rows."""
        return len(self.source)

    @staticmethod
    def all_but(length: int, kept_rows: Iterable[int], choose: np.random.Generator) -> Exchange:
        """Returns an exchange for a dataset view that replaces all rows but those in `kept_rows`; the values come from
        a few rows chosen at random.
        """
        kept = frozenset(i for i in kept_rows if 0 <= i < length)
        others = choose.permutation(length)[: _SOURCES + len(kept)]
        source_rows = [int(i) for i in others if int(i) not in kept][: max(1, min(_SOURCES, length // 4))] or [0]
        source = np.asarray(source_rows, dtype=np.int64)[choose.integers(len(source_rows), size=length)]
        source[source_rows] = np.roll(source_rows, 1)  # no row holds its own values
        for i in kept:
            source[i] = i
        return Exchange(source, kept)

    @staticmethod
    def keeping_all(length: int) -> Exchange:
        """Returns an exchange that keeps every row."""
        return Exchange(np.arange(length, dtype=np.int64), range(length))

    @staticmethod
    def only_row(length: int, row: int, choose: np.random.Generator) -> Exchange:
        """Returns an exchange for a dataset view that replaces a single row and keeps all others."""
        source = np.arange(length, dtype=np.int64)
        source[row] = (row + 1 + int(choose.integers(length - 1))) % length
        return Exchange(source, frozenset(range(length)) - {row})


@dataclass(eq=False)
class DatasetWalk:
    """Copies a dataset; the copy shares the data, or holds them with rows exchanged.

    Args:
        choose: chooses whose values an exchanged row holds.
        exchanging: False for a plain copy, which reads as the original does and leaves the original untouched.
        only: the id of the one container to exchange; None for all of them.
        kept_rows_of: for the ids of nested datasets, the rows of theirs that the records are made of.
        pointers: containers found on an earlier walk that hold places in other containers, such as the indices of a split.
        alone: if given, the containers and datasets with these ids are exchanged in this way, and no others.
        instead: for the ids of containers, the exchange to use in place of the dataset's.
        containers: filled with what has one entry per record, by id.
        readers: filled with the dataset and the datasets in it, by id.
        reads: filled with the rows that were read of each of those.

    """

    choose: np.random.Generator
    exchanging: bool = True
    only: int | None = None
    kept_rows_of: Mapping[int, frozenset[int]] = field(default_factory=dict)
    pointers: Sequence[Rows] = ()
    alone: Mapping[int, Exchange] | None = None
    instead: Mapping[int, Exchange] = field(default_factory=dict)
    containers: dict[int, Any] = field(default_factory=dict)
    readers: dict[int, Any] = field(default_factory=dict)
    exchange_of: dict[int, Exchange] = field(default_factory=dict)
    indices: list[Rows] = field(default_factory=list)  # containers of distinct numbers, which point at rows
    reads: dict[int, set[int]] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)  # of the nested datasets, by id
    sized: dict[int, int] = field(default_factory=dict)  # the lengths of containers, whatever they are, by id
    repeated_indices: list[Rows] = field(default_factory=list)  # whole numbers, one per record, some of them equal
    _pointed: dict[tuple[int, int, int], Exchange] = field(default_factory=dict)
    _memo: dict[tuple[int, int], Any] = field(default_factory=dict)
    _alive: list[Any] = field(default_factory=list)
    _visited: int = 0

    def copy_dataset(self, dataset: Any, exchange: Exchange) -> Any:
        """Returns the copy of a dataset; the rows in `exchange.kept` read as they do in the original."""
        self._alive.append(exchange)
        return self._walk(dataset, exchange, 0, top=True)

    def copy_function(self, given: Callable[..., Any] | None, exchange: Exchange) -> Callable[..., Any] | None:
        """Returns the copy of a function, such as collate, with what it captured exchanged."""
        return None if given is None else self._walk(given, exchange, 0)

    def _walk(self, thing: Any, exchange: Exchange, depth: int, *, top: bool = False) -> Any:
        """Returns the copy of `thing` for the view of the dataset, or `thing` itself if nothing in it had to be copied.
        Every object is copied once per exchange of rows.
        """
        # Numbers, texts, classes and models hold no rows of the dataset.
        if thing is None or isinstance(
            thing, int | float | complex | str | bytes | type | types.ModuleType | nn.Module
        ):
            return thing
        # The memo ends circles and keeps shared objects shared. Its key has the exchange too, because one container may
        # be seen with different rows.
        key = (id(thing), id(exchange))
        if key in self._memo:
            return self._memo[key]
        self._visited += 1
        # Very deep or very large structures are left as they are: the view then exchanges less and the check sees less.
        if depth > _DEEPEST or self._visited > _MOST_OBJECTS:
            return thing
        # The object stands for itself until its copy is made, so that a circle ends here.
        self._memo[key] = thing
        self._alive.append((thing, exchange))  # an id is good as long as its object lives
        made = self._copy_by_kind(thing, exchange, depth, top=top)
        self._memo[key] = made
        return made

    def _copy_by_kind(self, thing: Any, exchange: Exchange, depth: int, *, top: bool) -> Any:
        # A copied generator draws what the original would have drawn, which is left untouched.
        """Returns the copy of one object of a dataset by its kind (container, function, table, object), for the view
        with exchanged rows; the object itself where it holds no rows.
        """
        generator = _copy_generator(thing)
        if generator is not None:
            return generator
        if _is_hugging_face(thing):
            return self._copy_hugging_face(thing, exchange, depth)
        # What has one entry per record gets its rows exchanged.
        matching = None if top else self._find_exchange(thing, exchange)
        if matching is not None:
            return self._exchange_rows(thing, matching)
        # Any other container, function or object is walked, because it may hold such a container.
        if isinstance(thing, dict):
            return self._copy_dict(thing, exchange, depth)
        if isinstance(thing, list | tuple):
            return self._copy_sequence(thing, exchange, depth)
        if isinstance(thing, set):
            return set(thing)
        if isinstance(thing, types.FunctionType):
            return self._copy_code(thing, exchange, depth)
        if isinstance(thing, types.MethodType):
            whose = self._walk(thing.__self__, exchange, depth + 1)
            return thing if whose is thing.__self__ else getattr(whose, thing.__name__, thing)
        if isinstance(thing, functools.partial):
            parts = (thing.func, thing.args, thing.keywords)
            new = [self._walk(part, exchange, depth + 1) for part in parts]
            return thing if all(map(operator.is_, parts, new)) else functools.partial(new[0], *new[1], **new[2])
        if getattr(thing, "__dict__", None) is not None:
            return self._copy_object(thing, exchange, depth, top=top)
        return thing

    # Containers with one entry per record

    def _find_exchange(self, thing: Any, exchange: Exchange) -> Exchange | None:
        """Returns the exchange of rows for a container inside a dataset: the dataset's own, or that of the rows which a
        list of row numbers points at.
        """
        length = _length_of(thing)
        if length is not None and self.alone is None and _has_rows(thing, length) and _as_whole_numbers(thing) is None:
            self.sized[id(thing)] = length  # labels and places are not what a record is made of
        if self.alone is not None:
            return self.alone.get(id(thing))
        if _has_rows(thing, exchange.length):
            return exchange
        # A split keeps places in a larger container; the rows it points at are kept.
        for places in self.pointers if length is not None and _has_rows(thing, length) else ():
            if length is None or len(places) != exchange.length:
                continue
            # The places of a split come close to the end of what they point at; a table of something else is longer.
            if not length - 1 - 10 * length / len(places) <= int(places.max()) < length:
                continue
            # Places in order may be offsets, where a record is all that lies between two of them.
            if (length > 2 * len(places) or getattr(thing, "ndim", 2) == 1) and bool((np.diff(places) > 0).all()):
                continue
            key = (id(places), id(exchange), length)
            if key not in self._pointed:
                self._pointed[key] = self._make_exchange(length, [int(places[i]) for i in exchange.kept])
            return self._pointed[key]
        return None

    def _note_container(self, thing: Any, exchange: Exchange) -> Exchange | None:
        """Notes a container of rows met on the walk through a dataset and returns its exchange; None if the view leaves
        the container as it is.
        """
        exchange = self.instead.get(id(thing), exchange)
        self.containers[id(thing)], self.exchange_of[id(thing)] = thing, exchange
        return exchange if self.exchanging and self.only in (None, id(thing)) else None

    def _exchange_rows(self, container: Any, exchange: Exchange) -> Any:
        """Returns a container of the dataset with its rows exchanged for the view, or itself where its rows are
        pointers to other rows.
        """
        numbers = _as_whole_numbers(container)
        if numbers is not None and len(np.unique(numbers)) == len(numbers):
            self.indices.append(numbers)
            return container
        if numbers is not None:
            self.repeated_indices.append(numbers)
        chosen = self._note_container(container, exchange)
        return container if chosen is None else take_rows(container, chosen.source)

    def _copy_dict(self, given: dict[Any, Any], exchange: Exchange, depth: int) -> Any:
        """Returns the dataset view's copy of a dict; a dict from record numbers to records has its values exchanged."""
        if len(given) == exchange.length and all(i in given for i in range(exchange.length)):
            values = list(given.values())
            if not all(isinstance(value, int) for value in values):
                chosen = self._note_container(given, exchange)
                if chosen is not None:
                    return type(given)((i, given[int(j)]) for i, j in enumerate(chosen.source))
        if len(given) > _FEW_ENTRIES or type(given) is not dict:
            return copy.copy(given)
        return {name: self._walk(value, exchange, depth + 1) for name, value in given.items()}

    def _copy_sequence(self, given: list[Any] | tuple[Any, ...], exchange: Exchange, depth: int) -> Any:
        """Returns the dataset view's copy of a list or tuple that has not one entry per record: its entries are walked
        one by one.
        """
        if len(given) > _FEW_ENTRIES:
            return given[:] if type(given) is list else given
        new = [self._walk(each, exchange, depth + 1) for each in given]
        if type(given) is list:
            return new
        if all(map(operator.is_, given, new)):
            return given
        return given._make(new) if hasattr(given, "_make") else tuple(new)

    # Code

    def _copy_code(self, given: types.FunctionType, exchange: Exchange, depth: int) -> types.FunctionType:
        """Returns the dataset view's copy of a function, such as a transform, with its closure, its defaults and the
        globals that it reads walked for rows.
        """
        if (given.__module__ or "").split(".")[0] in _FOREIGN:
            return given
        # What the function captured, what it defaults to, and the globals that it reads.
        cells, changed = [], False
        for cell in given.__closure__ or ():
            try:
                held = cell.cell_contents
            except ValueError:  # not filled yet
                cells.append(cell)
                continue
            new = self._walk(held, exchange, depth + 1)
            cells.append(cell if new is held else types.CellType(new))
            changed = changed or new is not held
        defaults = self._walk(given.__defaults__, exchange, depth + 1)
        named = self._walk(given.__kwdefaults__, exchange, depth + 1)
        read = {name: given.__globals__[name] for name in _global_names(given.__code__) if name in given.__globals__}
        other = {name: new for name, held in read.items() if (new := self._walk(held, exchange, depth + 1)) is not held}
        # A new function is made only where something in it was exchanged.
        if not changed and not other and defaults is given.__defaults__ and not given.__kwdefaults__:
            return given
        spaces = {**given.__globals__, **other} if other else given.__globals__
        made = types.FunctionType(given.__code__, spaces, given.__name__, defaults, tuple(cells) or None)
        made.__kwdefaults__ = named
        made.__dict__.update(given.__dict__)
        return made

    # Objects

    def _copy_hugging_face(self, thing: Any, exchange: Exchange, depth: int) -> Any:
        """Returns the dataset view's copy of a table of the Hugging Face `datasets` library: its rows are exchanged by
        an index, and its transform is walked.
        """
        made = thing
        # Rows are exchanged by an index over the same table, without a copy of the data.
        matching = self._find_exchange(thing, exchange)
        if matching is not None:
            chosen = self._note_container(thing, matching)
            if chosen is not None:
                made = thing.select(chosen.source.tolist(), keep_in_memory=True)
        # A transform may hold other records, so it is walked like any function.
        kept = getattr(thing, "_format_kwargs", None)
        walked = self._walk(kept, exchange, depth + 1) if isinstance(kept, dict) else kept
        if made is thing:
            made = copy.copy(thing)
        made._format_kwargs = walked
        return made

    def _copy_object(self, thing: Any, exchange: Exchange, depth: int, *, top: bool) -> Any:
        """Returns the dataset view's shallow copy of an object with its attributes walked; nested datasets have rows of
        their own.
        """
        # Objects of other libraries hold no records of the user, unless they are datasets.
        if (type(thing).__module__ or "").split(".")[0] in _FOREIGN and not isinstance(thing, Dataset):
            return thing
        # A nested dataset has rows of its own, which must be exchanged by their own numbers.
        length = exchange.length if top else _length_of(thing)
        nested = length is not None and not top and _reads_by_index(type(thing))
        if nested and length is not None:
            self.lengths[id(thing)] = length
            if self.alone is not None:
                exchange = self.alone.get(id(thing), Exchange.keeping_all(length))
                self._alive.append(exchange)
            elif id(thing) in self.kept_rows_of:
                exchange = self._make_exchange(length, self.kept_rows_of[id(thing)])
            elif length != exchange.length:
                exchange = Exchange.keeping_all(length)  # whose rows they are is not known: all are kept
                self._alive.append(exchange)
        # Attributes are walked one by one; members of the class where they hold records or read them.
        try:
            made = copy.copy(thing)
            if made is thing:
                return thing
            self._memo[id(thing), id(exchange)] = made
            for name, value in list(vars(thing).items()):
                inner = self._copy_wrapped(thing, name, value, exchange)
                new = inner if inner is not None else self._walk(value, exchange, depth + 1)
                if new is not value:
                    object.__setattr__(made, name, new)
            space = self._copy_class_members(type(thing), exchange, depth)
            if (nested or (top and self.alone is None)) and length is not None:
                space["__getitem__"] = self._make_reader(thing, exchange, space)
            if space:
                made.__class__ = type(type(thing).__name__, (type(thing),), space)
        except Exception:  # a stranger's class may forbid any of it
            return thing
        return made

    def _copy_wrapped(self, thing: Any, name: str, value: Any, exchange: Exchange) -> Any:
        """Returns the dataset view's copy of what one of torch's own dataset wrappers (Subset, ConcatDataset) wraps,
        walked with the rows that its records are made of; else None.
        """
        # Only torch's own wrappers are opened, because it is known how their records follow from those inside.
        kept_rows = sorted(exchange.kept)
        if isinstance(thing, Subset) and name == "dataset":
            rows = [int(thing.indices[i]) for i in kept_rows]
            return self._copy_nested(value, rows)
        if isinstance(thing, Subset) and name == "indices":
            return value
        if isinstance(thing, ConcatDataset) and name == "datasets":
            parts, begin = [], 0
            for part, end in zip(value, thing.cumulative_sizes, strict=True):
                parts.append(self._copy_nested(part, [i - begin for i in kept_rows if begin <= i < end]))
                begin = end
            return parts
        return None

    def _copy_nested(self, dataset: Any, rows: Sequence[int]) -> Any:
        """Returns the view of a dataset nested in another, walked with an exchange of its own, which keeps the given
        rows.
        """
        length = _length_of(dataset)
        if length is None:
            return dataset
        kept_rows = frozenset(i + length if i < 0 else i for i in rows)
        if _has_rows(dataset, length) or _is_hugging_face(dataset):
            return self._walk(dataset, self._make_exchange(length, kept_rows), 0)
        self.kept_rows_of = {**self.kept_rows_of, id(dataset): kept_rows}
        return self._walk(dataset, self._make_exchange(length, kept_rows), 0)

    def _make_exchange(self, length: int, kept_rows: Iterable[int]) -> Exchange:
        made = Exchange.all_but(length, kept_rows, self.choose)
        self._alive.append(made)
        return made

    def _copy_class_members(self, kind: type, exchange: Exchange, depth: int) -> dict[str, Any]:
        """Returns the dataset view's copies of those members of a dataset's class that hold records or read them from
        globals.
        """
        space: dict[str, Any] = {}
        seen: set[str] = set()
        # Members of libraries hold none of a user's data.
        for each in kind.__mro__:
            if each.__module__.split(".")[0] in _FOREIGN:
                continue
            for name, member in vars(each).items():
                if name in seen or name in ("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__"):
                    continue
                seen.add(name)
                # Methods, properties and static methods may read records from globals or closures.
                if isinstance(member, property) and isinstance(member.fget, types.FunctionType):
                    new: Any = self._copy_code(member.fget, exchange, depth + 1)
                    if new is not member.fget:
                        space[name] = property(new)
                elif isinstance(member, staticmethod):
                    new = self._walk(member.__func__, exchange, depth + 1)
                    if new is not member.__func__:
                        space[name] = staticmethod(new)
                elif isinstance(member, types.FunctionType) or not callable(member):
                    new = self._walk(member, exchange, depth + 1)
                    if new is not member:
                        space[name] = new
        return space

    def _make_reader(self, original: Any, exchange: Exchange, space: Mapping[str, Any]) -> Callable[[Any, Any], Any]:
        """Returns a `__getitem__` for the dataset view that notes the rows read, and reads another record in place of
        each exchanged one.
        """
        # The read of the view's class where its code was copied, and the original one otherwise.
        read = space.get("__getitem__", type(original).__getitem__)
        noted = self.reads.setdefault(id(original), set())
        # A test of one container alone exchanges only that one.
        exchange = self.instead.get(id(original), exchange)
        self.readers[id(original)], self.exchange_of[id(original)] = original, exchange
        exchanging = self.exchanging and self.only in (None, id(original))

        def read_row(self: Any, index: Any) -> Any:
            """Reads one row of the dataset view, or the record that stands in for an exchanged row, and notes which row
            was asked for.
            """
            try:
                row = operator.index(index)
            except TypeError:
                return read(self, index)
            row = row + exchange.length if row < 0 else row
            noted.add(row)
            if not exchanging or not 0 <= row < exchange.length or row in exchange.kept:
                return read(self, index)
            return original[int(exchange.source[row])]

        return read_row


# Rows of containers


def _has_rows(thing: Any, length: int) -> bool:
    """Returns whether an object that the dataset view walks is a container of data with one row per record."""
    # A stranger's container may raise anything when it is asked for its length.
    try:
        # One row per record is recognised by the length of the first dimension.
        if isinstance(thing, Tensor):
            return thing.dim() > 0 and len(thing) == length and not thing.is_nested
        if isinstance(thing, np.ndarray):
            return thing.ndim > 0 and len(thing) == length
        if type(thing) in (list, tuple):
            return len(thing) == length
        # Tables of other libraries are known by their package, so that none of them has to be imported.
        package = type(thing).__module__.split(".")[0]
        if package in ("pandas", "polars", "pyarrow"):
            return hasattr(thing, "__len__") and len(thing) == length
        if package == "datasets":
            return _is_hugging_face(thing) and len(thing) == length
        if package == "scipy":
            return hasattr(thing, "tocsr") and thing.shape[0] == length
    except Exception:
        return False
    return False


def take_rows(container: Any, source: Rows) -> Any:
    """Returns a container for the dataset view whose row j is the given container's row `source[j]`; large arrays are
    wrapped and read on demand.
    """
    # A large array is not copied: rows are looked up when they are read.
    if isinstance(container, Tensor | np.ndarray):
        size = container.nbytes
        if size > COPIED_BYTES:
            return _RowsOnDemand(container, source)
        return (
            container[torch.from_numpy(source).to(container.device)]
            if isinstance(container, Tensor)
            else container[source]
        )
    if isinstance(container, list | tuple):
        return type(container)([container[j] for j in source.tolist()])
    # A table keeps its own index, because code may look rows up by its labels.
    if hasattr(container, "iloc"):
        return container.iloc[source].set_axis(container.index)
    if hasattr(container, "take") and type(container).__module__.startswith("pyarrow"):
        return container.take(source)
    return container.tocsr()[source] if hasattr(container, "tocsr") else container[source]


class _RowsOnDemand:
    """An array with exchanged rows that is too large to copy: rows are looked up when they are indexed."""

    def __init__(self, base: Any, source: Rows) -> None:
        self._base, self._source, self._all = base, source, None
        self.shape, self.dtype, self.ndim = base.shape, base.dtype, base.ndim

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, key: Any) -> Any:
        """Returns the rows that the key selects, looked up in the original array."""
        first, other_keys = (key[0], key[1:]) if isinstance(key, tuple) and key else (key, ())
        # A mask or a new axis needs all rows; any other key only those that it names.
        if first is None or first is Ellipsis or getattr(first, "dtype", None) in (torch.bool, np.dtype(bool)):
            return self._materialise()[key]
        rows = self._source[np.asarray(first) if isinstance(first, Tensor | list) else first]
        if np.ndim(rows) == 0:
            entry = self._base[int(rows)]
            return entry[other_keys] if other_keys else entry
        self._check_size(len(rows))
        taken = self._base[torch.from_numpy(np.asarray(rows))] if isinstance(self._base, Tensor) else self._base[rows]
        return taken[(slice(None), *other_keys)] if other_keys else taken

    def _check_size(self, rows: int) -> None:
        if rows * (self._base.nbytes // max(1, len(self._source))) > MATERIALISED_BYTES:
            raise CannotExchange

    def _materialise(self) -> Any:
        """Returns all exchanged rows of a large array of the dataset view, copied at the first call."""
        if self._all is None:
            self._check_size(len(self._source))
            rows = torch.from_numpy(self._source) if isinstance(self._base, Tensor) else self._source
            self._all = self._base[rows]
        return self._all

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__array_interface__",):
            raise AttributeError(name)
        return getattr(self._materialise(), name)

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return np.asarray(self._materialise(), dtype=dtype)

    def __iter__(self) -> Any:
        return (self[j] for j in range(len(self)))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls a function of torch with all rows in place of this object."""

        def materialise(each: Any) -> Any:
            if isinstance(each, _RowsOnDemand):
                return each._materialise()
            return type(each)(map(materialise, each)) if type(each) in (list, tuple) else each

        return func(*map(materialise, args), **{name: materialise(each) for name, each in (kwargs or {}).items()})


def _delegate(name: str) -> None:
    """Adds an operator to the wrapper of large arrays in a dataset view, which computes with all exchanged rows."""

    def method(self: _RowsOnDemand, *args: Any) -> Any:
        return getattr(self._materialise(), name)(*args)

    setattr(_RowsOnDemand, name, method)


for _name in ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"]:
    _delegate(f"__{_name}__")
    _delegate(f"__r{_name}__")
for _name in ["neg", "abs", "invert", "lt", "le", "gt", "ge", "eq", "ne"]:
    _delegate(f"__{_name}__")
_RowsOnDemand.__hash__ = object.__hash__  # type: ignore[method-assign]


def _as_whole_numbers(container: Any) -> Rows | None:
    """Returns the numbers of a container that the dataset view walks if they are whole and not negative, as row
    numbers, offsets or labels are; else None.
    """
    # A column of whole numbers may be a list of indices into another container.
    if (
        isinstance(container, Tensor)
        and container.dim() == 1
        and not container.is_floating_point()
        and container.is_cpu
    ):
        values = container.numpy()
    elif isinstance(container, np.ndarray) and container.ndim == 1:
        values = container
    elif isinstance(container, list | tuple) and container and all(type(container[k]) is int for k in (0, -1)):
        try:
            values = np.asarray(container)
        except (ValueError, OverflowError):
            return None
    else:
        return None
    # Anything that is not a plain column of counts points at no rows.
    if values.ndim != 1 or values.dtype.kind not in "iu" or len(values) < 2 or values.min() < 0:
        return None
    return values.astype(np.int64)


def whole_numbers_at(container: Any, row: int) -> list[int]:
    """Returns the whole numbers in one entry of a container, each of which may point at a row of another container of
    the dataset view.
    """
    # A row that cannot be read points nowhere.
    try:
        entry = container.iloc[row].tolist() if hasattr(container, "iloc") else container[row]
    except Exception:
        return []
    if isinstance(entry, Mapping):
        entry = list(entry.values())
    entries = entry if isinstance(entry, list | tuple) else [entry]
    # Whatever Python accepts as an index may be one.
    numbers = []
    for each in entries:
        try:
            numbers.append(operator.index(each))
        except (TypeError, RuntimeError):
            continue
    return numbers


def _copy_generator(thing: Any) -> Any:
    """Returns a copy, for the dataset view, of a random generator that draws what the original would draw next; None
    for anything else.
    """
    if isinstance(thing, torch.Generator):
        made = torch.Generator(thing.device)
        made.set_state(thing.get_state())
        return made
    if isinstance(thing, np.random.Generator | np.random.RandomState | random.Random):
        return copy.deepcopy(thing)
    return None


def _global_names(code: types.CodeType) -> set[str]:
    """Returns the names that a function, and functions defined in it, look up globally."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_global_names, inner))


def _is_hugging_face(thing: Any) -> bool:
    return type(thing).__module__.startswith("datasets.") and hasattr(thing, "select") and hasattr(thing, "features")


def _reads_by_index(kind: type) -> bool:
    return hasattr(kind, "__len__") and hasattr(kind, "__getitem__") and not issubclass(kind, Mapping)


def _length_of(thing: Any) -> int | None:
    """Returns the length of an object that the dataset view walks, or None if it has none."""
    try:
        return len(thing)
    except Exception:
        return None


# Comparing what was read


def is_same_record(one: Any, other: Any, depth: int = 0) -> bool:
    """Returns whether a record reads the same from a dataset and from its view. What cannot be compared counts as
    equal.
    """
    # Very deep structures are not compared to the end; unequal ones differ before that, as a rule.
    if one is other or depth > 6:
        return True
    # Numbers may differ by rounding, because another order of operations computes them.
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if one.is_sparse or one.is_nested:
            return True
        if not (one.is_floating_point() or one.is_complex()):
            return torch.equal(one, other)
        return torch.allclose(
            one,
            other,
            rtol=1e-5,
            atol=1e-6 * float(one.nan_to_num().abs().max()) if one.numel() else 0.0,
            equal_nan=True,
        )
    # The same for numpy: the tolerance is relative to the largest value.
    if isinstance(one, np.ndarray | np.generic) and isinstance(other, np.ndarray | np.generic):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if one.dtype.kind == "f":
            size = float(np.abs(np.nan_to_num(one)).max()) if one.size else 0.0
            return bool(np.allclose(one, other, rtol=1e-5, atol=1e-6 * size, equal_nan=True))
        return bool(np.array_equal(one, other))
    # Plain values must be equal.
    if isinstance(one, bool | int | str | bytes) or one is None:
        return type(one) is type(other) and bool(one == other)
    if isinstance(one, float):
        return isinstance(other, float) and (
            abs(one - other) <= 1e-5 * max(abs(one), abs(other)) or (one != one and other != other)
        )
    # Containers and objects: part by part.
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_same_record(one[k], other[k], depth + 1) for k in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(is_same_record(a, b, depth + 1) for a, b in zip(one, other, strict=True))
    if type(one) is type(other) and hasattr(one, "__array_interface__"):  # a picture
        return is_same_record(np.asarray(one), np.asarray(other), depth + 1)
    if type(one).__name__ == type(other).__name__ and getattr(one, "__dict__", None):
        return is_same_record(vars(one), vars(other), depth + 1)
    return True


def reading_distance(one: Any, other: Any, depth: int = 0) -> float:
    """Returns by how much two readings of a record from views of a dataset differ: the sum over numbers, and 1 for
    anything else that differs.
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        return sum(reading_distance(one[k], other[k], depth + 1) for k in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other) and depth < 6:
        return sum(reading_distance(a, b, depth + 1) for a, b in zip(one, other, strict=True))
    try:
        a, b = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
        return float(np.nan_to_num(np.abs(a - b)).sum())
    except (TypeError, ValueError, RuntimeError):
        return 0.0 if is_same_record(one, other, depth) else 1.0

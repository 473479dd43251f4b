"""Alterations: makes records extreme, to see whether code is harmless for any neighbour.

Records are altered before they are collated: longer, shorter, with another label, with other tokens or other numbers.

A neighbouring dataset may hold a record that this one does not hold: the first positive, the longest text, the
brightest picture. Code can be harmless until that record comes. The test therefore alters one record of its batch as it
was read from the dataset, so that padding, scaling and counting in collate, model and loss all meet the altered one.

An altered record may be one that the user's code refuses. That is no finding: the code cannot train on such a record, so no
neighbouring dataset holds it. Which parts of an alteration were refused is remembered, and they are not tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Part = str
ALTERATIONS: tuple[tuple[Part, ...], ...] = (
    ("longer", "label", "large"),
    ("shorter", "label", "negative", "first token"),
    ("last token", "nan"),
    ("label", "infinite", "first token", "longer"),
)
"""What is changed together in one altered record. Each part is left out where the record has nothing that it applies to."""

TOGETHER = ((0, 1), (2, 3))
"""Alterations that two records of one batch can have at once without hiding one another. Values that are not finite are
apart from finite ones: code that looks for nan may do nothing else then."""

LENGTHS = frozenset({"longer", "shorter"})
"""Parts that change the shapes of a batch, and with them how much is drawn at random."""

_NUMBERS: dict[Part, Callable[[Any], Any]] = {
    "large": lambda x: 3 + 1e3 * x,
    "negative": lambda x: 3 - 7 * x,
    "nan": lambda x: x * float("nan"),
    "infinite": lambda x: x * 0 + float("inf"),
}


class Alterations:
    """Alters records like those it was given.

    Args:
        records: of one batch, as they were read from the dataset.
        safe: whether only values are used that lie between those seen. An index out of range, or a probability above 1,
            ends a process that computes on a GPU; elsewhere it is an error that can be caught.

    """

    def __init__(self, records: Sequence[Any], *, safe: bool, collated: bool = True) -> None:
        self._safe = safe
        self._leaves: dict[tuple[Any, ...], list[Any]] = {}
        for record in records:
            for path, leaf in _leaves_of(record):
                self._leaves.setdefault(path, []).append(leaf)
        self._kinds = {path: _common_kind(leaves) for path, leaves in self._leaves.items()}
        self._varying = self._find_sequences() if collated else set()
        self.applicable = frozenset(part for parts in ALTERATIONS for part in parts if self._applies(part))

    def _find_sequences(self) -> set[tuple[Any, ...]]:
        """Returns the places in a record that alterations can make longer or shorter: texts, tokens and lists of unlike
        length.
        """
        varying = {path for path, leaves in self._leaves.items() if len({_length_of(leaf) for leaf in leaves}) > 1}
        if varying:
            return varying
        return {
            path
            for path, leaves in self._leaves.items()
            if self._kinds[path] in ("tokens", "text") or (isinstance(leaves[0], list) and self._kinds[path] != "else")
        }

    def _applies(self, part: Part) -> bool:
        """Returns whether an alteration, such as a longer text or another label, can change something in records like
        those seen.
        """
        kinds = set(self._kinds.values())
        if part in LENGTHS:
            return bool(self._varying) and not (self._safe and part == "longer")
        if part == "label":
            return any(self._choose_other_label(path, leaves[0]) is not None for path, leaves in self._leaves.items())
        if part in _NUMBERS:
            return "numbers" in kinds or "pixels" in kinds
        return "tokens" in kinds

    def alter(self, record: Any, parts: Sequence[Part]) -> Any:
        """Returns a copy of the record with these parts changed; the record itself is left as it is."""
        own_lengths = {_length_of(leaf) for path, leaf in _leaves_of(record) if path in self._varying} - {None}
        return _rebuild(record, lambda path, leaf: self._alter_leaf(path, leaf, parts, own_lengths))

    def _alter_leaf(self, path: tuple[Any, ...], leaf: Any, parts: Sequence[Part], own_lengths: set[int | None]) -> Any:
        """Returns one value of a record with those alterations made that apply to it."""
        if path not in self._leaves:
            return leaf
        # Each alteration applies to some kinds of values only; others are left as they are.
        for part in parts:
            if part == "label":
                other = self._choose_other_label(path, leaf)
                leaf = leaf if other is None else _cast_like(leaf, other)
            elif part in _NUMBERS:
                leaf = self._change_numbers(path, leaf, part)
            elif part in ("first token", "last token") and self._kinds[path] == "tokens":
                leaf = _fill_leaf(leaf, self._value_range(path)[part == "last token"])
            elif part in LENGTHS and (path in self._varying or _length_of(leaf) in own_lengths):
                leaf = _resize(leaf, self._length_above_all(path) if part == "longer" else 1)
        return leaf

    def _length_above_all(self, path: tuple[Any, ...]) -> int:
        """Returns the length that an alteration gives a text or list: a little above all that were seen, enough to move
        a mean over padding, and cheap to compute.
        """
        varying = self._varying or {path}
        longest = max(_length_of(leaf) or 0 for each in varying for leaf in self._leaves[each])
        return longest + max(2, longest // 4)

    def _choose_other_label(self, path: tuple[Any, ...], leaf: Any) -> Any | None:
        """Returns the label that an alteration puts in place of a record's: another that was seen, or else the one next
        to it; None if there is none.
        """
        # Only labels have other classes that a neighbour might have.
        if self._kinds[path] not in ("label", "truths"):
            return None
        own_label = _to_array(leaf)
        # Truths, such as a multi-label target, are turned round.
        if self._kinds[path] == "truths":
            return ~own_label if own_label.dtype == np.bool_ else 1 - own_label
        # A label that was seen on another record is certainly one that the model knows.
        for other in self._leaves[path]:
            if not np.array_equal(_to_array(other), own_label):
                return other
        if own_label in (0, 1):
            return 1 - own_label
        # A class below the smallest one may be out of range, which an accelerator answers with an error that ends the
        # process.
        return None if self._safe else own_label - 1

    def _value_range(self, path: tuple[Any, ...]) -> tuple[Any, Any]:
        """Returns the least and the largest number seen at one place of the records, which alterations keep to."""
        values = [_to_array(leaf) for leaf in self._leaves[path]]
        values = [value for value in values if value.size]
        if not values:
            return 0, 0
        return min(value.min() for value in values), max(value.max() for value in values)

    def _change_numbers(self, path: tuple[Any, ...], leaf: Any, part: Part) -> Any:
        """Returns the numbers or pixels of a record made extreme as one alteration says: large, negative, infinite or
        nan.

        On a GPU, numbers that may be probabilities stay between 0 and 1, because others would end the process.
        """
        kind = self._kinds[path]
        if kind == "pixels":
            return _fill_leaf(leaf, 0 if part == "negative" else 255)
        if kind != "numbers":
            return leaf
        low, high = self._value_range(path)
        if self._safe and low >= 0 and high <= 1:  # these may be probabilities
            return _cast_like(leaf, (low + high) - _to_array(leaf))
        return _cast_like(leaf, _NUMBERS[part](_to_array(leaf)))


def _leaves_of(record: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    """Returns the values of a record with the path to each of them, for alterations of single values."""
    if isinstance(record, Mapping):
        return [found for key, value in record.items() for found in _leaves_of(value, (*path, key))]
    if isinstance(record, (tuple, list)) and not _is_sequence_of_numbers(record):
        return [found for k, value in enumerate(record) for found in _leaves_of(value, (*path, k))]
    return [(path, record)]


def _rebuild(record: Any, change: Callable[[tuple[Any, ...], Any], Any], path: tuple[Any, ...] = ()) -> Any:
    """Returns a record rebuilt with every value altered by `change`, in containers of the same kinds."""
    if isinstance(record, Mapping):
        return {key: _rebuild(value, change, (*path, key)) for key, value in record.items()}
    if isinstance(record, (tuple, list)) and not _is_sequence_of_numbers(record):
        values = [_rebuild(value, change, (*path, k)) for k, value in enumerate(record)]
        if isinstance(record, tuple) and hasattr(record, "_fields"):
            return type(record)(*values)
        return type(record)(values)
    return change(path, record)


def _is_sequence_of_numbers(record: Any) -> bool:
    return isinstance(record, list) and all(isinstance(value, (int, float)) for value in record)


def _kind_of(leaf: Any) -> str:
    """Returns which alterations a value of a record allows: numbers, truths, a label, tokens, pixels, text, or
    something else.
    """
    # Text and unknown objects cannot be altered by arithmetic.
    if isinstance(leaf, str):
        return "text"
    if not isinstance(leaf, (bool, int, float, list, Tensor, np.ndarray, np.generic)):
        return "else"
    plain = _to_array(leaf)
    if plain.dtype == np.bool_:
        return "truths"
    # Floats that are all 0 or 1 are truths, for example one-hot labels.
    if plain.dtype.kind == "f":
        # The first number says it nearly always; only where it is 0 or 1 the others are looked at.
        binary = plain.size > 0 and plain.flat[0] in (0.0, 1.0) and bool(((plain == 0.0) | (plain == 1.0)).all())
        return "truths" if binary else "numbers"
    if plain.dtype.kind not in "iu":
        return "else"
    # A single whole number is taken for a label, a row of them for tokens.
    if plain.ndim == 0:
        return "label"
    return "pixels" if plain.dtype == np.uint8 else "tokens"


def _common_kind(leaves: Sequence[Any]) -> str:
    """Returns what the values at one place are in all records; numbers that are 0 and 1 in some of them are numbers."""
    kinds = {_kind_of(leaf) for leaf in leaves}
    return kinds.pop() if len(kinds) == 1 else "numbers" if kinds == {"numbers", "truths"} else "else"


def _to_array(leaf: Any) -> np.ndarray[Any, Any]:
    """Returns a value of a record as a NumPy array, so that alterations can compute with it."""
    if isinstance(leaf, Tensor):
        leaf = leaf.detach().cpu()
        return np.asarray(leaf.float() if leaf.dtype == torch.bfloat16 else leaf)
    return np.asarray(leaf)


def _length_of(leaf: Any) -> int | None:
    """Returns the length that alterations change of a record's value: along its first axis, in words for a text; None
    for a single value.
    """
    if isinstance(leaf, str):
        return len(leaf.split())
    if isinstance(leaf, list):
        return len(leaf)
    if isinstance(leaf, (Tensor, np.ndarray)) and leaf.ndim > 0:
        return int(leaf.shape[0])
    return None


def _cast_like(leaf: Any, value: Any) -> Any:
    """Returns an altered value in the type that the record's own value has."""
    value = _to_array(value)
    if isinstance(leaf, Tensor):
        return torch.as_tensor(np.array(value)).to(leaf.dtype).to(leaf.device)
    if isinstance(leaf, (np.ndarray, np.generic)):
        return value.astype(leaf.dtype) if isinstance(leaf, np.ndarray) else leaf.dtype.type(value)
    if isinstance(leaf, list):
        return value.tolist()
    return type(leaf)(value.item())


def _fill_leaf(leaf: Any, value: Any) -> Any:
    """Returns a record's tokens or pixels altered so that all of them have the same value."""
    if isinstance(leaf, Tensor):
        return torch.full_like(leaf, int(value))
    if isinstance(leaf, np.ndarray):
        return np.full_like(leaf, value)
    return [type(one)(value) for one in leaf]


def _resize(leaf: Any, length: int) -> Any:
    """Returns a record's value altered in length: repeated or cut along its first axis."""
    now = _length_of(leaf)
    if not now:
        return leaf
    if isinstance(leaf, str):
        words = leaf.split()
        return " ".join(words[k % now] for k in range(length))
    if isinstance(leaf, list):
        return [leaf[k % now] for k in range(length)]
    return leaf[[k % now for k in range(length)]]

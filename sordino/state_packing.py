"""Packs state dictionaries as JSON and named tensors, without pickle, so reading never runs code.

Tensors go into a safetensors file under their path, such as `optimizer/state/0/momentum_buffer`; their place in the
JSON holds that name. Keys that are not text, tuples and tensors are marked, everything else is itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

_MARK = "@"
_TENSOR, _TUPLE, _PAIRS, _FLOAT = "@tensor", "@tuple", "@pairs", "@float"


def pack(tree: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Packs the tree of a state dictionary: returns it as JSON and adds its tensors to `tensors`.

    >>> import torch
    >>> found = {}
    >>> pack({"lr": 0.1, "state": {0: {"m": torch.zeros(2)}}}, "o", found)
    {'lr': 0.1, 'state': {'@pairs': [[0, {'m': {'@tensor': 'o/state/0/m'}}]]}}
    >>> list(found)
    ['o/state/0/m']
    """
    if isinstance(tree, Tensor):
        tensors[path] = tree.detach().contiguous()
        return {_TENSOR: path}
    # A dict with keys that are not text, or that look like a mark, is written as pairs, so that it comes back as it
    # was.
    if isinstance(tree, Mapping):
        plain = all(isinstance(key, str) and not key.startswith(_MARK) for key in tree)
        packed = [[key, pack(value, f"{path}/{key}", tensors)] for key, value in tree.items()]
        return {key: value for key, value in packed} if plain else {_PAIRS: packed}  # noqa: C416 (typed)
    if isinstance(tree, tuple | list):
        items = [pack(value, f"{path}/{i}", tensors) for i, value in enumerate(tree)]
        return {_TUPLE: items} if isinstance(tree, tuple) else items
    if isinstance(tree, float) and not math.isfinite(tree):
        return {_FLOAT: str(tree)}
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise TypeError(f"{path}: a {type(tree).__name__} cannot be saved; need tensors, numbers, text, lists, dicts")


def unpack(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Unpacks the tree of a state dictionary that `pack` took apart; raises ValueError if it was not packed there."""
    # Containers are rebuilt from the inside; only marked entries stand for something that JSON cannot hold.
    if isinstance(tree, list):
        return [unpack(value, tensors) for value in tree]
    if not isinstance(tree, dict):
        return tree
    if not any(isinstance(key, str) and key.startswith(_MARK) for key in tree):
        return {key: unpack(value, tensors) for key, value in tree.items()}
    # A dict with a mark holds that one entry; anything else is damage.
    try:
        ((mark, content),) = tree.items()
        if mark == _TENSOR:
            return tensors[content]
        if mark == _TUPLE:
            return tuple(unpack(value, tensors) for value in content)
        if mark == _FLOAT:
            return float(content)
        if mark == _PAIRS:
            return {key: unpack(value, tensors) for key, value in content}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"a saved state is damaged: {error!r}") from error
    raise ValueError(f"a saved state is damaged: unknown mark {mark!r}")

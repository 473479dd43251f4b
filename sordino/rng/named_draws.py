"""Kinds of random draws of a forward pass: none, dropout masks, or something else.

Something else may decide what happens to a complete batch.

A mask gives every element a coin of its own, and one pass with one seed shows what such a model does. A single coin, a
random order or a random choice may leave a layer out or mix records now and then, and is tried with several seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sordino.rng.global_generators import GlobalState, preserve_generators, seed_all

_MASKS = frozenset({"native_dropout", "bernoulli_", "_fused_dropout", "dropout", "dropout_"})
"""Random operations that give every element a coin of its own, as dropout does."""
_SINGLE = "a single coin"


class RandomDraws(Enum):
    """What a pass draws at random."""

    NOTHING = "nothing"
    MASKS = "the masks of dropout, a coin for every element"
    OTHER = "something else, which may decide what happens to a whole batch"


def find_random_draws(run: Callable[[], object]) -> RandomDraws:
    """Runs a forward pass and returns which kinds of random draws it makes, by the names of their operations. The
    generators are left as they were.

    Every operation is noted on its way, which takes time: a pass over a few records is enough.
    """
    # The pass leaves no trace in the generators.
    with preserve_generators():
        seed_all(0)
        began = GlobalState.capture()
        with torch.no_grad(), _NamedDraws() as draws:
            run()
        ended = GlobalState.capture()
    # Draws that no operation of torch explains came from elsewhere and count as unknown.
    if began.equals(ended):
        return RandomDraws.NOTHING
    return RandomDraws.MASKS if draws.names <= _MASKS and began.equals_outside_torch(ended) else RandomDraws.OTHER


class _NamedDraws(TorchDispatchMode):
    """While it lasts, notes the random operations that draw from a global generator of torch."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Lets every operation pass."""
        # What has a generator of its own leaves the global ones alone.
        if torch.Tag.nondeterministic_seeded in func.tags and (kwargs or {}).get("generator") is None:
            name = func._schema.name.removeprefix("aten::")
            self.names.add(_SINGLE if name == "bernoulli_" and args[0].numel() == 1 else name)
        return func(*args, **(kwargs or {}))

"""Recognises weights that a private run of this process made, wherever they were copied to.

Stage two often begins from a copy: `model.load_state_dict(first.state_dict())`, `copy.deepcopy(first)`, a checkpoint on
disk. The copy has other parameter objects, so `history` does not know them, yet its values tell about every record that
stage one was trained on. After every optimizer step of a run a few numbers of its largest tensors are remembered as a
digest. A run that begins at weights with one of these digests begins where another one has been, and its claim says so.

It also recognises weights that were written to many times before a run, as training without privacy does.

Privacy: a digest of released parameters is public, as they are. Weights that come from another process, and training
without privacy of a few steps, cannot be seen; every claim says that the initial weights are taken to be public.
"""

from __future__ import annotations

import random
import secrets
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from sordino.distributed.row_shard import is_shard
from sordino.kernels.abi import read_bytes
from sordino.ledger import claims

if TYPE_CHECKING:
    from sordino.ledger.ledger import Ledger

Kind = tuple[tuple[int, ...], str]
"""Tensors of one shape and type are compared with one another."""

_TENSORS = 4
"""How many of a model's largest tensors are remembered after each step."""
_FEWEST = 8
"""Tensors of fewer numbers are not compared: a few zeros or ones are in every model."""
_COMPARED = 64
"""Numbers of a tensor that are compared."""
_WRITES = 16
"""Initialisation writes to a tensor a few times; training writes to it at every step."""

_coins = random.Random(secrets.randbits(128))
_places: dict[Kind, int] = {}  # from which number on tensors of a kind are compared; a secret of the process
_made: dict[
    Kind, dict[int, weakref.ref[Ledger]]
] = {}  # by kind and digest, the ledger of the run that made these values


class Lineage:
    """What the parameters of one run were at its beginning, and what its steps made of them."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = weakref.ref(ledger)
        self._initial: set[int] = set()

    def begin(self, parameters: Iterable[nn.Parameter]) -> None:
        """Notes the initial values. They are no result of this run: others may begin at the same ones."""
        self._initial = {digest for p in _largest_tensors(parameters) if (digest := _digest_of_values(p)) is not None}

    def remember(self, parameters: Iterable[nn.Parameter]) -> None:
        """Remembers the values that these parameters have now as made by this run, so that copies of them are
        recognised.
        """
        for p in _largest_tensors(parameters):
            digest = _digest_of_values(p)
            if digest is not None and digest not in self._initial:
                _made.setdefault(_shape_and_dtype(p), {})[digest] = self._ledger


def find_unnamed_past(parameters: Iterable[nn.Parameter], ledger: Ledger) -> str | None:
    """Returns what a claim must name about the lineage of the weights that a run begins with, or None if nothing is
    known of them.

    Weights that a run with the same ledger made are part of its claim already.
    """
    every = list(parameters)
    makers = [maker for p in every if (maker := _find_maker(p)) is not None]
    if any(maker() is not ledger for maker in makers):
        return claims.COPIED
    written_often = any(p.requires_grad and p.is_cpu and not is_shard(p) and p._version >= _WRITES for p in every)
    return claims.WRITTEN_BEFORE if written_often and not makers else None


def _find_maker(p: nn.Parameter) -> weakref.ref[Ledger] | None:
    """Returns the ledger of the run that made these very weights, by their lineage, if one did; the ledger may be gone."""
    known = _made.get(_shape_and_dtype(p))
    digest = None if known is None else _digest_of_values(p)
    return None if known is None or digest is None else known.get(digest)


def _largest_tensors(parameters: Iterable[nn.Parameter]) -> Sequence[nn.Parameter]:
    return sorted((p for p in parameters if p.requires_grad), key=Tensor.numel, reverse=True)[:_TENSORS]


def _shape_and_dtype(p: Tensor) -> Kind:
    return tuple(p.shape), str(p.dtype)


def _digest_of_values(p: nn.Parameter) -> int | None:
    """Returns a digest of some numbers of a tensor, by which its lineage is recognised, or None for one that is small,
    divided or constant.
    """
    # Only plain tensors on the host can be read by address without a copy or a wait.
    if is_shard(p) or p.is_meta or p.numel() < _FEWEST or not p.is_contiguous() or not p.is_cpu:
        return None
    count = min(_COMPARED, p.numel())
    # The place is drawn once per shape and kept, so that equal tensors have equal digests. It is secret, so
    # that no code can spare just these numbers.
    start = _places.get(_shape_and_dtype(p))
    if start is None:
        start = _places[_shape_and_dtype(p)] = _coins.randrange(p.numel() - count + 1)
    size = p.element_size()
    raw_bytes = read_bytes(p.data_ptr() + start * size, count * size).raw
    # Constant values, such as zeros of a new bias, are alike in unrelated models and prove no descent.
    if raw_bytes == raw_bytes[:size] * count:
        return None
    return hash(raw_bytes)

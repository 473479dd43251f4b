"""One draw of records, as the training loop sees it: a handle, never the records or their number."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from sordino.door.sealed import Sealed


@dataclass(frozen=True, eq=False)
class Lot:
    """One draw. Pass it to `private.backward` before the next one is drawn."""

    step: int  # counted from 0 over the life of the `Private`; public
    size: Sealed[int]  # private under Poisson sampling
    expected_batch: float  # the public divisor
    batches: Callable[[], Iterable[Any]] = field(repr=False)

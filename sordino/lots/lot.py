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
    loads: Callable[[], Iterable[Any]] = field(repr=False)  # its batches; for the library alone
    most: int | None = field(default=None, repr=False)  # no batch has more records; public

    def batches(self) -> Iterable[Any]:
        """The records themselves. Whoever reads them in the loop can do anything with them, so the claim is void."""
        self.size.void(
            "the records of a lot were read in the training loop; what the loop does with them is not bounded"
        )
        return self.loads()

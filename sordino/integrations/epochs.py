"""Epoch loader: the lots of a run as a data loader that is asked for an epoch at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

from sordino.lots.lot import Draws, Lot


class EpochLoader:
    """`per_epoch` lots each time it is gone through, from one call of `draws`."""

    def __init__(self, draws: Draws, per_epoch: int, dataset: Any) -> None:
        self._draws, self._per_epoch, self.dataset = draws, per_epoch, dataset

    def __len__(self) -> int:
        return self._per_epoch

    def __iter__(self) -> Iterator[Lot]:
        # The draws go on where the last epoch ended; beginning anew would be another run that nobody calibrated.
        return islice(self._draws, self._per_epoch)


def count_lots_per_epoch(records: int, expected_batch: float) -> int:
    """Returns the number of lots in an epoch, after which about as many records were drawn as there are.

    >>> count_lots_per_epoch(1000, 300)
    4
    """
    return max(1, math.ceil(records / expected_batch - 1e-9))  # 1e-9: rate × N is rounded

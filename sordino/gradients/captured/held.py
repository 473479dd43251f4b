"""What a batch holds at the end of its backward pass, for the choice of how many samples are processed at once."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from sordino.door.vectors import accumulation_dtype
from sordino.gradients.captured.use import Use


def lifted_bytes(t: Tensor) -> int:
    """What a tensor takes in the precision of accumulation."""
    return t.numel() * accumulation_dtype(t.dtype).itemsize if t.is_floating_point() else t.nbytes


class Held:
    """Counts use by use: input and output gradient, or per-sample rows where those are smaller and take their place.

    All of them as they are added up, in float32 at least, whatever the model computes in.
    """

    __slots__ = ("_bytes", "_samples", "_seen")

    def __init__(self, samples: int) -> None:
        self._samples, self._bytes = samples, 0
        self._seen: set[int] = set()

    def take(self, use: Use, g: Tensor, parameters: Iterable[Tensor]) -> None:
        """One more use and the gradient at its output; an input that several layers read is held once."""
        inputs = {t.untyped_storage().data_ptr(): lifted_bytes(t) for t in use.saved}
        own = use.bytes * lifted_bytes(g) // max(1, g.nbytes)
        own += sum(n for at, n in inputs.items() if at not in self._seen)
        rows = self._samples * sum(map(lifted_bytes, parameters))
        self._bytes += min(own, rows)
        if own <= rows:
            self._seen |= inputs.keys()

    def of_a_sample(self) -> int:
        """Bytes, at least one."""
        return max(1, self._bytes // max(1, self._samples))

"""What a batch holds at the end of its backward pass, for the choice of how many samples are processed at once."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from sordino.gradients.captured.use import Use


class Held:
    """Counts use by use: input and output gradient, or per-sample rows where those are smaller and take their place."""

    __slots__ = ("_bytes", "_samples", "_seen")

    def __init__(self, samples: int) -> None:
        self._samples, self._bytes = samples, 0
        self._seen: set[int] = set()

    def take(self, use: Use, parameters: Iterable[Tensor]) -> None:
        """One more use; an input that several layers read is held once."""
        inputs = {t.untyped_storage().data_ptr(): t.nbytes for t in use.saved}
        own = use.bytes + sum(n for at, n in inputs.items() if at not in self._seen)
        rows = self._samples * sum(p.nbytes for p in parameters)
        self._bytes += min(own, rows)
        if own <= rows:
            self._seen |= inputs.keys()

    def of_a_sample(self) -> int:
        """Bytes, at least one."""
        return max(1, self._bytes // max(1, self._samples))

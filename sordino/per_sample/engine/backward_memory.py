"""Counts what a batch holds at the end of its backward pass, to choose the physical batch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sordino.per_sample.formulas.gradient_part import Part
from sordino.per_sample.formulas.matrix_product import Matmul
from sordino.per_sample.recording.tape import Use
from sordino.release.vectors import accumulation_dtype


def count_lifted_bytes(t: Tensor, dtype: torch.dtype | None = None) -> int:
    """Returns the bytes a tensor takes in `dtype`, or in the precision of accumulation if none is given."""
    return t.numel() * (dtype or accumulation_dtype(t.dtype)).itemsize if t.is_floating_point() else t.nbytes


def _find_held_dtype(parts: Mapping[Tensor, Part]) -> torch.dtype | None:
    """Returns the dtype in which a linear map's input and gradient take memory until the end of the backward pass, if
    kernels read them as they are.
    """
    inner = [getattr(part, "part", part) for part in parts.values()]
    kinds = [part.g.dtype for part in inner if isinstance(part, Matmul)]
    return next((kind for kind in kinds if kind != accumulation_dtype(kind)), None)


class HeldByBackward:
    """Counts, use by use, what is held: input and output gradient, or per-sample rows where those are smaller.

    Rows are counted as they are added up, in float32 at least, whatever the model computes in. Input and output
    gradient are counted so too, unless kernels read them as they are.
    """

    __slots__ = ("_bytes", "_samples", "_seen")

    def __init__(self, samples: int) -> None:
        self._samples, self._bytes = samples, 0
        self._seen: set[int] = set()

    def count_use(self, use: Use, g: Tensor, parts: Mapping[Tensor, Part]) -> None:
        """Counts the memory that one more use holds at the end of the backward pass, with output gradient and parts; an
        input that several layers read is counted once.
        """
        # Either inputs and output gradients are held, or the rows made of them, whichever is smaller.
        dtype = _find_held_dtype(parts)
        inputs = {t.untyped_storage().data_ptr(): count_lifted_bytes(t, dtype) for t in use.saved}
        own_bytes = use.bytes * count_lifted_bytes(g, dtype) // max(1, g.nbytes)
        own_bytes += sum(n for at, n in inputs.items() if at not in self._seen)
        rows = self._samples * sum(map(count_lifted_bytes, parts))
        self._bytes += min(own_bytes, rows)
        if own_bytes <= rows:
            self._seen |= inputs.keys()

    def bytes_per_sample(self) -> int:
        """Returns the bytes held for one sample, at least one."""
        return max(1, self._bytes // max(1, self._samples))

"""Where a tensor has its samples: what two runs on a model's first batch said of layers and of single operations."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from sordino.refusal import Refusal


@dataclass(frozen=True)
class Layout:
    """Where a layer's input has its samples: dimension `dim`, `rows` of it for each."""

    dim: int
    rows: int = 1


@dataclass(frozen=True)
class Meeting:
    """What two runs on a first batch said of one operation on parameters that no layer with a rule owns."""

    name: str
    given: tuple[Layout | None, ...]  # where the tensors it takes besides have their samples
    made: tuple[Layout | None, ...]  # the same for what it returns


ODD = Layout(-1, 0)
"""Of a tensor that does not grow by whole rows with the number of samples."""


Layouts = Mapping[Hashable, Sequence[Layout | Meeting | None]]
"""By layer or by tensor, for each call if they differ."""


class Unseen(Refusal):
    """A layer was called that was not called on the model's first batch."""


class OtherLength(Unseen):
    """Samples folded into rows have another number of them than on the batches before."""


def unseen(name: str) -> Unseen:
    """The refusal where looking again does not help."""
    return Unseen(
        f"layer '{name}': it was called in another way than on the model's first batch, so its batch dimension "
        "is not known; need the same inputs' layout every time; give the new use its own module, or use Loop()"
    )


def other_length(name: str, dims: int) -> OtherLength:
    """The same for samples that are not where they were."""
    return OtherLength(
        f"layer '{name}': its input of {dims} dimensions does not have the samples where the first batch "
        "had them; need one layout for all batches; keep the batch dimension first, or use Loop()"
    )

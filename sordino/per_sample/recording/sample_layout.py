"""Says where a tensor has its samples, as two runs on a model's first batch showed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from sordino.refusal import Refusal


@dataclass(frozen=True)
class Layout:
    """Says where a layer's input has its samples: in dimension `dim`, with `rows` of it for each."""

    dim: int
    rows: int = 1


@dataclass(frozen=True)
class SharedOperation:
    """What two runs on a first batch said of one operation on parameters that no layer with a rule owns."""

    name: str
    given: tuple[Layout | None, ...]  # where the tensors it takes besides have their samples
    made: tuple[Layout | None, ...]  # the same for what it returns


ODD = Layout(-1, 0)
"""Stands for a tensor that does not grow by whole rows with the number of samples."""


Layouts = Mapping[Hashable, Sequence[Layout | SharedOperation | None]]
"""Layouts by layer or by tensor, for each call if they differ."""


class UnseenCall(Refusal):
    """Refuses a layer that was not called on the model's first batch."""


class OtherLength(UnseenCall):
    """Refuses samples folded into rows that have another number of them than on the batches before."""


def make_unseen_refusal(name: str) -> UnseenCall:
    """Returns the refusal of a layer that was called in another way than on the first batch."""
    return UnseenCall(
        f"layer '{name}': it was called in another way than on the model's first batch, so its batch dimension "
        "is not known; need the same inputs' layout every time; give the new use its own module, or use Loop()"
    )


def make_other_length_refusal(name: str, dims: int) -> OtherLength:
    """Returns the refusal of an input whose samples are not where the first batch had them."""
    return OtherLength(
        f"layer '{name}': its input of {dims} dimensions does not have the samples where the first batch "
        "had them; need one layout for all batches; keep the batch dimension first, or use Loop()"
    )

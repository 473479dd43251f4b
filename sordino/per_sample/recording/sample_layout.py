"""Says where tensors have their samples, as two runs on a model's first batch showed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, TypeAlias

from sordino.refusal import Refusal


@dataclass(frozen=True)
class Layout:
    """Says where a tensor has its samples: in dimension `dim`, with `rows` of it for each."""

    dim: int
    rows: int = 1


class UnknownLayout(Enum):
    """Says why it is not known where a tensor has its samples. Neither is equal to a layout, nor to the other."""

    ODD = "the tensor does not grow by whole rows with the number of samples"
    UNSEEN = "no batch has called the layer so far"


FoundLayout: TypeAlias = Layout | Literal[UnknownLayout.ODD] | None
"""What a comparison of two runs says of a tensor. None: it is the same for all samples, which share it."""


@dataclass(frozen=True)
class SharedOperation:
    """What two runs on a first batch said of one operation on parameters that no layer with a rule owns."""

    name: str
    given: tuple[FoundLayout, ...]  # where the tensors it takes besides have their samples
    made: tuple[FoundLayout, ...]  # the same for what it returns


ArgumentKey: TypeAlias = tuple[int, str, int]
"""One of several tensors of a layer: the layer's position, "in" or "out", and the tensor's number."""

OperationKey: TypeAlias = tuple[int, int]
"""An operation: the position of the layer whose own code it is, OUTSIDE for none, and its number within a call of it."""

OUTSIDE = -1
"""Stands for the position of a layer where code belongs to none."""


@dataclass(frozen=True)
class Layouts:
    """Says where the tensors of a forward pass have their samples.

    Each entry is a sequence: of one layout where all calls agree, else of one for each call, in order.
    """

    inputs: Mapping[int, Sequence[Layout | None]] = field(default_factory=dict)
    """By the position of a layer: its input."""
    arguments: Mapping[ArgumentKey, Sequence[Layout | None]] = field(default_factory=dict)
    """The tensors of layers that take or return several."""
    operations: Mapping[OperationKey, Sequence[SharedOperation]] = field(default_factory=dict)
    """The operations on parameters that no layer with a rule owns."""

    def with_defaults(self, others: Layouts) -> Layouts:
        """Returns these sample layouts, and those of `others` for what is not known here."""
        return Layouts(
            {**others.inputs, **self.inputs},
            {**others.arguments, **self.arguments},
            {**others.operations, **self.operations},
        )

    def find_called_positions(self) -> set[int]:
        """Returns the positions of all layers of which something is known."""
        of_tensors = {position for position, _, _ in self.arguments}
        return of_tensors | {position for position, _ in self.operations} | self.inputs.keys()

    def has_shared_inputs(self) -> bool:
        """Returns whether some layer takes or returns a tensor that all samples share."""
        return any(layout is None for layouts in self._tensors() for layout in layouts)

    def count_operations_outside_layers(self) -> int:
        """Returns how many operations on parameters belong to no layer's own code."""
        return sum(position == OUTSIDE for position, _ in self.operations)

    def _tensors(self) -> Iterator[Sequence[Layout | None]]:
        """Yields the layouts of all tensors that layers take or return."""
        yield from self.inputs.values()
        yield from self.arguments.values()


NOTHING_KNOWN = Layouts()


class UnseenCall(Refusal):
    """Refuses a layer that was not called on the model's first batch."""


class OtherLength(UnseenCall):
    """Refuses samples folded into rows that have another number of them than on the batches before."""


def make_unseen_refusal(name: str) -> UnseenCall:
    """Returns the refusal of a layer whose sample layout is not known: it was called in another way than on the first
    batch.
    """
    return UnseenCall(
        f"layer '{name}': it was called in another way than on the model's first batch, so its batch dimension "
        "is not known; need the same inputs' layout every time; give the new use its own module, or use Loop()"
    )


def make_other_length_refusal(name: str, dims: int) -> OtherLength:
    """Returns the refusal of an input whose sample layout differs: its samples are not where the first batch had them."""
    return OtherLength(
        f"layer '{name}': its input of {dims} dimensions does not have the samples where the first batch "
        "had them; need one layout for all batches; keep the batch dimension first, or use Loop()"
    )


def make_unasked_refusal(name: str) -> Refusal:
    """Returns the refusal of a layer whose rule records a use and never asked for the sample layout, where the samples
    are.
    """
    return Refusal(
        f"layer '{name}': its rule does not ask where the input has its samples.\n"
        "Without that their gradients cannot be told apart.\n"
        "Call tape.batch_dim(x) in the rule before tape.record."
    )

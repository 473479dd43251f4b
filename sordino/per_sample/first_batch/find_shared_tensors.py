"""Finds which results of operations on parameters are shared by all samples, from two runs.

In a run for shapes whatever follows from a parameter may be shared, so all of it is written down. Here the two lists,
of few and of many samples, are walked side by side: an operation none of whose tensors is shared is ignored; of any
other the shapes say which of its results has samples, and only results without them are shared from there on. What is
left, in order, is what a real pass meets.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import zip_longest

import torch

from sordino.per_sample.engine.loose_parameters import PARAMETER, ParameterUseEvent
from sordino.per_sample.recording.sample_layout import Layout, SharedOperation

Between = Callable[[torch.Size, torch.Size], Layout | None]


class _Run:
    """The events of one run, and which tensors are known to be shared."""

    def __init__(self, events: list[ParameterUseEvent]) -> None:
        self.events = events
        self.shared = {PARAMETER}
        self.reordered: set[int] = set()

    def iterate_shared_events(self) -> Iterator[ParameterUseEvent]:
        """Yields the events that take something shared, while the caller adds to what is known to be shared."""
        for event in self.events:
            if event.reorders and event.takes[0][0] not in self.shared:
                self.reordered.add(event.leaf)
            if any(number in self.shared for number, _ in event.takes):
                yield event

    def other_shapes(self, event: ParameterUseEvent) -> list[torch.Size]:
        """Returns the shapes of the tensors that an event takes and that are not shared."""
        return [shape for number, shape in event.takes if number not in self.shared]


def find_shared_operations(
    small_run: list[ParameterUseEvent], large_run: list[ParameterUseEvent], between: Between
) -> tuple[list[tuple[Hashable, SharedOperation]], set[int]] | None:
    """Returns what each operation does, by layer and number within a call of it, and the layers that may reorder rows.

    Returns None where the two runs do not do the same.
    """
    first, second = _Run(small_run), _Run(large_run)
    numbers: dict[int, int] = {}
    operations: list[tuple[Hashable, SharedOperation]] = []
    for a, b in zip_longest(first.iterate_shared_events(), second.iterate_shared_events()):
        # The runs must do the same operations in the same order.
        if a is None or b is None or (a.name, a.leaf, len(a.makes)) != (b.name, b.leaf, len(b.makes)):
            return None
        taken = first.other_shapes(a), second.other_shapes(b)
        if len(taken[0]) != len(taken[1]):
            return None
        # Compare the shapes of what the operation takes and returns. A result of equal shape in both runs has no
        # samples, and is shared from here on.
        given = tuple(between(less, more) for less, more in zip(*taken, strict=True))
        made = tuple(between(less, more) for (_, less), (_, more) in zip(a.makes, b.makes, strict=True))
        for layout, (small_number, _), (large_number, _) in zip(made, a.makes, b.makes, strict=True):
            if layout is None:
                first.shared.add(small_number)
                second.shared.add(large_number)
        # Number the operation within this call of its layer, as a real pass will count it.
        number = numbers[a.entry] = numbers.get(a.entry, -1) + 1
        operations.append(((a.leaf, "met", number), SharedOperation(a.name, given, made)))
    return operations, first.reordered | second.reordered

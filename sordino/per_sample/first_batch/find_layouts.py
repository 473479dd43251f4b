"""Finds where the layers of a model have their samples, by comparing two runs on its first batch.

Sizes lie: with 128 tokens and 128 samples, position ids look like a batch. So the model runs on two and on three
samples, and the dimension that changed is the one that counts them.

Operations on parameters outside layers are compared in the same way. In a run for shapes whatever follows from a
parameter may be shared by all samples, so all of it is written down. The two lists, of few and of many samples, are
walked side by side: an operation none of whose tensors is shared is ignored; of any other the shapes say which of its
results has samples, and only results without them are shared from there on. What is left, in order, is what a real pass
meets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeVar

import torch

from sordino.per_sample.batch_structure import take_rows
from sordino.per_sample.engine.loose_parameters import PARAMETER, ParameterUseEvent
from sordino.per_sample.engine.pruned_backward import find_reachable_nodes, find_unrecorded_parameters, refuse_reentrant
from sordino.per_sample.engine.session import Session
from sordino.per_sample.first_batch.second_order import SecondOrder
from sordino.per_sample.layers.fallback import run_fallback
from sordino.per_sample.recording.sample_layout import (
    NOTHING_KNOWN,
    ArgumentKey,
    FoundLayout,
    Layout,
    Layouts,
    OperationKey,
    SharedOperation,
    UnknownLayout,
)
from sordino.per_sample.recording.tape import HandOverTape, ShapesTape
from sordino.refusal import Refusal
from sordino.rng.global_generators import GlobalState, preserve_generators, seed_all
from sordino.rng.shape_independent import SteadyDraws

SMALLER_RUN, LARGER_RUN = 2, 3
"""Samples in the two runs that are compared."""

_SEEDS = 8
"""Seeds tried at most, where random numbers decide which layers are called."""

_OTHERWISE = (
    "the model calls other layers on two samples than on three; need a forward pass that does not depend on the "
    "number of samples; loop over something else, or use Loop()"
)


@dataclass(frozen=True)
class _LayoutFindings:
    """What two runs, or several pairs of them, said."""

    layouts: Layouts
    loose: bool  # a parameter is used outside its layer
    reordered: frozenset[int]  # layers without a rule in which rows may change their order

    def __or__(self, other: _LayoutFindings) -> _LayoutFindings:
        layouts = self.layouts.with_defaults(other.layouts)
        return _LayoutFindings(layouts, self.loose or other.loose, self.reordered | other.reordered)


def find_sample_layouts(session: Session, three_samples: Any) -> Layouts:
    """Finds the layouts of the layers, and of uses of parameters outside them, on a first batch of three samples.

    The layers come first; then, if parameters are used outside them, those uses, knowing which layers are shared.
    Layers without a rule have their code followed; those in which that leaves a parameter behind, or rows may change
    their order, are run as a whole instead, one sample at a time.
    """
    plan = session.plan
    needed = plan.learned.follows_everything
    while True:
        # Compare two runs in which only layers are recorded.
        plan.learn(follows_everything=False, follows_code=False)
        first = _compare_runs(session, three_samples, NOTHING_KNOWN)
        without_rule = frozenset(position for position, _, rule in plan.structure.rules if rule is run_fallback)
        followed = without_rule - plan.learned.mapped_positions
        if not (needed or first.loose or first.layouts.has_shared_inputs() or followed):
            return first.layouts
        # Compare two more, in which operations outside layers are followed too.
        plan.learn(follows_everything=True, follows_code=True)
        found = _compare_runs(session, three_samples, first.layouts)
        # Layers that cannot be followed are run as a whole, and everything is compared again with that.
        stuck = (found.reordered | _find_left_behind(session, three_samples, found.layouts)) & followed
        if not stuck:
            plan.learn(follows_everything=found.layouts.count_operations_outside_layers() > 0)
            return found.layouts
        plan.learn(mapped_positions=plan.learned.mapped_positions | stuck)


def _find_left_behind(session: Session, more: Any, layouts: Layouts) -> set[int]:
    """Finds the positions of layers without a rule and without a layout that own a parameter which is still in the
    graph.
    """
    structure = session.plan.structure
    # Run the larger batch with these layouts, and see which parameters the losses still reach outside of recorded uses.
    tape = session.make_tape(HandOverTape, LARGER_RUN, layouts)
    # The user's generators and spectral vectors are put back: this pass must leave no trace.
    with torch.enable_grad(), preserve_generators(), session.keep_vectors():
        seed_all(0)
        with session.record_on(tape):
            nodes = find_reachable_nodes(session.compute_losses(more, LARGER_RUN))
    kept = find_unrecorded_parameters(nodes, structure.columns)
    tape.release_graph()  # no backward pass follows, which would
    return {
        position
        for position, _, rule in structure.rules
        if rule is run_fallback and any(id(p) in kept for p in session.modules[position].parameters())
    }


def _compare_runs(session: Session, more: Any, known: Layouts) -> _LayoutFindings:
    """Finds layouts by comparing two runs of the model on its first batch.

    Where the model draws at random, draws are steady, so that both runs have the same; and several seeds are tried,
    until every layer was called: a random choice may leave some out.
    """
    with preserve_generators():
        # Two runs suffice if nothing is drawn.
        found = _compare_two_runs(session, more, known, None)
        if found is not None:
            return found
        # Otherwise collect what pairs of runs with the same draws say, until every layer with a rule was called.
        wanted = {position for position, _, _ in session.plan.structure.rules}
        for seed in range(_SEEDS):
            findings = _compare_two_runs(session, more, known, seed)
            assert findings is not None, "steady draws are compared whatever is drawn"
            found = findings if found is None else found | findings
            if wanted <= found.layouts.find_called_positions():
                break
        assert found is not None, "there is a seed"
        return found


def _compare_two_runs(session: Session, more: Any, known: Layouts, seed: int | None) -> _LayoutFindings | None:
    """Finds layouts from the shapes in two runs of the model, on two and on three samples.

    With a seed, draws are steady; without one, it returns None where something was drawn.
    """
    structure = session.plan.structure
    names = {position: name for position, name, _ in structure.rules}
    tapes, loose = [], False
    # Run the model at both sizes on a tape that only logs shapes.
    for n in (SMALLER_RUN, LARGER_RUN):
        tape = session.make_tape(ShapesTape, n, known)
        seed_all(seed or 0)
        began = GlobalState.capture()
        steady = nullcontext() if seed is None else SteadyDraws(seed)
        with (
            torch.enable_grad(),
            session.record_on(tape),
            session.keep_vectors(),
            SecondOrder(tape),
            steady,
        ):
            losses = session.compute_losses(take_rows(more, slice(0, n)), n)
        if seed is None and not began.equals(GlobalState.capture()):
            return None
        # Note whether a parameter is used outside the recorded layers.
        nodes = find_reachable_nodes(losses)
        refuse_reentrant(nodes)
        loose = loose or bool(find_unrecorded_parameters(nodes, structure.columns))
        tapes.append(tape)
    # Both runs must have called the same layers; the dimension that differs counts the samples.
    two_samples_tape, three_samples_tape = tapes
    if [key for key, _ in two_samples_tape.shapes] != [key for key, _ in three_samples_tape.shapes]:
        raise Refusal(_OTHERWISE)
    inputs: dict[int, list[Layout | None]] = {}
    arguments: dict[ArgumentKey, list[Layout | None]] = {}
    for (key, less), (_, more_) in zip(two_samples_tape.shapes, three_samples_tape.shapes, strict=True):
        if isinstance(key, int):
            if key not in known.inputs:
                inputs.setdefault(key, []).append(_require_whole_rows(less, more_, names.get(key, "")))
        elif key not in known.arguments:
            arguments.setdefault(key, []).append(_require_whole_rows(less, more_, names.get(key[0], "")))
    # The operations on shared tensors are compared in the same way.
    compared = _compare_shared_operations(two_samples_tape.follower.events, three_samples_tape.follower.events)
    if compared is None:
        raise Refusal(_OTHERWISE)
    operations, reordered = compared
    reordered |= two_samples_tape.follower.reordered | three_samples_tape.follower.reordered
    found = Layouts(_join_equal_calls(inputs), _join_equal_calls(arguments), _join_equal_calls(operations))
    return _LayoutFindings(found.with_defaults(known), loose, frozenset(reordered))


_Key = TypeVar("_Key")
_Known = TypeVar("_Known")


def _join_equal_calls(calls: dict[_Key, list[_Known]]) -> dict[_Key, list[_Known]]:
    """Returns one entry for all calls of a layer where they agree, else one for each."""
    return {key: each[:1] if len(set(each)) == 1 else each for key, each in calls.items()}


def _compare_shapes(less: torch.Size, more: torch.Size) -> FoundLayout:
    """Finds the layout of a tensor: where its shapes in the smaller and in the larger run differ; None where they do
    not.
    """
    # The dimension that grows with the number of samples is the one that counts them.
    different = [j for j, (a, b) in enumerate(zip(less, more, strict=False)) if a != b]
    if len(less) == len(more) and not different:
        return None
    # Exactly one dimension may differ, and it must have the same whole number of rows for each sample in both runs.
    dim = different[0] if len(different) == 1 and len(less) == len(more) else -1
    rows = less[dim] // SMALLER_RUN if dim >= 0 else 0
    if dim < 0 or not rows or less[dim] != SMALLER_RUN * rows or more[dim] != LARGER_RUN * rows:
        return UnknownLayout.ODD
    return Layout(dim, rows)


def _require_whole_rows(few: torch.Size, many: torch.Size, name: str) -> Layout | None:
    """Finds the layout of a layer's input from two runs, and refuses one that does not grow by whole rows."""
    # A dimension that grows by something else mixes the samples.
    layout = _compare_shapes(few, many)
    if layout is UnknownLayout.ODD:
        raise Refusal(
            f"layer '{name}': its input does not grow by whole rows with the number of samples.\n"
            "One dimension must count samples, or their gradients cannot be told apart.\n"
            "Do not mix samples inside the model."
        )
    return layout


class _Run:
    """The events of one run, and which tensors are known to be shared."""

    def __init__(self, events: list[ParameterUseEvent]) -> None:
        self.events = events
        self.shared = {PARAMETER}
        self.reordered: set[int] = set()

    def iterate_shared_events(self) -> Iterator[ParameterUseEvent]:
        """Yields the events of a run for finding layouts that take something shared, while the caller adds to what is
        known to be shared.
        """
        for event in self.events:
            if event.reorders and event.takes[0][0] not in self.shared:
                self.reordered.add(event.leaf)
            if any(number in self.shared for number, _ in event.takes):
                yield event

    def other_shapes(self, event: ParameterUseEvent) -> list[torch.Size]:
        """Returns the shapes of the tensors that an event takes and that are not shared."""
        return [shape for number, shape in event.takes if number not in self.shared]


def _compare_shared_operations(
    small_run: list[ParameterUseEvent], large_run: list[ParameterUseEvent]
) -> tuple[dict[OperationKey, list[SharedOperation]], set[int]] | None:
    """Finds the layouts of operations on shared tensors, by layer and number within a call of it, and the layers that
    may reorder rows.

    Returns None where the two runs do not do the same.
    """
    first, second = _Run(small_run), _Run(large_run)
    numbers: dict[int, int] = {}
    operations: dict[OperationKey, list[SharedOperation]] = {}
    for a, b in zip_longest(first.iterate_shared_events(), second.iterate_shared_events()):
        # The runs must do the same operations in the same order.
        if a is None or b is None or (a.name, a.leaf, len(a.makes)) != (b.name, b.leaf, len(b.makes)):
            return None
        taken = first.other_shapes(a), second.other_shapes(b)
        if len(taken[0]) != len(taken[1]):
            return None
        # Compare the shapes of what the operation takes and returns. A result of equal shape in both runs has no
        # samples, and is shared from here on.
        given = tuple(_compare_shapes(less, more) for less, more in zip(*taken, strict=True))
        made = tuple(_compare_shapes(less, more) for (_, less), (_, more) in zip(a.makes, b.makes, strict=True))
        for layout, (small_number, _), (large_number, _) in zip(made, a.makes, b.makes, strict=True):
            if layout is None:
                first.shared.add(small_number)
                second.shared.add(large_number)
        # Number the operation within this call of its layer, as a real pass will count it.
        number = numbers[a.entry] = numbers.get(a.entry, -1) + 1
        operations.setdefault((a.leaf, number), []).append(SharedOperation(a.name, given, made))
    return operations, first.reordered | second.reordered

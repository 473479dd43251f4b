"""Finds where the layers of a model have their samples, by comparing two runs on its first batch.

Sizes lie: with 128 tokens and 128 samples, position ids look like a batch. So the model runs on two and on three
samples, and the dimension that changed is the one that counts them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sordino.per_sample.batch_structure import take_rows
from sordino.per_sample.engine.autograd_graph import find_reachable_nodes, find_unrecorded_parameters, refuse_reentrant
from sordino.per_sample.engine.session import Session
from sordino.per_sample.first_batch.find_shared_tensors import find_shared_operations
from sordino.per_sample.first_batch.second_order import SecondOrder
from sordino.per_sample.layers.fallback import run_fallback
from sordino.per_sample.recording.sample_layout import ODD, Layout, Layouts, SharedOperation
from sordino.per_sample.recording.tape import Mode
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

    layouts: dict[Hashable, Sequence[Layout | SharedOperation | None]]
    loose: bool  # a parameter is used outside its layer
    reordered: frozenset[int]  # layers without a rule in which rows may change their order

    def __or__(self, other: _LayoutFindings) -> _LayoutFindings:
        layouts = {**other.layouts, **self.layouts}
        return _LayoutFindings(layouts, self.loose or other.loose, self.reordered | other.reordered)


def find_sample_layouts(session: Session, three_samples: Any) -> Layouts:
    """Returns the layouts of the layers, and of uses of parameters outside them.

    The layers come first; then, if parameters are used outside them, those uses, knowing which layers are shared.
    Layers without a rule have their code followed; those in which that leaves a parameter behind, or rows may change
    their order, are run as a whole instead, one sample at a time.
    """
    plan = session.plan
    needed = plan.has_loose_parameters
    while True:
        # Compare two runs in which only layers are recorded.
        plan.has_loose_parameters = plan.follows_code = False
        first = _compare_runs(session, three_samples, {})
        shared = any(layout is None for layouts in first.layouts.values() for layout in layouts)
        without = (
            frozenset(position for position, _, rule in plan.rules if rule is run_fallback) - plan.mapped_positions
        )
        if not (needed or first.loose or shared or without):
            return first.layouts
        # Compare two more, in which operations outside layers are followed too.
        plan.has_loose_parameters = plan.follows_code = True
        found = _compare_runs(session, three_samples, first.layouts)
        # Layers that cannot be followed are run as a whole, and everything is compared again with that.
        stuck = (found.reordered | _find_left_behind(session, three_samples, found.layouts)) & without
        if not stuck:
            plan.has_loose_parameters = any(isinstance(key, tuple) and key[:2] == (-1, "met") for key in found.layouts)
            return found.layouts
        plan.mapped_positions |= stuck


def _find_left_behind(session: Session, more: Any, layouts: Layouts) -> set[int]:
    """Returns the positions of layers without a rule that own a parameter which is still in the graph."""
    plan = session.plan
    tape = session.make_tape(LARGER_RUN, Mode.HAND_OVER, layouts)
    with torch.enable_grad(), preserve_generators(), session.keep_vectors():
        seed_all(0)
        with session.record_on(tape):
            nodes = find_reachable_nodes(session.compute_losses(more, LARGER_RUN))
    kept = find_unrecorded_parameters(nodes, plan.columns)
    tape.release_graph()  # no backward pass follows, which would
    return {
        position
        for position, _, rule in plan.rules
        if rule is run_fallback and any(id(p) in kept for p in session.modules[position].parameters())
    }


def _compare_runs(session: Session, more: Any, known: Layouts) -> _LayoutFindings:
    """Returns what two runs say.

    Where the model draws at random, draws are steady, so that both runs have the same; and several seeds are tried,
    until every layer was called: a random choice may leave some out.
    """
    with preserve_generators():
        # Two runs suffice if nothing is drawn.
        found = _compare_two_runs(session, more, known, None)
        if found is not None:
            return found
        # Otherwise collect what pairs of runs with the same draws say, until every layer with a rule was called.
        wanted = {position for position, _, _ in session.plan.rules}
        for seed in range(_SEEDS):
            findings = _compare_two_runs(session, more, known, seed)
            assert findings is not None, "steady draws are compared whatever is drawn"
            found = findings if found is None else found | findings
            if wanted <= {key[0] if isinstance(key, tuple) else key for key in found.layouts}:
                break
        assert found is not None, "there is a seed"
        return found


def _compare_two_runs(session: Session, more: Any, known: Layouts, seed: int | None) -> _LayoutFindings | None:
    """Runs the model on two and on three samples and compares the shapes.

    With a seed, draws are steady; without one, it returns None where something was drawn.
    """
    plan = session.plan
    names = {position: name for position, name, _ in plan.rules}
    tapes, loose = [], False
    # Run the model at both sizes on a tape that only logs shapes.
    for n in (SMALLER_RUN, LARGER_RUN):
        tape = session.make_tape(n, Mode.SHAPES, known)
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
        loose = loose or bool(find_unrecorded_parameters(nodes, plan.columns))
        tapes.append(tape)
    # Both runs must have called the same layers; the dimension that differs counts the samples.
    two_samples_tape, three_samples_tape = tapes
    if [key for key, _ in two_samples_tape.shapes] != [key for key, _ in three_samples_tape.shapes]:
        raise Refusal(_OTHERWISE)
    found: dict[Hashable, list[Layout | SharedOperation | None]] = {}
    for (key, less), (_, more_) in zip(two_samples_tape.shapes, three_samples_tape.shapes, strict=True):
        if key not in known:
            found.setdefault(key, []).append(_require_whole_rows(less, more_, names.get(_layer_position(key), "")))
    # The operations on shared tensors are compared in the same way.
    meetings = find_shared_operations(
        two_samples_tape.follower.events,
        three_samples_tape.follower.events,
        partial(compare_shapes, SMALLER_RUN, LARGER_RUN),
    )
    if meetings is None:
        raise Refusal(_OTHERWISE)
    reordered = meetings[1] | two_samples_tape.follower.reordered | three_samples_tape.follower.reordered
    for key, meeting in meetings[0]:
        found.setdefault(key, []).append(meeting)
    # A layer whose calls all agree has one layout for all of them.
    layouts = {key: each[:1] if len(set(each)) == 1 else each for key, each in found.items()}
    return _LayoutFindings({**known, **layouts}, loose, frozenset(reordered))


def _layer_position(key: Hashable) -> Any:
    return key[0] if isinstance(key, tuple) else key


def compare_shapes(few: int, many: int, less: torch.Size, more: torch.Size) -> Layout | None:
    """Returns where the shapes of a tensor for few and for many samples differ; None where they do not."""
    different = [j for j, (a, b) in enumerate(zip(less, more, strict=False)) if a != b]
    if len(less) == len(more) and not different:
        return None
    dim = different[0] if len(different) == 1 and len(less) == len(more) else -1
    rows = less[dim] // few if dim >= 0 else 0
    if dim < 0 or not rows or less[dim] != few * rows or more[dim] != many * rows:
        return ODD
    return Layout(dim, rows)


def _require_whole_rows(few: torch.Size, many: torch.Size, name: str) -> Layout | None:
    """Returns the layout of a layer's input, and refuses one that does not grow by whole rows."""
    layout = compare_shapes(SMALLER_RUN, LARGER_RUN, few, many)
    if layout is ODD:
        raise Refusal(
            f"layer '{name}': its input does not grow by whole rows with the number of samples; need one dimension that "
            "counts samples; do not mix samples inside the model"
        )
    return layout

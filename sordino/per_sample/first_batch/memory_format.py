"""Chooses the memory format that the convolutions of a model run in, on its first batch."""

from __future__ import annotations

from typing import Any

import torch

from sordino.per_sample.batch_structure import batch_size, list_tensors, take_rows
from sordino.per_sample.engine.session import Session
from sordino.per_sample.formulas.formula_timing import read_clock
from sordino.per_sample.recording.tape import Checkpointed
from sordino.refusal import Refusal

TRIAL = 32
"""Samples a format is timed on."""
_REPEATS = 3
_CLEAR = 1.25
"""A format that is faster by this factor in the first timed round is not timed again."""
_LAST = "channels last"


def channels_last_is_faster(session: Session, batch: Any, more: Any) -> bool:
    """Returns whether a whole step on the first batch is faster with channels last, by timing both memory formats.

    Each format runs once untimed, while its layers choose their formulas. Where the stopwatch was stopped and does not know
    the answer, it follows from `more`, a few records, by shape.
    """
    # A choice that was made before, in this run or the one it resumes, is kept.
    plan, model, stopwatch = session.plan, session.model, session.workspace.stopwatch
    inputs = tuple((tuple(t.shape[1:]), t.dtype, t.device) for t in list_tensors(batch))
    shapes = tuple(p.shape for p in plan.structure.parameters)
    key = ("format", plan.structure.names, shapes, model.training, inputs, torch.get_num_threads())
    before = stopwatch.known_choice(key)
    if before is not None:
        return before == _LAST
    if stopwatch.stopped:
        return accepts_channels_last(session, more)
    # Time a whole step in both formats, several times in turn.
    trial_batch = take_rows(batch, slice(0, TRIAL))
    ones = torch.ones(batch_size(trial_batch), 1, device=next(iter(model.parameters())).device)
    best = {False: float("inf"), True: float("inf")}
    # The first round warms up and is not timed.
    for repeat in range(1 + _REPEATS):
        for last in (False, True):
            plan.learn(channels_last=last)
            start = read_clock(ones.device)
            try:
                grads = session.run_passes(trial_batch)
                grads.weighted_sum(ones)
            except Checkpointed:
                return False
            except (
                RuntimeError,
                Refusal,
            ):  # the model's own code asks for the other format, as x.view(len(x), -1) does
                if not last:
                    raise
                stopwatch.remember_choice(key, "default")
                return False
            elapsed = read_clock(ones.device) - start
            if repeat:
                best[last] = min(best[last], elapsed)
        # Stop when one format is clearly faster.
        if repeat and max(best.values()) > _CLEAR * min(best.values()):
            break
    return stopwatch.remember_choice(key, _LAST if best[True] < best[False] else "default") == _LAST


def accepts_channels_last(session: Session, more: Any) -> bool:
    """Returns whether to use the memory format channels last without a stopwatch: on a CPU, where it won on all models
    tried.

    The model's own code must allow it, which is tried on the records `more`.
    """
    # Other devices have their own preferences, which are not known here.
    if any(p.device.type != "cpu" for p in session.model.parameters()):
        return False
    session.plan.learn(channels_last=True)
    try:
        session.run_passes(more)
    except (Checkpointed, RuntimeError, Refusal):
        return False
    return True

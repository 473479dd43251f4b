"""Where the layers of a model have their samples: found on its first batch.

Sizes lie: with 128 tokens and 128 samples, position ids look like a batch. So the model runs on two and on three
samples, and the dimension that changed is the one that counts them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from sordino.gradients.batch import take
from sordino.gradients.captured.graph import reachable, refuse_reentrant, unrecorded
from sordino.gradients.captured.session import Session
from sordino.gradients.captured.tape import Layout, Mode
from sordino.gradients.first_batch.second_order import SecondOrder
from sordino.random.global_state import GlobalState, left_as_they_were, seed_all
from sordino.random.steady import Steady
from sordino.refusal import Refusal

FEW, MORE = 2, 3
"""Samples in the two runs that are compared."""

_SEEDS = 8
"""Seeds tried at most, where random numbers decide which layers are called."""

Layouts = dict[Hashable, Sequence[Layout | None]]


def layouts_of(session: Session, more: Any) -> Layouts:
    """First the layers; then, if parameters are used outside them, those uses, knowing which layers are shared."""
    plan = session.plan
    needed, plan.loose = plan.loose, False
    found, loose = _compared(session, more, {})
    shared = any(layout is None for layouts in found.values() for layout in layouts)
    plan.loose = needed or loose or shared
    if plan.loose:
        found, _ = _compared(session, more, found)
    return found


def _compared(session: Session, more: Any, known: Layouts) -> tuple[Layouts, bool]:
    """The layouts, and whether a parameter is used outside its layer.

    Where the model draws at random, draws are steady, so that both runs have the same; and several seeds are tried, until
    every layer was met: a coin may leave some out.
    """
    with left_as_they_were(session.cuda_devices()):
        first = _two_runs(session, more, known, None)
        if first is not None:
            return first
        found: Layouts = {}
        loose, wanted = False, {position for position, _, _ in session.plan.rules}
        for seed in range(_SEEDS):
            results = _two_runs(session, more, known, seed)
            assert results is not None, "steady draws are compared whatever is drawn"
            found, loose = {**results[0], **found}, loose or results[1]
            if wanted <= {key[0] if isinstance(key, tuple) else key for key in found}:
                break
        return found, loose


def _two_runs(session: Session, more: Any, known: Layouts, seed: int | None) -> tuple[Layouts, bool] | None:
    """The same with draws that are steady by a seed; without one, None where something was drawn."""
    plan, devices = session.plan, session.cuda_devices()
    names = {position: name for position, name, _ in plan.rules}
    logs, loose = [], False
    for n in (FEW, MORE):
        tape = session.tape(n, Mode.SHAPES, known)
        seed_all(seed or 0, devices)
        began = GlobalState.now(devices)
        steady = nullcontext() if seed is None else Steady(seed)
        with (
            torch.enable_grad(),
            session.recording(tape),
            session.vectors_kept(),
            SecondOrder(tape),
            steady,
        ):
            losses = session.losses(take(more, slice(0, n)), n)
        if seed is None and not began.same(GlobalState.now(devices)):
            return None
        nodes = reachable(losses)
        refuse_reentrant(nodes)
        loose = loose or unrecorded(nodes, plan.columns)
        logs.append(tape.shapes)
    if [key for key, _ in logs[0]] != [key for key, _ in logs[1]]:
        raise Refusal(
            "the model calls other layers on two samples than on three; need a forward pass that does not depend on the "
            "number of samples; loop over something else, or use Loop()"
        )
    found: dict[Hashable, list[Layout | None]] = {key: [None] for key, each in known.items() if None in each}
    for (key, few), (_, many) in zip(*logs, strict=True):
        position = key[0] if isinstance(key, tuple) else key
        found.setdefault(key, []).append(_layout(few, many, names.get(position, "")))
    return {key: layouts[:1] if len(set(layouts)) == 1 else layouts for key, layouts in found.items()}, loose


def _layout(few: torch.Size, many: torch.Size, name: str) -> Layout | None:
    """Where two shapes differ; None where they do not."""
    different = [j for j, (a, b) in enumerate(zip(few, many, strict=False)) if a != b]
    if len(few) == len(many) and not different:
        return None
    dim = different[0] if len(different) == 1 and len(few) == len(many) else -1
    rows = few[dim] // FEW
    if dim < 0 or few[dim] != FEW * rows or many[dim] != MORE * rows:
        raise Refusal(
            f"layer '{name}': its input does not grow by whole rows with the number of samples; need one dimension that "
            "counts samples; do not mix samples inside the model"
        )
    return Layout(dim, rows)

"""Whether the engine's answers are autograd's: asked on a model's first batch.

Three samples, their losses scaled by 1, 2 and 3 so that even equal samples differ, are measured both ways.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from sordino.door.vectors import accumulation_dtype
from sordino.gradients.batch import take
from sordino.gradients.captured.session import Session
from sordino.gradients.captured.tape import Checkpointed
from sordino.gradients.captured.two_pass import two_passes
from sordino.gradients.first_batch.dropout import without_dropout
from sordino.gradients.first_batch.layouts import MORE, layouts_of
from sordino.gradients.formulas.part import as_computed
from sordino.gradients.protocol import PerSample, trainable
from sordino.gradients.tensors import squared_norms
from sordino.refusal import Refusal

_AGREE = 2e-3
"""Relative difference allowed in float32: rounding is far below, a wrong formula far above."""
_AGREE_LOW = 0.2
"""The same where layers compute in half precision, whose rounding autograd and the engine place differently."""

_NOTHING = 1e-15
"""Norms of gradients that are exactly 0 are a little more, because squares that vanish are counted."""


def verify(session: Session, more: Any) -> None:
    """Norms and a sum of three samples against autograd's, in training mode without dropout, else in evaluation."""
    worst: tuple[float, str] = (0.0, "")
    for everything in (False, True):
        with without_dropout(session.modules, everything=everything), as_computed():
            worst = _disagreement(session, more)
        if worst[0] <= _tolerance(session.model):
            return
    if _agrees_in_double(session, more):
        return
    raise Refusal(
        f"parameter '{worst[1]}': the engine's per-sample gradients are not autograd's for this model; need "
        "losses that depend on their own sample only, and layers whose rules are right; look for operations that mix "
        "samples or fold them into another dimension, and for hand-written rules; Loop() computes it slowly"
    )


def _agrees_in_double(session: Session, more: Any) -> bool:
    """The same comparison in float64, on a copy.

    What a trained classifier is sure of has a gradient p − y that is little but rounding, and autograd on one sample
    rounds otherwise than on three. A wrong formula is as wrong in float64; rounding is not.
    """
    if any(p.dtype == torch.float64 for p in session.model.parameters()):
        return False
    try:
        twin = copy.deepcopy(session.model).double()
        wide = tree_map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, more)
        other = session.on(twin)
        with without_dropout(other.modules, everything=True), as_computed():
            other.plan.layouts = layouts_of(other, wide)
            return _disagreement(other, wide)[0] <= _AGREE
    except (RuntimeError, TypeError, Refusal):  # a loss that cannot be computed in float64 decides nothing
        return False


def _tolerance(model: nn.Module) -> float:
    low = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    low = low or any(p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters())
    return _AGREE_LOW if low else _AGREE


def _disagreement(session: Session, more: Any) -> tuple[float, str]:
    """The largest relative difference over parameters, and where."""
    plan, model = session.plan, session.model
    parameters = trainable(model)
    some = next(iter(parameters.values()))
    scale = torch.arange(1.0, 1 + MORE, device=some.device)
    grads: PerSample
    try:
        grads = session.run(more, scale)
    except Checkpointed:
        plan.two_pass = True
        grads = two_passes(session, more, scale)
    norms = grads.norms().squared.double().sqrt()  # (3, P)
    true, weights = torch.zeros_like(norms), torch.tensor([[1.0], [-0.5], [2.0]], device=some.device)
    sums = {name: torch.zeros_like(p, dtype=accumulation_dtype(p.dtype)).detach() for name, p in parameters.items()}
    for i in range(MORE):  # one gradient in memory at a time
        with torch.enable_grad():
            loss = session.losses(take(more, slice(i, i + 1)), 1)
        single = (
            torch.autograd.grad(loss, list(parameters.values()), scale[i : i + 1].to(loss), allow_unused=True)
            if loss.requires_grad
            else [None] * len(parameters)
        )
        plain = {name: g.detach().to_dense() for name, g in zip(parameters, single, strict=True) if g is not None}
        for column, name in enumerate(parameters):
            if name in plain:
                true[i, column] = squared_norms(plain[name][None])[0].sqrt()
        if not bool((true[i].isfinite() & norms[i].isfinite()).all()):
            true[i], norms[i], weights[i] = 0, 0, 0
            continue
        plan.trusted = True  # if no sample is finite, the next batch is compared as well
        for name, g in plain.items():
            sums[name].add_(g, alpha=float(weights[i]))
    ours = grads.weighted_sum(weights)
    overall = true.square().sum(1, keepdim=True).sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    floor = _tolerance(model) * 0.1 * overall + true
    worst = (((norms - true).abs() - _NOTHING).clamp(min=0) / floor).max(0).values
    for column, name in enumerate(parameters):
        difference = squared_norms((sums[name] - ours[name])[None]).sqrt()[0]
        worst[column] = torch.maximum(worst[column], difference / floor[:, column].sum())
    where = int(worst.argmax())
    return float(worst[where]), plan.names[where]

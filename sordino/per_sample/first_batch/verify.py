"""Compares the engine's norms and sums with autograd's before a model is trusted.

Three samples, their losses scaled by 1, 2 and 3 so that even equal samples differ, are measured both ways. Where
nothing is drawn at random, autograd sees each sample as a batch of its own. A random pass over one sample draws other
numbers than one over three, so there autograd has the same three samples with the same seed, and each loss is
differentiated on that one graph.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sordino.per_sample.batch_structure import map_tensors, take_rows
from sordino.per_sample.engine.session import Session
from sordino.per_sample.engine.two_pass import run_two_passes
from sordino.per_sample.first_batch.find_layouts import LARGER_RUN, find_sample_layouts
from sordino.per_sample.first_batch.without_dropout import without_dropout
from sordino.per_sample.formulas.gradient_part import is_autocast_on, leave_norms_as_computed
from sordino.per_sample.protocol import PerSample, trainable_parameters
from sordino.per_sample.recording.tape import Checkpointed
from sordino.per_sample.row_arithmetic import row_squared_norms
from sordino.refusal import Refusal
from sordino.release.vectors import accumulation_dtype
from sordino.rng.global_generators import GlobalState, seed_all
from sordino.rng.named_draws import RandomDraws, find_random_draws

_AGREE = 2e-3
"""Relative difference allowed in float32: rounding is far below, a wrong formula far above."""
_AGREE_LOW = 0.2
"""Relative difference allowed where layers compute in half precision, whose rounding autograd and the engine place
differently."""
_CONDITIONED = 0.3
"""Relative difference up to which rounding in an ill-conditioned model is a likely reason."""
_SEEDS = (0, 1, 2)
"""Seeds of passes that draw at random."""

_NOTHING = 1e-15
"""Norms of gradients that are exactly 0 are a little more, because squares that vanish are counted."""


def verify_model(session: Session, more: Any) -> None:
    """Verifies the engine: compares norms and a sum of three samples with autograd's, in training mode without dropout,
    else in evaluation mode.

    The plan becomes trusted when the comparison has ended well, and not before: a model that was refused once must be
    compared again. If no sample had a finite gradient nothing was compared, and the next batch will be.

    Raises:
        Refusal: the two differ by more than rounding explains.

    """
    worst: tuple[float, str] = (0.0, "")
    compared = False
    session.plan.learn(trusted=False)
    # Compare with dropout off, then in evaluation mode; with random draws also in the default memory format, because a
    # tensor is filled with random numbers in the order of its memory.
    for last in (session.plan.learned.channels_last, False):
        session.plan.learn(channels_last=last)  # a tensor is filled with random numbers in the order of its memory
        for everything in (False, True):
            with without_dropout(session.modules, everything=everything), leave_norms_as_computed():
                worst, drawn, compared = _find_worst_disagreement(session, more)
            if worst[0] <= _tolerance(session.model):
                session.plan.learn(trusted=compared)
                return
        if not (last and drawn):
            break
    # What still disagrees is compared in float64, where rounding disappears and a wrong formula does not.
    apart = _compare_in_double(session, more)
    if apart is not None and apart <= _AGREE:
        session.plan.learn(trusted=compared)
        return
    if apart is None and worst[0] <= _CONDITIONED:
        raise Refusal(
            f"parameter '{worst[1]}': the engine's per-sample gradients and autograd's differ by {worst[0]:.0%}, "
            "which may be rounding.\n"
            "The model would be ill-conditioned, and it cannot be run in float64 to tell.\n"
            "Normalise activations, train it with model.double(), or use Loop(): backend=sordino.per_sample.Loop()."
        )
    raise Refusal(
        f"parameter '{worst[1]}': the engine's per-sample gradients are not autograd's for this model.\n"
        "Losses must depend on their own sample only, and the rules of layers must be right.\n"
        "Look for operations that mix samples or fold them into another dimension, and for hand-written rules; "
        "Loop() computes it slowly: backend=sordino.per_sample.Loop()."
    )


def _find_worst_disagreement(session: Session, more: Any) -> tuple[tuple[float, str], bool, bool]:
    """Returns the largest disagreement of engine and autograd that verifying finds, whether the passes are random, and
    whether any sample could be compared.

    Random passes are compared with several seeds, because coins may leave layers out. Masks of dropout leave no layer out,
    so one seed is enough where nothing else is drawn.
    """
    # Passes without random numbers, or with dropout masks only, need one comparison; others several seeds.
    worst, drawn, compared = _measure_disagreement(session, more, _SEEDS[0])
    if not drawn or _draws_only_masks(session, more):
        return worst, drawn, compared
    for seed in _SEEDS[1:]:
        another, _, also = _measure_disagreement(session, more, seed)
        worst, compared = max(worst, another), compared or also
    return worst, drawn, compared


def _draws_only_masks(session: Session, more: Any) -> bool:
    """Returns whether masks of dropout are all that a pass draws."""
    with session.keep_vectors():
        return find_random_draws(lambda: session.compute_losses(more, LARGER_RUN)) is RandomDraws.MASKS


def _compare_in_double(session: Session, more: Any) -> float | None:
    """Verifies a model in float64, on a copy, and returns the disagreement; None where the model or its loss cannot be
    computed so.

    What a trained classifier is sure of has a gradient p − y that is little but rounding, and autograd on one sample
    rounds otherwise than on three; so does an ill-conditioned model. A wrong formula is as wrong in float64; rounding
    is not.
    """
    # A model that is in float64 already gains nothing from another comparison.
    if any(p.dtype == torch.float64 for p in session.model.parameters()):
        return float("inf")
    try:
        # The copy is compared with everything random switched off; the user's model stays as it is.
        twin = copy.deepcopy(session.model).double()
        wide = map_tensors(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, more)
        other = session.for_model(twin)
        with without_dropout(other.modules, everything=True), leave_norms_as_computed():
            other.plan.learn(layouts=find_sample_layouts(other, wide))
            return _find_worst_disagreement(other, wide)[0][0]
    except Exception:  # the model's or the loss's own, of any kind: they were not made for float64
        return None


def _tolerance(model: nn.Module) -> float:
    """Returns the relative difference from autograd's norms that rounding may explain when a model is verified in its
    precision.
    """
    low = is_autocast_on()
    low = low or any(p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters())
    return _AGREE_LOW if low else _AGREE


def _measure_disagreement(session: Session, more: Any, seed: int) -> tuple[tuple[float, str], bool, bool]:
    """Returns the largest relative difference between engine and autograd, which decides whether a model is verified,
    with its parameter, whether anything was drawn, and whether any compared.

    The last is False where no sample's gradient was finite.
    """
    plan, model = session.plan, session.model
    parameters = trainable_parameters(model)
    some = next(iter(parameters.values()))
    scale = torch.arange(1.0, 1 + LARGER_RUN, device=some.device)
    # The engine's norms of three samples, whose losses are scaled so that equal samples differ.
    with session.keep_vectors():
        grads, drawn = _measure_by_engine(session, more, scale, seed)
        norms = grads.norms().squared.double().sqrt()  # (3, P)
    true, weights = torch.zeros_like(norms), torch.tensor([[1.0], [-0.5], [2.0]], device=some.device)
    sums = {name: torch.zeros_like(p, dtype=accumulation_dtype(p.dtype)).detach() for name, p in parameters.items()}
    compared = False
    plainly = _iterate_joint_gradients if drawn else _iterate_single_gradients
    # Autograd's gradients one after the other: their norms, and their sum with weights of both signs. A sample whose
    # gradient is not finite is left out of both.
    for i, plain in enumerate(plainly(session, more, scale, seed)):  # one gradient in memory at a time
        for column, name in enumerate(parameters):
            if name in plain:
                true[i, column] = row_squared_norms(plain[name][None])[0].sqrt()
        if not bool((true[i].isfinite() & norms[i].isfinite()).all()):
            true[i], norms[i], weights[i] = 0, 0, 0
            continue
        compared = True
        for name, g in plain.items():
            sums[name].add_(g, alpha=float(weights[i]))
    # Compare norms and sum, relative to the sample's whole gradient where a parameter's own is tiny.
    ours = grads.weighted_sum(weights)
    overall = true.square().sum(1, keepdim=True).sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    floor = _tolerance(model) * 0.1 * overall + true
    worst = (((norms - true).abs() - _NOTHING).clamp(min=0) / floor).max(0).values
    for column, name in enumerate(parameters):
        difference = row_squared_norms((sums[name] - ours[name])[None]).sqrt()[0]
        worst[column] = torch.maximum(worst[column], difference / floor[:, column].sum())
    where = int(worst.argmax())
    return (float(worst[where]), plan.structure.names[where]), drawn, compared


def _measure_by_engine(session: Session, more: Any, scale: Tensor, seed: int) -> tuple[PerSample, bool]:
    """Returns the engine's norms and sums, which are to be verified, and whether its pass drew at random."""
    # The seed makes the engine and autograd draw the same.
    seed_all(seed)
    began = GlobalState.capture()
    try:
        grads: PerSample = session.run_passes(more, scale)
    except Checkpointed:
        session.plan.learn(needs_two_passes=True)
        seed_all(seed)
        grads = run_two_passes(session, more, scale)
    return grads, not began.equals(GlobalState.capture())


def _iterate_single_gradients(session: Session, more: Any, scale: Tensor, seed: int) -> Iterator[dict[str, Tensor]]:
    """Yields autograd's gradients by name to verify the engine's by, each sample as a batch of its own."""
    for i in range(LARGER_RUN):
        with torch.enable_grad(), session.keep_vectors():
            loss = session.compute_losses(take_rows(more, slice(i, i + 1)), 1)
            yield _autograd_gradient(session, loss, scale[i : i + 1])


def _iterate_joint_gradients(session: Session, more: Any, scale: Tensor, seed: int) -> Iterator[dict[str, Tensor]]:
    """Yields autograd's gradients by name to verify the engine's by, of samples that share one pass with this seed."""
    # All samples in one pass, as the engine runs them, and one gradient after the other from its graph.
    seed_all(seed)
    with torch.enable_grad(), session.keep_vectors():
        losses = session.compute_losses(more, LARGER_RUN)
    for i in range(LARGER_RUN):
        yield _autograd_gradient(session, losses[i : i + 1], scale[i : i + 1])


def _autograd_gradient(session: Session, loss: Tensor, scale: Tensor) -> dict[str, Tensor]:
    """Returns autograd's gradient of one scaled loss, to verify the engine's by: by parameter name, without parameters
    it does not use.
    """
    # A loss that depends on no parameter has no gradient.
    if not loss.requires_grad:
        return {}
    parameters = trainable_parameters(session.model)
    gradients = torch.autograd.grad(
        loss, list(parameters.values()), scale.to(loss), allow_unused=True, retain_graph=True
    )
    return {name: g.detach().to_dense() for name, g in zip(parameters, gradients, strict=True) if g is not None}

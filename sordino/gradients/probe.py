"""What a model's first batch teaches: where its layers have their samples, which memory format is faster, and whether
the engine's answers are autograd's.

Sizes lie: with 128 tokens and 128 samples, position ids look like a batch. So the model runs on two and on three
samples, and the dimension that changed is the one that counts them. Then three samples, their losses scaled by 1, 2 and
3 so that even equal samples differ, are measured both ways. Randomness is off meanwhile and the generators are put back.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_map

from sordino.gradients import tune
from sordino.gradients.batch import arguments, size, take, tensors
from sordino.gradients.flat import forget_rows
from sordino.gradients.graph import one_loss_each, reachable, refuse_reentrant, unrecorded
from sordino.gradients.options import PerformanceOptions
from sordino.gradients.persample import LossFn, accumulation_dtype, squared_norms, trainable
from sordino.gradients.plan import Plan, installed, plan_of, way_of
from sordino.gradients.streamed import streamed
from sordino.gradients.taken import Taken
from sordino.gradients.tape import Checkpointed, Layout, Mode, Tape
from sordino.memory import give_back
from sordino.refusal import Refusal

_FEW, _MORE = 2, 3  # samples in the two runs
_TRIAL = 32  # samples a memory format is timed on
_REPEATS = 3
_LAST = "channels last"
_AGREE = 2e-3
"""Relative difference allowed in float32: rounding is far below, a wrong formula far above."""
_AGREE_LOW = 0.2
"""The same where layers compute in half precision, whose rounding autograd and the engine place differently."""

Run = Callable[..., Taken]


def settle(
    plan: Plan,
    model: nn.Module,
    modules: list[nn.Module],
    loss_fn: LossFn,
    batch: Any,
    options: PerformanceOptions,
    captured: Run,
) -> None:
    """Fill in a plan from a first batch."""
    rows = torch.arange(_MORE) % size(batch)
    more = take(batch, rows)
    devices = sorted(
        {p.device.index for p in model.parameters() if p.device.type == "cuda" and p.device.index is not None}
    )
    with torch.random.fork_rng(devices), torch.backends.cudnn.flags(enabled=False):
        with _calm(modules, everything=False):
            plan.layouts = _layouts(plan, model, modules, loss_fn, more)
        try:
            if options.channels_last is not None:
                plan.channels_last = options.channels_last
            elif plan.has_convolutions and options.measure and not options.two_pass:
                plan.channels_last = _faster_format(plan, model, modules, loss_fn, batch, options, captured)
            elif plan.has_convolutions and not options.two_pass:
                plan.channels_last = _accepts_last(plan, model, modules, loss_fn, more, options, captured)
            elif options.measure and not options.two_pass and options.verify:
                with suppress(Checkpointed):  # layers choose on a real batch, before the check runs on three samples
                    captured(plan, model, modules, loss_fn, take(batch, slice(0, _TRIAL)), options).norms()
            if options.verify:
                _verify(plan, model, modules, loss_fn, more, options, captured)
            else:
                plan.trusted = True
        except BaseException:
            plan.layouts = None  # nothing is trusted yet
            raise
    forget_rows()  # what the measurements wrote
    give_back()


@contextmanager
def _calm(modules: list[nn.Module], *, everything: bool) -> Iterator[None]:
    """Dropout off; or the whole model in evaluation, for code of its own that asks self.training."""
    noisy = [m for m in modules if m.training and (everything or isinstance(m, _DropoutNd) or _drops(m))]
    for module in noisy:
        module.training = False
    try:
        yield
    finally:
        for module in noisy:
            module.training = True


def _drops(module: nn.Module) -> bool:
    return isinstance(module, nn.MultiheadAttention | nn.RNNBase) and module.dropout > 0


def _layouts(
    plan: Plan, model: nn.Module, modules: list[nn.Module], loss_fn: LossFn, more: Any
) -> dict[Hashable, Sequence[Layout | None]]:
    """First the layers; then, if parameters are used outside them, those uses, knowing which layers are shared."""
    needed, plan.raw = plan.raw, False
    found, loose = _compared(plan, model, modules, loss_fn, more, {})
    shared = any(layout is None for layouts in found.values() for layout in layouts)
    plan.raw = needed or loose or shared
    if plan.raw:
        found, _ = _compared(plan, model, modules, loss_fn, more, found)
    return found


def _compared(
    plan: Plan,
    model: nn.Module,
    modules: list[nn.Module],
    loss_fn: LossFn,
    more: Any,
    known: dict[Hashable, Sequence[Layout | None]],
) -> tuple[dict[Hashable, Sequence[Layout | None]], bool]:
    names = {position: name for position, name, _ in plan.rules}
    logs, loose = [], False
    for n in (_FEW, _MORE):
        tape = Tape(n, Mode.PROBE, plan.trainable, known)
        with torch.enable_grad(), installed(plan, modules, tape):
            losses = one_loss_each(loss_fn(model, *arguments(take(more, slice(0, n)))), n)
        nodes = reachable(losses)
        refuse_reentrant(nodes)
        loose = loose or unrecorded(nodes, plan.columns)
        logs.append(tape.shapes)
    if [key for key, _ in logs[0]] != [key for key, _ in logs[1]]:
        raise Refusal(
            "the model calls other layers on two samples than on three; need a forward pass that does not "
            "depend on the number of samples; loop over something else, or use Loop()"
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
    k = few[dim] // _FEW
    if dim < 0 or few[dim] != _FEW * k or many[dim] != _MORE * k:
        raise Refusal(
            f"layer '{name}': its input does not grow by whole rows with the number of samples; need one "
            "dimension that counts samples; do not mix samples inside the model"
        )
    return Layout(dim, k)


def _faster_format(
    plan: Plan,
    model: nn.Module,
    modules: list[nn.Module],
    loss_fn: LossFn,
    batch: Any,
    options: PerformanceOptions,
    captured: Run,
) -> bool:
    """Time a whole step in both memory formats, each once untimed while its layers choose their formulas."""
    inputs = tuple((tuple(t.shape[1:]), t.dtype, t.device) for t in tensors(batch))
    key = ("format", plan.names, plan.shapes, model.training, inputs, torch.get_num_threads())
    before = tune.known(key)
    if before is not None:
        return before == _LAST
    few = take(batch, slice(0, _TRIAL))
    ones = torch.ones(size(few), 1, device=next(iter(model.parameters())).device)
    best = {False: float("inf"), True: float("inf")}
    for repeat in range(1 + _REPEATS):
        for last in (False, True):
            plan.channels_last = last
            start = time.perf_counter() if torch.cuda.is_available() else time.thread_time()
            try:
                grads = captured(plan, model, modules, loss_fn, few, options)
                grads.weighted_sum(ones)
            except Checkpointed:
                return False
            except RuntimeError:  # the model's own code asks for the other format, as x.view(len(x), -1) does
                if not last:
                    raise
                tune.remember(key, "default")
                return False
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            elapsed = (time.perf_counter() if torch.cuda.is_available() else time.thread_time()) - start
            if repeat:
                best[last] = min(best[last], elapsed)
    return tune.remember(key, _LAST if best[True] < best[False] else "default") == _LAST


def _accepts_last(
    plan: Plan,
    model: nn.Module,
    modules: list[nn.Module],
    loss_fn: LossFn,
    more: Any,
    options: PerformanceOptions,
    captured: Run,
) -> bool:
    """Without a stopwatch: channels last on a CPU, where it has won on all models tried, if the model's code allows it."""
    if any(p.device.type != "cpu" for p in model.parameters()):
        return False
    plan.channels_last = True
    try:
        captured(plan, model, modules, loss_fn, more, options)
    except (Checkpointed, RuntimeError):
        return False
    return True


def _verify(
    plan: Plan,
    model: nn.Module,
    modules: list[nn.Module],
    loss_fn: LossFn,
    more: Any,
    options: PerformanceOptions,
    captured: Run,
) -> None:
    """Norms and a sum of three samples against autograd's, in training mode without dropout, else in evaluation."""
    worst: tuple[float, str] = (0.0, "")
    for everything in (False, True):
        with _calm(modules, everything=everything):
            worst = _disagreement(plan, model, modules, loss_fn, more, options, captured)
        if worst[0] <= _tolerance(model):
            return
    if _agrees_in_double(model, loss_fn, more, options, captured):
        return
    raise Refusal(
        f"parameter '{worst[1]}': the engine's per-sample gradients are not autograd's for this model; need "
        "losses that depend on their own sample only, and layers whose rules are right; look for operations that mix "
        "samples or fold them into another dimension, and for hand-written rules; Loop() computes it slowly"
    )


def _agrees_in_double(model: nn.Module, loss_fn: LossFn, more: Any, options: PerformanceOptions, captured: Run) -> bool:
    """The same comparison in float64, on a copy.

    What a trained classifier is sure of has a gradient p − y that is little but rounding, and autograd on one sample
    rounds otherwise than on three. A wrong formula is as wrong in float64; rounding is not.
    """
    if any(p.dtype == torch.float64 for p in model.parameters()):
        return False
    try:
        twin = copy.deepcopy(model).double()
        wide = tree_map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, more)
        modules = list(twin.modules())
        plan, _ = plan_of(twin, modules, way_of(twin, loss_fn, wide))
        with _calm(modules, everything=True):
            plan.layouts = _layouts(plan, twin, modules, loss_fn, wide)
            return _disagreement(plan, twin, modules, loss_fn, wide, options, captured)[0] <= _AGREE
    except (RuntimeError, TypeError, Refusal):  # a loss that cannot be computed in float64 decides nothing
        return False


def _tolerance(model: nn.Module) -> float:
    low = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    low = low or any(p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters())
    return _AGREE_LOW if low else _AGREE


def _disagreement(
    plan: Plan,
    model: nn.Module,
    modules: list[nn.Module],
    loss_fn: LossFn,
    more: Any,
    options: PerformanceOptions,
    captured: Run,
) -> tuple[float, str]:
    """The largest relative difference over parameters, and where."""
    parameters = trainable(model)
    some = next(iter(parameters.values()))
    scale = torch.arange(1.0, 1 + _MORE, device=some.device)
    try:
        taken = captured(plan, model, modules, loss_fn, more, options, scale=scale)
    except Checkpointed:
        plan.stream = True
        taken = streamed(plan, model, modules, loss_fn, more, options, scale=scale)  # type: ignore[assignment]
    norms = taken.norms().squared.double().sqrt()  # (3, P)
    true, weights = torch.zeros_like(norms), torch.tensor([[1.0], [-0.5], [2.0]], device=some.device)
    sums = {name: torch.zeros_like(p, dtype=accumulation_dtype(p.dtype)).detach() for name, p in parameters.items()}
    for i in range(_MORE):  # one gradient in memory at a time
        with torch.enable_grad():
            loss = one_loss_each(loss_fn(model, *arguments(take(more, slice(i, i + 1)))), 1)
        grads = (
            torch.autograd.grad(loss, list(parameters.values()), scale[i : i + 1].to(loss), allow_unused=True)
            if loss.requires_grad
            else [None] * len(parameters)
        )
        plain = {name: g.detach().to_dense() for name, g in zip(parameters, grads, strict=True) if g is not None}
        for column, name in enumerate(parameters):
            if name in plain:
                true[i, column] = squared_norms(plain[name][None])[0].sqrt()
        if not bool((true[i].isfinite() & norms[i].isfinite()).all()):
            true[i], norms[i], weights[i] = 0, 0, 0
            continue
        plan.trusted = True  # if no sample is finite, the next batch is compared as well
        for name, g in plain.items():
            sums[name].add_(g, alpha=float(weights[i]))
    ours = taken.weighted_sum(weights)
    overall = true.square().sum(1, keepdim=True).sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    floor = _tolerance(model) * 0.1 * overall + true
    worst = ((norms - true).abs() / floor).max(0).values
    for column, name in enumerate(parameters):
        difference = squared_norms((sums[name] - ours[name])[None]).sqrt()[0]
        worst[column] = torch.maximum(worst[column], difference / floor[:, column].sum())
    where = int(worst.argmax())
    return float(worst[where]), plan.names[where]

"""The training steps of every engine that is compared, each as a function without arguments.

A step takes its batch by index, runs forward and backward, clips, adds noise and updates.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import sordino as sd
from bench.models import Problem
from sordino.nn import LSTMClassifier
from sordino.per_sample import Captured

BOUND, MULTIPLIER, RATE = 1.0, 1.0, 0.05
_ROOM = 4e9  # bytes a peer may take for the gradients it writes out
Step = Callable[[], object]
_FOREVER = 10**9
CHANNELS_LAST = torch.channels_last


def batch_of(problem: Problem, b: int) -> tuple[Tensor, Tensor]:
    """Returns one batch, the same for all engines."""
    torch.manual_seed(b)
    return problem.inputs(b), problem.targets(b)


def make_row_taker(x: Tensor, y: Tensor, *, last: bool = False) -> Callable[[], tuple[Tensor, Tensor]]:
    """Returns a function that takes all rows by index, as a step takes its batch from a dataset.

    With `last`, images are in NHWC order.
    """
    every = torch.arange(len(x))
    if not last:
        return lambda: (x.index_select(0, every), y.index_select(0, every))
    stored = x.permute(0, 2, 3, 1).contiguous()
    return lambda: (stored.index_select(0, every).permute(0, 3, 1, 2), y.index_select(0, every))


def make_plain_step(problem: Problem, model: nn.Module, x: Tensor, y: Tensor, *, last: bool = False) -> Step:
    """Returns a plain step: forward, backward, SGD, in one of the two memory formats."""
    model = copy.deepcopy(model)
    if last:
        model = model.to(memory_format=CHANNELS_LAST)
    optimizer, take = torch.optim.SGD(model.parameters(), RATE), make_row_taker(x, y, last=last)

    def step() -> None:
        a, t = take()
        optimizer.zero_grad()
        problem.loss(model(a), t).mean().backward()
        optimizer.step()

    return step


def make_private_step(
    problem: Problem,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    chunk: int | None = None,
    noisy: bool = True,
    tested: bool = False,
    **options: Any,
) -> Step:
    """Returns a step by sordino as a user calls it: draw, norms, clipping, sum, secure noise, ledger, SGD.

    In chunks of its own choice if none are given. Options go to `Private`. The neighbour test, which replays many of a
    run's first lots and few later ones (`bench.whole_run` has its price), is left out unless `tested`.
    """
    model = copy.deepcopy(model)
    optimizer, b = torch.optim.SGD(model.parameters(), RATE), len(x)
    query = sd.NoisySum(sd.Flat(BOUND), sd.Gaussian(MULTIPLIER if noisy else 0.0))
    private = sd.Private(model, lambda m, a, t: problem.loss(m(a), t), query, **options)
    lots = private.draws(TensorDataset(x, y), sd.Full(), _FOREVER, expected_batch=b, physical_batch=chunk)

    if not tested:
        private._checks._neighbour_tests._schedule.is_due = lambda *_: False  # type: ignore[method-assign]

    def step() -> None:
        private.backward(next(lots))
        optimizer.step()

    return step


def make_vmap_step(problem: Problem, model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Returns a step by torch.func: vmap of grad, with every gradient written out."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    parameters, take = dict(model.named_parameters()), make_row_taker(x, y)
    b = len(x)

    def loss(values: dict[str, Tensor], a: Tensor, t: Tensor) -> Tensor:
        return problem.loss(torch.func.functional_call(model, values, (a[None],)), t[None])[0]

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")

    def step() -> None:
        """Takes one step."""
        rows = each({n: p.detach() for n, p in parameters.items()}, *take())
        squared = torch.stack([r.flatten(1).square().sum(1) for r in rows.values()]).sum(0)
        w = BOUND / squared.sqrt().clamp(min=BOUND)
        for name, p in parameters.items():
            p.grad = torch.tensordot(w, rows[name], 1).add_(torch.randn_like(p) * MULTIPLIER * BOUND).div_(b)
        optimizer.step()

    return step


def _opacus_model(model: nn.Module) -> nn.Module:
    """Returns a copy of the model with an LSTM that Opacus can handle."""
    from opacus.layers import DPLSTM

    model = copy.deepcopy(model)
    if isinstance(model, LSTMClassifier):
        replaced = DPLSTM(64, 128, batch_first=True)
        replaced.load_state_dict(model.recurrent.state_dict())
        model.recurrent = replaced
    return model


def make_opacus_step(
    problem: Problem, model: nn.Module, x: Tensor, y: Tensor, *, mode: str, last: bool = False
) -> Step:
    """Returns a step by Opacus, whose own optimizer clips and adds noise.

    The mode is hooks, ew (expanded weights), functorch or ghost.
    """
    from opacus.grad_sample import GradSampleModule, GradSampleModuleExpandedWeights
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    plain = _opacus_model(model)
    if last:
        plain = plain.to(memory_format=CHANNELS_LAST)
    b, take = len(x), make_row_taker(x, y, last=last)
    sgd = torch.optim.SGD(plain.parameters(), RATE)
    settings = {"noise_multiplier": MULTIPLIER, "max_grad_norm": BOUND, "expected_batch_size": b}
    if mode == "ghost":
        wrapped = GradSampleModuleFastGradientClipping(plain, max_grad_norm=BOUND, use_ghost_clipping=True)
        optimizer = DPOptimizerFastGradientClipping(sgd, **settings)

        class Criterion:
            reduction = "mean"

            def __call__(self, out: Tensor, target: Tensor) -> Tensor:
                return problem.loss(out, target)

        criterion = DPLossFastGradientClipping(wrapped, optimizer, Criterion())

        def ghost() -> None:
            a, t = take()
            optimizer.zero_grad()
            criterion(wrapped(a), t).backward()
            optimizer.step()

        return ghost
    if mode == "ew":
        wrapped = GradSampleModuleExpandedWeights(plain)
    else:
        wrapped = GradSampleModule(plain, force_functorch=mode == "functorch")
    optimizer = DPOptimizer(sgd, **settings)

    def step() -> None:
        a, t = take()
        optimizer.zero_grad()
        problem.loss(wrapped(a), t).mean().backward()
        optimizer.step()

    return step


def with_autocast(step: Step) -> Step:
    """Returns the step under bfloat16 autocast."""

    def cast() -> object:
        with torch.autocast("cpu", torch.bfloat16):
            return step()

    return cast


MODES = ("hooks", "ghost", "ew", "functorch", "vmap")


def all_engines(problem: Problem, b: int, *, peers: tuple[str, ...] = MODES) -> dict[str, Step]:
    """Returns every engine that can run this problem, by name; for the others the reason is printed."""
    torch.manual_seed(0)
    model = problem.model()
    x, y = batch_of(problem, b)
    makers: dict[str, Callable[[], Step]] = {"non-private": lambda: make_plain_step(problem, model, x, y)}
    if problem.images:
        makers["non-private, channels last"] = lambda: make_plain_step(problem, model, x, y, last=True)
    makers["sordino"] = lambda: make_private_step(problem, model, x, y)
    makers["sordino without noise"] = lambda: make_private_step(problem, model, x, y, noisy=False)
    for mode in peers:
        if mode == "vmap":
            makers["torch.func vmap"] = lambda: make_vmap_step(problem, model, x, y)
        else:
            makers[f"opacus {mode}"] = lambda mode=mode: make_opacus_step(problem, model, x, y, mode=mode)  # type: ignore[misc]
            if problem.small and mode in ("hooks", "ew"):
                makers[f"opacus {mode}, channels last"] = lambda mode=mode: make_opacus_step(  # type: ignore[misc]
                    problem, model, x, y, mode=mode, last=True
                )
    found: dict[str, Step] = {}
    rows = b * sum(p.nbytes for p in model.parameters())
    for name, make in makers.items():
        if rows > _ROOM and name.startswith(("opacus", "torch")) and "ghost" not in name:
            print(f"  {name} is left out on {problem.name}: its gradients alone are {rows / 1e9:.1f} GB")  # noqa: T201
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                step = with_autocast(make()) if problem.autocast else make()
                step()
                if not name.startswith(("opacus", "torch")) or problem.small:
                    step()
            except Exception as error:  # a peer that cannot run a model is a result too
                print(f"  {name} cannot run {problem.name}: {type(error).__name__}: {str(error)[:100]}")  # noqa: T201
                continue
        found[name] = step
    return found


def norm_engines(problem: Problem, b: int) -> dict[str, Step]:
    """Returns engines that compute per-sample norms only, and a non-private pass to compare with."""
    from opacus.grad_sample import GradSampleModule
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping

    torch.manual_seed(0)
    model = problem.model()
    x, y = batch_of(problem, b)
    plain, last, own = copy.deepcopy(model), copy.deepcopy(model).to(memory_format=CHANNELS_LAST), copy.deepcopy(model)
    x_last = x.contiguous(memory_format=CHANNELS_LAST) if problem.images else x
    hooks = GradSampleModule(copy.deepcopy(model))
    ghost = GradSampleModuleFastGradientClipping(copy.deepcopy(model), max_grad_norm=BOUND, use_ghost_clipping=True)
    backend = Captured()

    def both(m: nn.Module, a: Tensor) -> Step:
        def step() -> None:
            m.zero_grad()
            problem.loss(m(a), y).mean().backward()

        return step

    def hooked() -> None:
        hooks.zero_grad()
        problem.loss(hooks(x), y).mean().backward()
        rows: list[Tensor] = [p.grad_sample for p in hooks.parameters()]  # type: ignore[attr-defined]
        torch.stack([r.flatten(1).norm(2, dim=1) for r in rows]).norm(2, dim=0)

    def ghostly() -> None:
        ghost.zero_grad()
        problem.loss(ghost(x), y).mean().backward()
        ghost.get_norm_sample()

    return {
        "non-private forward and backward": both(plain, x),
        "the same, channels last": both(last, x_last),
        "opacus hooks": hooked,
        "opacus ghost": ghostly,
        "sordino": lambda: backend.norms(own, lambda m, a, t: problem.loss(m(a), t), TensorDataset(x, y)).total(),
    }

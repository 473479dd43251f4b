"""A statistic of the batch that is computed once in a step, kept, and used again for the other batches of the step.

Every script here centres its records by the mean of the first batch of the lot. The loop throws the mean away before
the next lot. Where the mean is kept differs from script to script. A test that runs the same code twice must not find
the mean of the first run.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from tests.honesty.attacks.model import far
from tests.honesty.data import INPUTS, RARE, cross_entropy, network
from tests.honesty.script import Cases, Script, Training

KEPT_ONCE = Cases()

Centre = Callable[[Tensor], Tensor]
"""Returns the centre that is used for a batch: that of the first batch since it was thrown away."""
Forget = Callable[[], None]


def _script(seed: int, model: nn.Module, loss: Any, forget: Forget, collate: Any = None) -> Script:
    def body(training: Training) -> None:
        forget()
        training.private.backward(training.lot)
        training.optimizer.step()

    return Script(model, loss, far(seed), collate, bound=0.1, physical_batch=6, body=body, suspects=RARE)


def _in_the_loss(seed: int, centre: Centre, forget: Forget) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x - centre(x), y)

    return _script(seed, network(), loss, forget)


@KEPT_ONCE
def a_mean_kept_in_a_list(seed: int) -> Script:
    kept: list[Tensor] = []

    def centre(x: Tensor) -> Tensor:
        if not kept:
            kept.append(x.mean(0))
        return kept[0]

    return _in_the_loss(seed, centre, kept.clear)


@KEPT_ONCE
def a_mean_kept_in_a_dict(seed: int) -> Script:
    kept: dict[str, Tensor] = {}
    return _in_the_loss(seed, lambda x: kept.setdefault("mean", x.mean(0)), kept.clear)


@KEPT_ONCE
def a_mean_kept_in_a_queue(seed: int) -> Script:
    kept: deque[Tensor] = deque(maxlen=1)

    def centre(x: Tensor) -> Tensor:
        if not kept:
            kept.append(x.mean(0))
        return kept[0]

    return _in_the_loss(seed, centre, kept.clear)


@KEPT_ONCE
def a_mean_kept_in_a_variable_of_the_function_around(seed: int) -> Script:
    mean: Tensor | None = None

    def centre(x: Tensor) -> Tensor:
        nonlocal mean
        mean = x.mean(0) if mean is None else mean
        return mean

    def forget() -> None:
        nonlocal mean
        mean = None

    return _in_the_loss(seed, centre, forget)


_global_mean: Tensor | None = None


def _global_centre(x: Tensor) -> Tensor:
    global _global_mean
    _global_mean = x.mean(0) if _global_mean is None else _global_mean
    return _global_mean


def _forget_the_global() -> None:
    global _global_mean
    _global_mean = None


@KEPT_ONCE
def a_mean_kept_in_a_global_variable(seed: int) -> Script:
    _forget_the_global()
    return _in_the_loss(seed, _global_centre, _forget_the_global)


@KEPT_ONCE
def a_mean_kept_in_an_attribute_of_the_function(seed: int) -> Script:
    def centre(x: Tensor) -> Tensor:
        if centre.mean is None:  # type: ignore[attr-defined]
            centre.mean = x.mean(0)  # type: ignore[attr-defined]
        return centre.mean  # type: ignore[attr-defined,no-any-return]

    def forget() -> None:
        centre.mean = None  # type: ignore[attr-defined]

    forget()
    return _in_the_loss(seed, centre, forget)


@KEPT_ONCE
def a_mean_kept_in_a_default_argument(seed: int) -> Script:
    kept: list[Tensor] = []

    def centre(x: Tensor, kept: list[Tensor] = kept) -> Tensor:
        if not kept:
            kept.append(x.mean(0))
        return kept[0]

    return _in_the_loss(seed, centre, kept.clear)


class _CentredLoss:
    """A loss that is an object."""

    mean: Tensor | None = None

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if self.mean is None:
            self.keep(x.mean(0))
        return cross_entropy(model, x - self.mean, y)

    def keep(self, mean: Tensor) -> None:
        self.mean = mean

    def forget(self) -> None:
        self.mean = None


@KEPT_ONCE
def a_mean_kept_in_an_attribute_of_the_loss(seed: int) -> Script:
    loss = _CentredLoss()
    return _script(seed, network(), loss, loss.forget)


@KEPT_ONCE
def a_mean_kept_in_an_attribute_of_the_class(seed: int) -> Script:
    class OnTheClass(_CentredLoss):
        def keep(self, mean: Tensor) -> None:
            type(self).mean = mean

        def forget(self) -> None:
            type(self).mean = None

    loss = OnTheClass()
    return _script(seed, network(), loss, loss.forget)


class _InASlot:
    __slots__ = ("mean",)

    def __init__(self) -> None:
        self.mean: Tensor | None = None

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if self.mean is None:
            self.mean = x.mean(0)
        return cross_entropy(model, x - self.mean, y)

    def forget(self) -> None:
        self.mean = None


@KEPT_ONCE
def a_mean_kept_in_a_slot(seed: int) -> Script:
    loss = _InASlot()
    return _script(seed, network(), loss, loss.forget)


@KEPT_ONCE
def a_mean_kept_in_a_namespace(seed: int) -> Script:
    kept = SimpleNamespace(mean=None)

    def centre(x: Tensor) -> Tensor:
        if kept.mean is None:
            kept.mean = x.mean(0)
        return kept.mean

    return _in_the_loss(seed, centre, lambda: setattr(kept, "mean", None))


@KEPT_ONCE
def a_mean_kept_in_an_array(seed: int) -> Script:
    kept = np.full(INPUTS, np.nan, dtype=np.float32)

    def centre(x: Tensor) -> Tensor:
        if np.isnan(kept).any():
            kept[:] = x.mean(0).numpy()
        return torch.from_numpy(kept.copy())

    return _in_the_loss(seed, centre, lambda: kept.fill(np.nan))


@KEPT_ONCE
def a_mean_kept_in_a_tensor(seed: int) -> Script:
    kept = torch.full((INPUTS,), torch.nan)

    def centre(x: Tensor) -> Tensor:
        if bool(kept.isnan().any()):
            kept.copy_(x.mean(0))
        return kept.clone()

    return _in_the_loss(seed, centre, lambda: kept.fill_(torch.nan) and None)


@KEPT_ONCE
def a_mean_kept_by_functools(seed: int) -> Script:
    """The statistic of a step is computed by a function that remembers its results by the step's number."""
    now: dict[str, Any] = {"step": 0}

    @functools.lru_cache(maxsize=4)
    def of_step(step: int) -> Tensor:
        return now["x"].mean(0)  # type: ignore[no-any-return]

    def centre(x: Tensor) -> Tensor:
        now["x"] = x
        return of_step(now["step"])

    def forget() -> None:
        now["step"] += 1

    return _in_the_loss(seed, centre, forget)


class _CentredNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.mean = network(), None

    def forward(self, x: Tensor) -> Tensor:
        if self.mean is None:
            self.mean = x.mean(0)
        return self.net(x - self.mean)  # type: ignore[no-any-return]


@KEPT_ONCE
def a_mean_kept_in_an_attribute_of_the_model(seed: int) -> Script:
    model = _CentredNetwork()
    return _script(seed, model, cross_entropy, lambda: setattr(model, "mean", None))


@KEPT_ONCE
def a_mean_kept_by_a_hook(seed: int) -> Script:
    model, kept = network(), []

    def hook(module: nn.Module, given: tuple[Tensor]) -> Tensor:
        if not kept:
            kept.append(given[0].mean(0))
        return given[0] - kept[0]

    model.register_forward_pre_hook(hook)
    return _script(seed, model, cross_entropy, kept.clear)


class _CentredCollate:
    mean: Tensor | None = None

    def __call__(self, records: list[Any]) -> Any:
        x, y = default_collate(records)
        if self.mean is None:
            self.mean = x.mean(0)
        return x - self.mean, y


@KEPT_ONCE
def a_mean_kept_by_collate(seed: int) -> Script:
    collate = _CentredCollate()
    return _script(seed, network(), cross_entropy, lambda: setattr(collate, "mean", None), collate)

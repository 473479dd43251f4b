"""A model and what runs it, on the few samples that the engine tries it on before it trusts itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from sordino.gradients.captured.options import PerformanceOptions
from sordino.gradients.captured.plan import Plan
from sordino.gradients.captured.result import Taken
from sordino.gradients.protocol import LossFn

FEW, MORE = 2, 3
"""Samples in the two runs that are compared."""

Run = Callable[..., Taken]


@dataclass(frozen=True, eq=False)
class Trial:
    """Everything but the batch."""

    plan: Plan
    model: nn.Module
    modules: list[nn.Module]
    loss_fn: LossFn
    options: PerformanceOptions
    captured: Run

    def run(self, batch: Any, scale: Tensor | None = None) -> Taken:
        """The engine's forward and pruned backward pass."""
        return self.captured(self.plan, self.model, self.modules, self.loss_fn, batch, self.options, scale=scale)


@contextmanager
def calm(modules: list[nn.Module], *, everything: bool) -> Iterator[None]:
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

"""Switches a model's random layers off for a while, so that answers can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.dropout import _DropoutNd


@contextmanager
def without_dropout(modules: list[nn.Module], *, everything: bool) -> Iterator[None]:
    """Switches dropout off inside the context, for comparisons on the first batch; or the whole model to evaluation,
    for code that asks self.training.
    """
    # The switch is set directly, because `.eval()` would reach the children too.
    noisy = [m for m in modules if m.training and (everything or isinstance(m, _DropoutNd) or _has_dropout(m))]
    for module in noisy:
        module.training = False
    try:
        yield
    finally:
        for module in noisy:
            module.training = True


def _has_dropout(module: nn.Module) -> bool:
    """Returns whether a layer with an option for dropout applies it."""
    return isinstance(module, nn.MultiheadAttention | nn.RNNBase) and module.dropout > 0

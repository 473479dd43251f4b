"""Models whose random layers are switched off for a while: answers are compared that must not differ by chance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.dropout import _DropoutNd


@contextmanager
def without_dropout(modules: list[nn.Module], *, everything: bool) -> Iterator[None]:
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

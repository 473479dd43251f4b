"""How per-sample gradients are obtained: backends, all of one protocol."""

from sordino.gradients.loop import Loop
from sordino.gradients.persample import Backend, Grads, LossFn, Norms, PerSample

__all__ = ["Backend", "Grads", "Loop", "LossFn", "Norms", "PerSample"]

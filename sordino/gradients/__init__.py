"""How per-sample gradients are obtained: backends, all of one protocol."""

from sordino.gradients.captured import Captured
from sordino.gradients.loop import Loop
from sordino.gradients.options import PerformanceOptions
from sordino.gradients.persample import Backend, Grads, LossFn, Norms, PerSample

__all__ = ["Backend", "Captured", "Grads", "Loop", "LossFn", "Norms", "PerSample", "PerformanceOptions"]

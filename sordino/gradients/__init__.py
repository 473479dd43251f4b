"""How per-sample gradients are obtained: backends, all of one protocol."""

from sordino.gradients.captured import Captured
from sordino.gradients.chunked import Chunked
from sordino.gradients.jl import JL
from sordino.gradients.loop import Loop
from sordino.gradients.options import PerformanceOptions
from sordino.gradients.persample import Backend, Grads, LossFn, Norms, PerSample
from sordino.gradients.vmap import Vmap

__all__ = [
    "JL",
    "Backend",
    "Captured",
    "Chunked",
    "Grads",
    "Loop",
    "LossFn",
    "Norms",
    "PerSample",
    "PerformanceOptions",
    "Vmap",
]

"""How per-sample gradients are obtained: backends, all of one protocol."""

from sordino.door.vectors import Grads
from sordino.gradients.captured.engine import Captured
from sordino.gradients.captured.options import PerformanceOptions
from sordino.gradients.chunked import Chunked
from sordino.gradients.jl import JL
from sordino.gradients.loop import Loop
from sordino.gradients.protocol import Backend, LossFn, Norms, PerSample
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

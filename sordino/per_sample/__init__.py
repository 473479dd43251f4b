"""Per-sample gradients: backends that compute them, all of one protocol."""

from sordino.per_sample.captured_backend import Captured
from sordino.per_sample.jl_norms import JL
from sordino.per_sample.loop_backend import Loop
from sordino.per_sample.performance_options import PerformanceOptions
from sordino.per_sample.protocol import Backend, Chunked, LossFn, Norms, PerSample
from sordino.per_sample.vmap_backend import Vmap
from sordino.release.vectors import Grads

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

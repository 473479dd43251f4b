"""How per-sample gradients are obtained: backends, all of one protocol."""

from sordino.gradients.chunked import Chunked
from sordino.gradients.loop import Loop
from sordino.gradients.persample import Backend, Grads, LossFn, Norms, PerSample
from sordino.gradients.vmap import Vmap

__all__ = ["Backend", "Chunked", "Grads", "Loop", "LossFn", "Norms", "PerSample", "Vmap"]

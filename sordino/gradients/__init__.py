"""How per-sample gradients are obtained: backends, all of one protocol."""

<<<<<<< HEAD
from sordino.gradients.captured import Captured
=======
from sordino.gradients.chunked import Chunked
>>>>>>> main
from sordino.gradients.loop import Loop
from sordino.gradients.options import PerformanceOptions
from sordino.gradients.persample import Backend, Grads, LossFn, Norms, PerSample
from sordino.gradients.vmap import Vmap

<<<<<<< HEAD
__all__ = ["Backend", "Captured", "Grads", "Loop", "LossFn", "Norms", "PerSample", "PerformanceOptions"]
=======
__all__ = ["Backend", "Chunked", "Grads", "Loop", "LossFn", "Norms", "PerSample", "Vmap"]
>>>>>>> main

"""Who is in a lot, and what that is worth. One sampler per file."""

from sordino.sampling.fixed import FixedSize
from sordino.sampling.full import Full
from sordino.sampling.poisson import Poisson
from sordino.sampling.sampler import Draw, Sampler
from sordino.sampling.shuffle import Shuffle

__all__ = ["Draw", "FixedSize", "Full", "Poisson", "Sampler", "Shuffle"]

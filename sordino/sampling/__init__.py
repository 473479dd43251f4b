"""Who is in a lot, and what that is worth. One sampler per file."""

from sordino.sampling.balls_in_bins import BallsInBins
from sordino.sampling.by_length import Band, ByLength, Threshold
from sordino.sampling.fixed import FixedSize
from sordino.sampling.full import Full
from sordino.sampling.poisson import Poisson
from sordino.sampling.records import Records
from sordino.sampling.sampler import Draw, Informed, Sampler
from sordino.sampling.shuffle import Shuffle
from sordino.sampling.sorted import Sorted

__all__ = [
    "BallsInBins",
    "Band",
    "ByLength",
    "Draw",
    "FixedSize",
    "Full",
    "Informed",
    "Poisson",
    "Records",
    "Sampler",
    "Shuffle",
    "Sorted",
    "Threshold",
]

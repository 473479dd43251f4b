"""Algorithms: each a query of a few dozen lines."""

from sordino.algorithms.dpsgd import NoisySum, Query
from sordino.algorithms.microbatches import ByCoin, ByPosition, Microbatches
from sordino.algorithms.noisy_lookahead import NoisyLookahead
from sordino.algorithms.optimistic_lookahead import OptimisticLookahead
from sordino.algorithms.projected import Projected
from sordino.algorithms.quantile import PrivateQuantile

__all__ = [
    "ByCoin",
    "ByPosition",
    "Microbatches",
    "NoisyLookahead",
    "NoisySum",
    "OptimisticLookahead",
    "PrivateQuantile",
    "Projected",
    "Query",
]

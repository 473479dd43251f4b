"""Algorithms: each a query of a few dozen lines."""

from sordino.algorithms.dpsgd import NoisySum, Query
from sordino.algorithms.noisy_lookahead import NoisyLookahead
from sordino.algorithms.optimistic_lookahead import OptimisticLookahead
from sordino.algorithms.projected import Projected

__all__ = ["NoisyLookahead", "NoisySum", "OptimisticLookahead", "Projected", "Query"]

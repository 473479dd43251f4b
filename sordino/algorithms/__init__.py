"""Algorithms: each a query of a few dozen lines."""

from sordino.algorithms.dpsgd import NoisySum, Query

__all__ = ["NoisySum", "Query"]

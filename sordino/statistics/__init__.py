"""Statistics of the data, released through the door into the same ledger as the training."""

from sordino.statistics.clipped_sum import ClippedSum
from sordino.statistics.mean import Count, Mean
from sordino.statistics.normaliser import Normalise, Normaliser
from sordino.statistics.statistic import Statistic, Sum, ask, dry_ask

__all__ = ["ClippedSum", "Count", "Mean", "Normalise", "Normaliser", "Statistic", "Sum", "ask", "dry_ask"]

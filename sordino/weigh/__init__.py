"""The waist: which sample counts how much. One weigher per file."""

from sordino.weigh.adaptive_quantile import AdaptiveQuantile
from sordino.weigh.automatic import Automatic
from sordino.weigh.batch_statistic import BatchStatistic
from sordino.weigh.flat import Flat
from sordino.weigh.flat_l1 import FlatL1
from sordino.weigh.global_rule import Global
from sordino.weigh.layerwise import Layerwise
from sordino.weigh.scheduled import Scheduled
from sordino.weigh.weigher import Rule, Weigher

__all__ = [
    "AdaptiveQuantile",
    "Automatic",
    "BatchStatistic",
    "Flat",
    "FlatL1",
    "Global",
    "Layerwise",
    "Rule",
    "Scheduled",
    "Weigher",
]

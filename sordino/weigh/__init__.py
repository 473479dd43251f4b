"""The waist: which sample counts how much. One weigher per file."""

from sordino.weigh.adaptive_layerwise import AdaptiveLayerwise
from sordino.weigh.adaptive_quantile import AdaptiveQuantile
from sordino.weigh.automatic import Automatic
from sordino.weigh.band_pass import BandPass
from sordino.weigh.batch_statistic import BatchStatistic
from sordino.weigh.flat import Flat
from sordino.weigh.flat_l1 import FlatL1
from sordino.weigh.global_adapt import GlobalAdapt
from sordino.weigh.global_rule import Global
from sordino.weigh.layerwise import Layerwise
from sordino.weigh.normalised import Normalised
from sordino.weigh.psac import PSAC
from sordino.weigh.scheduled import Scheduled
from sordino.weigh.shares import EqualShare, Isotropic, LeastNoise, Multipliers
from sordino.weigh.weigher import Rule, Weigher

__all__ = [
    "PSAC",
    "AdaptiveLayerwise",
    "AdaptiveQuantile",
    "Automatic",
    "BandPass",
    "BatchStatistic",
    "EqualShare",
    "Flat",
    "FlatL1",
    "Global",
    "GlobalAdapt",
    "Isotropic",
    "Layerwise",
    "LeastNoise",
    "Multipliers",
    "Normalised",
    "Rule",
    "Scheduled",
    "Weigher",
]

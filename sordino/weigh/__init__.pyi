# Written by `make names`: change the declarations, not this file.
from sordino.declared import Declaration as Declaration
from sordino.weigh.adaptive_layerwise import AdaptiveLayerwise as AdaptiveLayerwise
from sordino.weigh.adaptive_quantile import AdaptiveQuantile as AdaptiveQuantile
from sordino.weigh.automatic import Automatic as Automatic
from sordino.weigh.band_pass import BandPass as BandPass
from sordino.weigh.batch_statistic import BatchStatistic as BatchStatistic
from sordino.weigh.flat import Flat as Flat
from sordino.weigh.flat_l1 import FlatL1 as FlatL1
from sordino.weigh.global_adapt import GlobalAdapt as GlobalAdapt
from sordino.weigh.global_layerwise import GlobalLayerwise as GlobalLayerwise
from sordino.weigh.global_rule import Global as Global
from sordino.weigh.layerwise import Layerwise as Layerwise
from sordino.weigh.normalised import Normalised as Normalised
from sordino.weigh.psac import PSAC as PSAC
from sordino.weigh.scheduled import Scheduled as Scheduled
from sordino.weigh.shares import EqualShare as EqualShare
from sordino.weigh.shares import Isotropic as Isotropic
from sordino.weigh.shares import LeastNoise as LeastNoise
from sordino.weigh.shares import Multipliers as Multipliers
from sordino.weigh.weigher import Rule as Rule
from sordino.weigh.weigher import Weigher as Weigher

DECLARATIONS: tuple[Declaration, ...]

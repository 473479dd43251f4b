# Written by `make names`: change the declarations, not this file.
from sordino.clipping.adaptive_layerwise import AdaptiveLayerwise as AdaptiveLayerwise
from sordino.clipping.adaptive_quantile import AdaptiveQuantile as AdaptiveQuantile
from sordino.clipping.automatic import Automatic as Automatic
from sordino.clipping.band_pass import BandPass as BandPass
from sordino.clipping.batch_statistic import BatchStatistic as BatchStatistic
from sordino.clipping.clipping_rule import ClippingRule as ClippingRule
from sordino.clipping.clipping_rule import Rule as Rule
from sordino.clipping.flat import Flat as Flat
from sordino.clipping.flat_l1 import FlatL1 as FlatL1
from sordino.clipping.global_adapt import GlobalAdapt as GlobalAdapt
from sordino.clipping.global_clipping import Global as Global
from sordino.clipping.global_layerwise import GlobalLayerwise as GlobalLayerwise
from sordino.clipping.layerwise import Layerwise as Layerwise
from sordino.clipping.noise_shares import EqualShare as EqualShare
from sordino.clipping.noise_shares import Isotropic as Isotropic
from sordino.clipping.noise_shares import LeastNoise as LeastNoise
from sordino.clipping.noise_shares import Multipliers as Multipliers
from sordino.clipping.normalised import Normalised as Normalised
from sordino.clipping.psac import PSAC as PSAC
from sordino.clipping.scheduled import Scheduled as Scheduled
from sordino.registry import Declaration as Declaration

DECLARATIONS: tuple[Declaration, ...]

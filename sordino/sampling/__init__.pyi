# Written by `make names`: change the declarations, not this file.
from sordino.registry import Declaration as Declaration
from sordino.sampling.balls_in_bins import BallsInBins as BallsInBins
from sordino.sampling.cyclic_poisson import CyclicPoisson as CyclicPoisson
from sordino.sampling.fixed_order import FixedOrder as FixedOrder
from sordino.sampling.fixed_size import FixedSize as FixedSize
from sordino.sampling.full import Full as Full
from sordino.sampling.length_based import Band as Band
from sordino.sampling.length_based import ByLength as ByLength
from sordino.sampling.length_based import Threshold as Threshold
from sordino.sampling.poisson import Poisson as Poisson
from sordino.sampling.record_access import Records as Records
from sordino.sampling.sampler import Draw as Draw
from sordino.sampling.sampler import Informed as Informed
from sordino.sampling.sampler import Sampler as Sampler
from sordino.sampling.shuffle import Shuffle as Shuffle
from sordino.sampling.sorted import Sorted as Sorted
from sordino.sampling.truncated_poisson import TruncatedPoisson as TruncatedPoisson

DECLARATIONS: tuple[Declaration, ...]

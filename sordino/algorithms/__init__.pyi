# Written by `make names`: change the declarations, not this file.
from sordino.algorithms.dpsgd import NoisySum as NoisySum
from sordino.algorithms.dpsgd import Query as Query
from sordino.algorithms.l1_sum import L1Sum as L1Sum
from sordino.algorithms.microbatches import ByCoin as ByCoin
from sordino.algorithms.microbatches import ByPosition as ByPosition
from sordino.algorithms.microbatches import Microbatches as Microbatches
from sordino.algorithms.noisy_lookahead import NoisyLookahead as NoisyLookahead
from sordino.algorithms.optimistic_lookahead import OptimisticLookahead as OptimisticLookahead
from sordino.algorithms.projected import Projected as Projected
from sordino.algorithms.quantile import PrivateQuantile as PrivateQuantile
from sordino.algorithms.with_loss import WithLoss as WithLoss
from sordino.declared import Declaration as Declaration

DECLARATIONS: tuple[Declaration, ...]

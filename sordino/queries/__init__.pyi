# Written by `make names`: change the declarations, not this file.
from sordino.queries.l1_sum import L1Sum as L1Sum
from sordino.queries.microbatches import ByCoin as ByCoin
from sordino.queries.microbatches import ByPosition as ByPosition
from sordino.queries.microbatches import Microbatches as Microbatches
from sordino.queries.noisy_lookahead import NoisyLookahead as NoisyLookahead
from sordino.queries.noisy_sum import NoisySum as NoisySum
from sordino.queries.noisy_sum import Query as Query
from sordino.queries.optimistic_lookahead import OptimisticLookahead as OptimisticLookahead
from sordino.queries.private_quantile import PrivateQuantile as PrivateQuantile
from sordino.queries.projected import Projected as Projected
from sordino.queries.with_loss import WithLoss as WithLoss
from sordino.registry import Declaration as Declaration

DECLARATIONS: tuple[Declaration, ...]

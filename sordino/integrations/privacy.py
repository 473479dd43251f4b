"""Privacy settings of an integration: a query and a δ, or an ε to calibrate the noise to.

    Privacy.target(epsilon=3.0, delta=1e-5, bound=1.0)           plain DP-SGD, its noise found before the first step
    Privacy(query=sd.NoisySum(…), delta=1e-5)                    any query

Privacy: the noise is calibrated by a dry run of the same query, sampler and steps; the claim is made of what was done, so
a run that is stopped early costs less, and one that goes on costs more, whatever was aimed at.
"""

from __future__ import annotations

from dataclasses import dataclass

from sordino import validate
from sordino.clipping.flat import Flat
from sordino.queries.calibrate_run import calibrate_noise
from sordino.queries.dry_run import dry_run
from sordino.queries.noisy_sum import NoisySum, Query
from sordino.queries.with_loss import WithLoss
from sordino.release.noise import Gaussian
from sordino.sampling.sampler import Sampler


@dataclass(frozen=True)
class Privacy:
    """A query and the δ of its claim; or an ε and the bound of a plain DP-SGD whose noise is to be found.

    `loss_bound` releases a noisy mean of the losses too, each clipped to ±loss_bound, at twenty times the gradients' noise
    multiplier: without it an integration has no training loss to log.

    Args:
        delta: of the claim.
        query: any query; or
        epsilon: to be met by plain DP-SGD,
        bound: with this bound.
        loss_bound: releases a noisy mean of the losses too.
        isolate: loads, collates and runs every record by itself, as `Private(isolate=True)` does.

    Privacy:
        The noise is found by a dry run. The claim is made of what was done.

    Examples:
        >>> import sordino as sd
        >>> privacy = Privacy.target(epsilon=3.0, delta=1e-5, bound=1.0)
        >>> query = privacy.query_for(sd.Poisson(rate=0.05), records=2000, steps=100, expected_batch=100)
        >>> f"{query.noise.multiplier:.4f}"
        '1.0789'

    """

    delta: float
    query: Query | None = None
    epsilon: float | None = None
    bound: float | None = None
    loss_bound: float | None = None
    isolate: bool = False

    def __post_init__(self) -> None:
        """Refuses settings that contradict each other or are missing."""
        validate.fraction("delta", self.delta)
        if (self.query is None) == (self.epsilon is None):
            raise ValueError("give either query=, as in NoisySum(Flat(1.0), Gaussian(1.1)), or epsilon= and bound=")
        if self.epsilon is not None:
            validate.positive("epsilon", self.epsilon)
            if self.bound is None:
                raise ValueError(
                    "epsilon without bound: need the length that gradients are clipped to, such as bound=1.0"
                )
            validate.positive("bound", self.bound)
        if self.loss_bound is not None:
            validate.positive("loss_bound", self.loss_bound)
            if self.query is not None:
                raise ValueError("loss_bound beside query: wrap the query yourself, in sd.WithLoss")

    @classmethod
    def target(
        cls, *, epsilon: float, delta: float, bound: float, loss_bound: float | None = None, isolate: bool = False
    ) -> Privacy:
        """Returns privacy settings for DP-SGD with flat clipping and as much noise as the target ε asks for.

        >>> Privacy.target(epsilon=3.0, delta=1e-5, bound=1.0).epsilon
        3.0
        """
        return cls(delta, epsilon=epsilon, bound=bound, loss_bound=loss_bound, isolate=isolate)

    def query_for(self, sampler: Sampler, records: int, steps: int, expected_batch: float | None) -> Query:
        """Returns the query of the privacy settings, with noise such that so many steps meet the target ε."""
        if self.query is not None:
            return self.query
        assert self.epsilon is not None  # one of the two is there
        # ε at each σ is that of a dry run of the same query, sampler and steps: public numbers alone decide the noise.
        sigma = calibrate_noise(
            lambda s: dry_run(self._plain_query(s), sampler, records, steps, expected_batch), self.epsilon, self.delta
        )
        return self._plain_query(sigma)

    def _plain_query(self, sigma: float) -> Query:
        """Returns the plain DP-SGD query of privacy settings with a target ε, at noise multiplier `sigma`."""
        assert self.bound is not None  # checked with epsilon
        plain = NoisySum(Flat(self.bound), Gaussian(sigma))
        if self.loss_bound is None:
            return plain
        # 1/σ² + 1/(20σ)² = (1 + 1/400)/σ². Both noises go with σ, so there is still one number to search for.
        return WithLoss(plain, self.loss_bound, Gaussian(_LOSS * sigma))


_LOSS = 20.0
"""The loss's noise multiplier over that of the gradients: it then costs an eighth of a percent of noise."""

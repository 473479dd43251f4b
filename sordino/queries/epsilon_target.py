"""A target ε in place of a query: plain DP-SGD whose noise is found when the sampler and the steps are known.

    private = sd.Private(model, loss_fn, epsilon=3.0, delta=1e-5, clip=1.0)
    for lot in private.draws(dataset, batch_size=256, epochs=10): ...

Privacy: the noise is calibrated by a dry run of the same query, sampler and steps, before the first draw. The claim is
made of what was done, so a run that is stopped early costs less than its target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from sordino import validate
from sordino.clipping.flat import Flat
from sordino.queries.calibrate_query import calibrate
from sordino.queries.noisy_sum import NoisySum, Query
from sordino.refusal import Refusal
from sordino.release.noise import Gaussian
from sordino.sampling.sampler import Sampler


@dataclass(frozen=True)
class EpsilonTarget:
    """An ε at a δ, to be met by DP-SGD that clips every gradient to the length `clip`.

    >>> import sordino as sd
    >>> target = EpsilonTarget(3.0, 1e-5, 1.0)
    >>> target.calibrate_query(sd.Poisson(0.01), records=1000, steps=1000).noise.multiplier < 1
    True
    """

    epsilon: float
    delta: float
    clip: float = 1.0

    def __post_init__(self) -> None:
        """Refuses numbers that are no target."""
        validate.positive("epsilon", self.epsilon)
        validate.fraction("delta", self.delta)
        validate.positive("clip", self.clip)

    def calibrate_query(self, sampler: Sampler, records: int, steps: int) -> NoisySum:
        """Returns the query with the least noise at which this many steps meet the epsilon target."""
        sigma = calibrate(
            self._query_with, sampler, steps, epsilon=self.epsilon, delta=self.delta, dataset_size=records
        )
        return self._query_with(sigma)

    def _query_with(self, multiplier: float) -> NoisySum:
        return NoisySum(Flat(self.clip), Gaussian(multiplier))


class UncalibratedQuery:
    """Stands in the place of a query until the first call of `draws` says how many steps there will be."""

    def __repr__(self) -> str:
        return "NoisySum(not calibrated yet)"

    def init(self) -> None:
        """Returns None: there is no state yet."""

    def __call__(self, grads: Any, state: Any, expected_batch: float, rng: Any) -> NoReturn:
        """Raises Refusal."""
        raise Refusal(
            "the noise of this run is not known yet.\n"
            "It is calibrated to epsilon= when the number of steps is known.\n"
            "Call private.draws(dataset, batch_size=…, epochs=…) first, and give backward the lots that it draws."
        )


def resolve_query(
    query: Query | None, epsilon: float | None, delta: float | None, clip: float | None
) -> tuple[Query, EpsilonTarget | None]:
    """Returns the query of a run and its `EpsilonTarget`, of which a user gives one or the other.

    Raises:
        TypeError: if both or neither were given, or a part of the target is missing.

    """
    # A query and a target exclude each other: two sources of noise would leave open which one the claim is about.
    target_parts = {"epsilon": epsilon, "delta": delta, "clip": clip}
    given = [f"{name}={validate.shorten(value)}" for name, value in target_parts.items() if value is not None]
    if query is not None:
        if given:
            raise TypeError(
                f"{', '.join(given)} beside query: a query brings its own clipping and noise; give one of the two"
            )
        return query, None
    # There are no defaults for ε and δ: privacy parameters are always the user's own decision.
    if epsilon is None or delta is None:
        raise TypeError(
            "neither query nor target: there is no default for how private a run is.\n"
            "Give a query, as in sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))),\n"
            "or a target, as in sd.Private(model, loss_fn, epsilon=3.0, delta=1e-5); clip= is 1.0 by default."
        )
    return UncalibratedQuery(), EpsilonTarget(epsilon, delta, 1.0 if clip is None else clip)

"""Calibrates the noise of a query to a target ε.

The search uses the very query, sampler and number of steps that will train.

    sigma = sd.calibrate(query, sd.Poisson(0.01), 2000, epsilon=3.0, delta=1e-5)

Privacy: a dry run of the query says what a step releases, so no method is charged as another; the claim is made of what
was really done, whatever was aimed at.
"""

from __future__ import annotations

from collections.abc import Callable

from sordino import validate
from sordino.accounting import PLD
from sordino.accounting import calibrate as met
from sordino.queries.dry_run import dry_run
from sordino.queries.noisy_sum import Query
from sordino.sampling.sampler import Sampler


def calibrate(
    query: Callable[[float], Query],
    sampler: Sampler,
    steps: int,
    *,
    epsilon: float,
    delta: float,
    dataset_size: int = 1,
) -> float:
    """Calibrates a query: returns the smallest noise multiplier at which `steps` lots are (ε, δ)-differentially
    private.

    Args:
        query: the query at a noise multiplier.
        sampler: how lots are drawn.
        steps: how many.
        epsilon: what all of them together may cost.
        delta: at this δ; usual is less than 1 / dataset size.
        dataset_size: how many records there are; `Poisson` does not ask, `FixedSize` does.

    Returns:
        The multiplier, for the query that is given to `Private`.

    Privacy:
        Nothing is released. What a claim says in the end is computed from the run itself.

    Examples:
        >>> import sordino as sd
        >>> def query(sigma):
        ...     return sd.NoisySum(sd.Flat(1.0), sd.Gaussian(sigma))
        >>> sigma = calibrate(query, sd.Poisson(0.01), 100, epsilon=1.0, delta=1e-5)
        >>> print(f"{sigma:.2f}")
        0.90

    """
    validate.function("query", query, "a function from a noise multiplier to a query")
    # The event of a dry run is that of the real one, so the noise is right for what will be charged.
    return met(lambda sigma: dry_run(query(sigma), sampler, dataset_size, steps), PLD(), epsilon, delta)

"""Scores of gradient canaries in a phase with correlated noise: the likelihood ratio of what was released.

A gradient canary has a coordinate of its own. What is released there in all steps of a phase, in units of the bound, is

    y = p + σ C⁻¹ z,      so      C y = C p + σ z,

where p says in which steps the canary took part, and p = 0 if it was not there. The best score is the likelihood ratio
(Neyman & Pearson): the sum of y alone forgets in which steps later noise took earlier noise back. The pattern p is not
known, but its distribution is public:

    cyclic Poisson   group j by a fair coin, then each of the steps j, j + b, … with probability q
    fixed order      one of {j, j + b, j + 2b, …}, all with the same weight

Privacy: a score is post-processing of released values and public numbers. Any score leaves a one-run audit valid; a better
one shows more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from sordino.events import CyclicPoisson, FixedOrder
from sordino.events.correlated_steps import find_correlated
from sordino.matrix_factorization.toeplitz import toeplitz_matrix


def score_canaries_in_phase(released: NDArray[np.float64], phase: CyclicPoisson | FixedOrder) -> NDArray[np.float64]:
    """Returns the log likelihood ratio of each canary being in a phase with correlated noise, against being out.

    Args:
        released: the released values at the canaries' own coordinates in units of the bound, (steps, canaries).
        phase: what the phase was charged for; it says noise, strategy and how lots were drawn.

    """
    steps = len(released)
    part = find_correlated(phase.event)
    if part is None:
        raise ValueError(f"{phase!r} has no correlated noise: the sum of what was released is the score")
    encoder = toeplitz_matrix(part.factorisation.encoder(phase.steps), phase.steps)[:steps, :steps]
    variance = part.multiplier**2
    decorrelated = encoder @ released
    if isinstance(phase, FixedOrder):
        # One Gaussian release for each pattern, whose means are the sums of the columns of the pattern.
        patterns = [np.arange(first, steps, phase.separation) for first in range(min(phase.separation, steps))]
        means = np.stack([encoder[:, pattern].sum(axis=1) for pattern in patterns])
        ratios = (means @ decorrelated - (means**2).sum(axis=1, keepdims=True) / 2) / variance
    else:
        # Columns of one group share no row, so each turn of the group is a coin and a Gaussian release of its own.
        of_columns = (encoder.T @ decorrelated - (encoder**2).sum(axis=0)[:, None] / 2) / variance
        with np.errstate(divide="ignore"):
            stayed_away = np.log1p(-phase.rate)
        of_turns = np.logaddexp(stayed_away, np.log(phase.rate) + of_columns)
        ratios = np.stack([of_turns[group :: phase.groups].sum(axis=0) for group in range(min(phase.groups, steps))])
    scores: NDArray[np.float64] = logsumexp(ratios, axis=0) - np.log(len(ratios))
    return scores

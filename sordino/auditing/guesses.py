"""Guesses: how many canaries to guess at, fixed before the coins are looked at.

The k with the highest scores are guessed to be in, the k with the lowest to be out; the others are left. k is the one that
would show most of a Gaussian run with the claimed μ, computed from the claim and the number of canaries alone.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from sordino import validate
from sordino.auditing.bounds import one_run_tradeoff

_SHARES = (0.02, 0.04, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
"""Shares of the canaries that are tried, on each side."""
_UNKNOWN = 0.1
"""The share that is used where the claim is too small for so few canaries to show anything at all."""


def count_right_guesses(scores: NDArray[np.float64], inside: NDArray[np.bool_], each: int) -> int:
    """Returns how many of 2 × each guesses about canaries are right; equal scores keep the order of the canaries.

    >>> count_right_guesses(np.array([3.0, 1.0, 2.0, 0.0]), np.array([True, False, False, False]), 1)
    2
    """
    if not 0 < 2 * each <= len(scores) == len(inside):
        raise ValueError(f"each={each}: need 1 … {len(scores) // 2}, and a coin for every score")
    clean = np.where(np.isfinite(scores), scores, -np.inf)  # a canary that broke the model is guessed to be out
    order = np.argsort(clean, kind="stable")
    return int((~inside[order[:each]]).sum() + inside[order[-each:]].sum())


@cache
def best_number_of_guesses(canaries: int, mu: float) -> int:
    """Returns how many guesses about canaries to make on each side, if a canary in the run shifts its score by μ
    deviations.

    >>> 1 <= best_number_of_guesses(1000, 1.0) <= 500
    True
    """
    # Shares are compared by what they would show on average; the choice depends on public numbers alone.
    validate.count("canaries", canaries, least=2)
    best_so_far = 0.0, 1
    for share in _SHARES:
        each = max(1, int(share * canaries))
        expected = math.floor(2 * each * _expected_accuracy(share, mu))
        shown = one_run_tradeoff.mu_lower_bound(canaries, 2 * each, expected)
        if shown > best_so_far[0]:
            best_so_far = shown, each
    return best_so_far[1] if best_so_far[0] else max(1, int(_UNKNOWN * canaries))


def _expected_accuracy(share: float, mu: float) -> float:
    """Returns the expected accuracy of guesses at the canaries with the top `share` of scores.

    Scores are N(0, 1) or N(μ, 1) by a fair coin.
    """
    # Find the threshold above which the wanted share of scores lies, for half of the canaries shifted by μ.
    low, high = float(ndtri(0.001)), mu - float(ndtri(0.0001))
    for _ in range(60):
        middle = (low + high) / 2
        above = (ndtr(-middle) + ndtr(mu - middle)) / 2
        low, high = (middle, high) if above > share else (low, middle)
    return float(ndtr(mu - low) / (ndtr(-low) + ndtr(mu - low)))

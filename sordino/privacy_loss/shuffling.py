"""Shuffled batches: a certified lower bound on ε, to stand beside the bound without amplification.

Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha & Zhang 2024. One pass over t disjoint random batches, a record zeroed out
against all others pulling the other way: (1/t)Σ N(2eᵢ, σ²) against (1/t)Σ N(eᵢ, σ²). The largest coordinate tells them
apart:  P[max ≤ x] = Φ((x−2)/σ)Φ(x/σ)^{t−1},  Q[max ≤ x] = Φ((x−1)/σ)Φ(x/σ)^{t−1}.

**Privacy:** an attack that exists, so ε cannot be smaller. It shows by how much a Poisson figure for shuffled data
errs; the figure that may be claimed is PLD's for `Shuffle`, the worst single release per pass.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy.special import log_ndtr

from sordino import validate
from sordino.privacy_loss.composed_bounds import choose_setting, compose_lower_bound
from sordino.privacy_loss.lattice import Sampled
from sordino.privacy_loss.pairs import DiscretePair
from sordino.privacy_loss.saddle import Estimate, Phases

_POINTS = 20_001
_REACH = 14.0
_LEAST = 1e-250
_TYPICAL_DELTA = 1e-8


def max_statistic_pair(multiplier: float, batches: int) -> DiscretePair:
    """Returns the pair of the best known attack on shuffling: the largest of one pass's releases, binned finely, with
    and without the record.
    """
    # The largest of `batches` releases: its distribution is a product of normal ones, computed in logarithms.
    x = np.linspace(-_REACH * multiplier, 2 + _REACH * multiplier, _POINTS)
    rest = (batches - 1) * log_ndtr(x / multiplier)
    below_p = np.exp(log_ndtr((x - 2) / multiplier) + rest)
    below_q = np.exp(log_ndtr((x - 1) / multiplier) + rest)
    above_p = -np.expm1(log_ndtr((x - 2) / multiplier) + rest)
    above_q = -np.expm1(log_ndtr((x - 1) / multiplier) + rest)
    # A cell's mass is a difference of two tails; the smaller tail is used, because differences of numbers near 1 lose
    # digits.
    p = np.where(below_p[1:] < 0.5, np.diff(below_p), -np.diff(above_p))
    q = np.where(below_q[1:] < 0.5, np.diff(below_q), -np.diff(above_q))
    # where floats end, a mass counts as this much: it is far below any δ, and no ratio becomes larger than it is
    p, q = np.maximum(p, _LEAST), np.maximum(q, _LEAST)
    # Sorted by the ratio, as the threshold tests of an attack are.
    values = np.log(p) - np.log(q)
    order = np.argsort(values, kind="stable")
    return DiscretePair(values[order], p[order], q[order])


def _composed_attack(
    multiplier: float, batches: int, epochs: int, add: bool, typical: float
) -> tuple[Phases, Estimate, float]:
    """Returns the best known attack on shuffling, over all passes of a training, as phases, where its δ is, and the
    tail that may be cut off.
    """
    phases: Phases = ((Sampled(max_statistic_pair(multiplier, batches)), epochs),)
    cut = 1e-7 * typical / epochs
    return phases, Estimate(phases, add, cut), cut


def shuffle_lower_delta(multiplier: float, batches: int, epochs: int, epsilon: float) -> float:
    """Returns a δ that shuffled training certainly exceeds or attains at this ε (zero-out)."""
    best = 0.0
    for add in (False, True):
        phases, estimate, cut = _composed_attack(multiplier, batches, epochs, add, _TYPICAL_DELTA)
        setting = choose_setting(phases, add, estimate.at_epsilon(epsilon), estimate.std, cut, 1e-4)
        best = max(best, compose_lower_bound(phases, add, replace(setting, centre=epsilon)).delta(epsilon))
    return best


def shuffle_lower_bound(multiplier: float, batches: int, epochs: int, delta: float) -> float:
    """Returns an ε that shuffled training certainly exceeds or attains at this δ (zero-out).

    >>> round(shuffle_lower_bound(1.1, 240, 30, 1e-5), 1)
    7.8
    """
    multiplier = validate.positive("multiplier", multiplier)
    batches, epochs = validate.count("batches", batches), validate.count("epochs", epochs)
    delta = validate.fraction("delta", delta)
    best = 0.0
    for add in (False, True):
        phases, estimate, cut = _composed_attack(multiplier, batches, epochs, add, delta)
        setting = choose_setting(phases, add, estimate.at_delta(delta), estimate.std, cut, 1e-4)
        proved = compose_lower_bound(phases, add, setting).epsilon(delta)
        best = max(best, proved if math.isfinite(proved) else 0.0)
    return best

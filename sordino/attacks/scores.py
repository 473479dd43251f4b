"""Membership scores: the higher, the more a record looks as if it had been trained on.

    loss     −ℓ(x)                                                            Yeom et al. 2018
    LiRA     ln N(φ; in) − ln N(φ; out),  φ = ln p_y − ln(1 − p_y)            Carlini et al. 2022
    RMIA     P_z[ (p(x|θ)/p(x)) / (p(z|θ)/p(z)) ≥ 1 ]                         Zarifzadeh, Liu & Shokri 2024

In and out are what shadow models say that had the record, or had it not.

Privacy: these are attacks. A score that separates shows a leak; one that does not shows nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

_FEW = 32
"""Shadows below which one deviation is shared by all records: too few to estimate each one's."""
_OFFLINE = 0.3
"""RMIA: how much more the records in a model are sure of than those outside; the authors' a for offline attacks."""


def logit_of_label(logits: Values, labels: NDArray[np.int64]) -> Values:
    """Returns φ of each row, from which membership scores are computed: the label's logit less the log-sum of the
    others, without computing 1 − p.

    >>> logit_of_label(np.array([[2.0, 0.0]]), np.array([0]))
    array([2.])
    """
    rows = np.arange(len(labels))
    label_logits = logits[..., rows, labels]
    # The log-sum of the other classes, with the maximum taken out so that nothing overflows.
    others = logits.copy()
    others[..., rows, labels] = -np.inf
    top = others.max(axis=-1, keepdims=True)
    log_sum_of_others = np.log(np.exp(others - top).sum(axis=-1)) + top[..., 0]
    phi: Values = label_logits - log_sum_of_others
    return phi


def probability_of_label(phi: Values) -> Values:
    """Returns p_y of φ."""
    found: Values = 1 / (1 + np.exp(-np.clip(phi, -700, 700)))
    return found


def loss_score(phi: Values) -> Values:
    """Returns the membership score of the loss threshold, which is φ itself.

    −ℓ = ln p_y rises with φ, and ln p_y of what a network is sure of is 0.
    """
    return phi


def align_with_shadows(phi: Values, shadows: Values) -> Values:
    """Returns φ of the target in the shadows' units, so that membership scores compare them: a network that was trained
    longer is surer of everything.
    """
    center, spread = float(shadows.mean(axis=1).mean()), float(shadows.std(axis=1).mean())
    found: Values = (phi - phi.mean()) / max(float(phi.std()), 1e-12) * spread + center
    return found


def lira_score(phi: Values, shadows: Values, inside: NDArray[np.bool_]) -> Values:
    """Returns the membership score of LiRA, the likelihood-ratio attack, for each record.

    `phi` (N,) is of the target, `shadows` (S, N) of the shadow models, `inside` (S, N) says who had which record.
    """
    # Two normal distributions of φ per record: over shadows that were trained on it, and over those that were not.
    center_in, center_out = _mean_where(shadows, inside), _mean_where(shadows, ~inside)
    spread_in, spread_out = _deviation_where(shadows, inside, center_in), _deviation_where(shadows, ~inside, center_out)

    def log_density(center: Values, spread: Values) -> Values:
        found: Values = -np.square((phi - center) / spread) / 2 - np.log(spread)
        return found

    return log_density(center_in, spread_in) - log_density(center_out, spread_out)


def rmia_score(phi: Values, shadows: Values, inside: NDArray[np.bool_], population: NDArray[np.int64]) -> Values:
    """Returns the membership score of offline RMIA: a record's likelihood ratio beside the ratios of `population`.

    `population` holds the places of records that are no members.
    """
    # Offline: only shadows without the record are needed, and the mean with it is interpolated.
    out = _mean_where(probability_of_label(shadows), ~inside)
    average = 0.5 * ((1 + _OFFLINE) * out + (1 - _OFFLINE))
    ratio = probability_of_label(phi) / np.maximum(average, 1e-12)
    # The score is the share of the population whose ratio is not larger.
    known = np.sort(ratio[population])
    found: Values = np.searchsorted(known, ratio, side="right") / len(known)
    return found


def _mean_where(values: Values, where: NDArray[np.bool_]) -> Values:
    count = np.maximum(where.sum(axis=0), 1)
    found: Values = np.where(where, values, 0.0).sum(axis=0) / count
    return found


def _deviation_where(values: Values, where: NDArray[np.bool_], center: Values) -> Values:
    """Returns each record's standard deviation of φ over the shadows where `where` holds, for the LiRA score; one for
    all if there are few shadows.
    """
    squares = np.where(where, np.square(values - center), 0.0).sum(axis=0)
    count = where.sum(axis=0)
    # With few shadows the deviations of single records are too noisy, so all records share one.
    if count.min() < _FEW:
        common_deviation = np.sqrt(squares.sum() / max(1, count.sum()))
        return np.full_like(center, max(float(common_deviation), 1e-6))
    found: Values = np.maximum(np.sqrt(squares / count), 1e-6)
    return found

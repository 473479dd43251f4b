"""ROC of an attack: true positives at few false ones, with confidence bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.auditing.bounds import binomial

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Roc:
    """Scores of members and of others; higher means member."""

    members: Values
    others: Values

    def curve(self) -> tuple[Values, Values]:
        """Returns the ROC of an attack, (false-positive rates, true-positive rates) at every threshold."""
        thresholds = np.unique(np.concatenate([self.members, self.others]))[::-1]
        alarms = 1 - np.searchsorted(np.sort(self.others), thresholds, side="left") / len(self.others)
        hits = 1 - np.searchsorted(np.sort(self.members), thresholds, side="left") / len(self.members)
        return np.concatenate([[0.0], alarms]), np.concatenate([[0.0], hits])

    @property
    def area(self) -> float:
        """The area under the ROC of an attack: the probability that a member scores higher than another; ties count
        half.

        >>> Roc(np.array([1.0, 2.0]), np.array([0.0, 1.0])).area
        0.875
        """
        order = np.sort(self.others)
        below = np.searchsorted(order, self.members, side="left")
        ties = np.searchsorted(order, self.members, side="right") - below
        return float((below + ties / 2).mean() / len(order))

    def true_positives_at(self, rate: float) -> float:
        """Returns the share of members found where at most this share of the others is accused."""
        return self._count_hits(rate) / len(self.members)

    def true_positives_lower_bound(self, rate: float, error: float = 0.05) -> float:
        """Returns a lower confidence bound on `true_positives_at` of an attack's ROC, for the threshold as it is.

        Choosing the threshold on these scores flatters it a little.
        """
        return binomial.lower_bound(self._count_hits(rate), len(self.members), error)

    def _count_hits(self, rate: float) -> int:
        allowed = int(rate * len(self.others) + 1e-9)
        threshold = np.sort(self.others)[::-1][allowed] if allowed < len(self.others) else -np.inf
        return int((self.members > threshold).sum())

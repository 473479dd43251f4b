"""How good synthetic records are: likeness to test records, and what a classifier learns from them.

    columns       half the L1 distance between the shares of a column's tokens, synthetic and test (0: alike, 1: disjoint)
    pairs         the same of pairs of columns, the mean over all pairs
    classifier    logistic regression trained on synthetic records and tested on real ones, beside the majority and, if
                  asked for, beside the same classifier trained on the real training records
    exposure      how high planted records rank among others that might have been planted (Carlini et al. 2019)

Privacy: everything is measured on test records, told without noise, and no ε covers that. The classifier trained on real
records and the exposure look at training records too, are made only on request, and must not be published as private.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

_MOST_PAIR_TOKENS = 20_000


@dataclass(frozen=True)
class ClassifierScore:
    """What a classifier learnt: its accuracy on real test records, and the area under its curve for two classes."""

    accuracy: float
    auc: float | None = None


@dataclass(frozen=True)
class Likeness:
    """How good synthetic records are, on real test records."""

    columns: dict[str, float]
    pairs: float | None
    majority: float
    synthetic: ClassifierScore | None
    real: ClassifierScore | None = None
    exposure: float | None = None
    """The mean exposure of planted records in bits; about 1.44 if nothing was learnt of them."""

    def table(self) -> dict[str, Any]:
        """Returns everything as JSON holds it."""
        return asdict(self)


def compare_columns(names: list[str], counts: list[int], made: Tensor, real: Tensor) -> dict[str, float]:
    """Returns the likeness of synthetic and real records column by column, as the distance between their shares of
    every token.
    """
    return {
        name: round(_distance(made[:, place], real[:, place], count), 4)
        for place, (name, count) in enumerate(zip(names, counts, strict=True))
    }


def compare_pairs(counts: list[int], made: Tensor, real: Tensor) -> float:
    """Returns the likeness of synthetic and real records in pairs of columns, as the mean distance between their shares."""
    distances = []
    for first, second in combinations(range(len(counts)), 2):
        both = counts[first] * counts[second]
        if both <= _MOST_PAIR_TOKENS:
            of_made, of_real = (rows[:, first] * counts[second] + rows[:, second] for rows in (made, real))
            distances.append(_distance(of_made, of_real, both))
    return round(float(np.mean(distances)), 4) if distances else float("nan")


def _distance(made: Tensor, real: Tensor, count: int) -> float:
    """Returns half the L1 distance of two histograms of shares."""
    shares = [torch.bincount(tokens, minlength=count).double() / max(1, len(tokens)) for tokens in (made, real)]
    return float((shares[0] - shares[1]).abs().sum() / 2)


def row_features(rows: Tensor, counts: list[int]) -> NDArray[np.float32]:
    """Returns the cells behind the first one as columns of 0 and 1, for a classifier."""
    parts = [functional.one_hot(rows[:, place], count) for place, count in enumerate(counts)][1:]
    return torch.cat(parts, dim=1).numpy().astype(np.float32)


def word_features(tokens: Tensor, count: int) -> NDArray[np.float32]:
    """Returns how often each token is in a text, damped and of length one, for the classifier by which likeness is
    measured.
    """
    bag = torch.zeros(len(tokens), count)
    bag.scatter_add_(1, tokens, torch.ones(tokens.shape))
    bag = torch.log1p(bag[:, :-1])
    return functional.normalize(bag, dim=1).numpy()


def score_classifier(
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    test_features: NDArray[np.float32],
    test_labels: NDArray[np.int64],
) -> ClassifierScore | None:
    """Trains the classifier by which likeness is measured, a logistic regression, and returns its score on real test
    records; None if there is only one class.
    """
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.metrics import roc_auc_score
    except ImportError as error:
        raise ImportError("scikit-learn is not installed: pip install 'sordino[sklearn]'") from error
    if len(set(labels.tolist())) < 2:
        return None
    classifier = LogisticRegression(max_iter=300, C=1.0).fit(features, labels)
    accuracy = float(classifier.score(test_features, test_labels))
    # The area under the curve is for two classes, both among the test records.
    auc = None
    if len(classifier.classes_) == len(set(test_labels.tolist())) == 2:
        auc = round(float(roc_auc_score(test_labels, classifier.decision_function(test_features))), 4)
    return ClassifierScore(round(accuracy, 4), auc)


def majority_share(labels: NDArray[np.int64]) -> float:
    """Returns the accuracy of always answering the most frequent class."""
    return round(float(np.bincount(labels).max() / max(1, len(labels))), 4)


@torch.no_grad()
def mean_exposure(model: nn.Module, planted: Tensor, others: Tensor) -> float:
    """Returns, beside the likeness of synthetic rows, the mean exposure of planted ones: how high each ranks by the
    model's loss among rows of the same kind.
    """
    losses_of_others = model(others).double()
    ranks = [1 + int((losses_of_others <= loss).sum()) for loss in model(planted).double()]
    return round(float(np.mean([np.log2(len(others) + 1) - np.log2(rank) for rank in ranks])), 3)

"""What a model is worth on test records: ranking, rare classes, calibration and errors in units, beside a baseline.

    auc                  chance that a record of a class scores above one of another; mean over classes, one against all
    balanced_accuracy    mean over the classes of the share that is recognised
    f1                   harmonic mean of precision and recall, mean over the classes; f1_by_class has each
    calibration_error    mean distance of the stated probability from the share that is right, in ten bins
    confusion            how many records of class i (row) were said to be of class j (column)
    rmse, mae, r2        of numbers, in the target's own units; r2 is the share of the variance that is explained
    perplexity           exp of the mean loss, of language models, whose loss is a mean over tokens

The baseline knows the test records' classes or numbers and nothing of a single record: it always says the most frequent
class, or the mean. A measure that does not beat it shows that nothing was learnt.

Privacy: everything here is computed on test records, which are taken to be public or are named in the claim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_BINS = 10
MOST_CLASSES_IN_CONFUSION = 20
"""A larger table is not written."""

Measures = dict[str, Any]


def measure_classes(scores: Tensor, targets: Tensor) -> Measures:
    """Returns the measures of a classifier on test records from its scores (N, C), before softmax, and the true classes
    (N,).

    A class without a test record counts in no mean.

    >>> measure_classes(torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 1.0]]), torch.tensor([0, 1, 0]))["balanced_accuracy"]
    0.75
    """
    classes = scores.shape[1]
    confusion = count_confusion(scores.argmax(dim=1), targets, classes)
    probabilities = torch.softmax(scores.double(), dim=1)
    each_auc = [_auc_of_class(probabilities[:, one], targets == one) for one in range(classes)]
    measures: Measures = {
        "auc": _mean_of_known(each_auc),
        **_measures_of_confusion(confusion),
        "calibration_error": _calibration_error(probabilities, targets),
    }
    if classes <= MOST_CLASSES_IN_CONFUSION:
        measures["confusion"] = confusion.tolist()
    return measures


def majority_baseline(targets: Tensor, classes: int) -> Measures:
    """Returns the measures of the baseline that always says the most frequent class of the test records.

    >>> majority_baseline(torch.tensor([0, 0, 0, 1]), 2)["accuracy"]
    0.75
    """
    counts = torch.bincount(targets, minlength=classes)
    said = torch.full_like(targets, int(counts.argmax()))
    shares = counts.double() / len(targets)
    of_confusion = _measures_of_confusion(count_confusion(said, targets, classes))
    return {
        "kind": "majority",
        "accuracy": float(shares.max()),
        "auc": 0.5,
        **{name: value for name, value in of_confusion.items() if name != "f1_by_class"},
        "loss": float(-(shares * shares.clamp(min=1e-300).log()).sum()),
    }


def measure_numbers(outputs: Tensor, targets: Tensor, units_per_one: float = 1.0) -> Measures:
    """Returns the measures of predicted numbers (N, K) on test records; one step of the scaled target is
    `units_per_one` of its own.

    >>> measure_numbers(torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [2.0]]))["rmse"]
    0.7071067811865476
    """
    error = (outputs - targets).double()
    spread = (targets - targets.mean(dim=0)).double()
    unexplained, variance = float(error.square().sum()), float(spread.square().sum())
    return {
        "rmse": math.sqrt(float(error.square().mean())) * units_per_one,
        "mae": float(error.abs().mean()) * units_per_one,
        "r2": 1 - unexplained / variance if variance > 0 else None,
    }


def mean_baseline(targets: Tensor, units_per_one: float = 1.0) -> Measures:
    """Returns the measures of always saying the mean of the test records' numbers."""
    measures = measure_numbers(targets.mean(dim=0, keepdim=True).expand_as(targets), targets, units_per_one)
    return {"kind": "mean", **measures}


def perplexity(mean_loss: float) -> float:
    """Returns a language model's measure on test records: perplexity, exp of the mean loss over tokens; infinite where
    it overflows.

    >>> perplexity(0.0), perplexity(1e9)
    (1.0, inf)
    """
    return math.exp(mean_loss) if mean_loss < 700 else math.inf


def describe_measures(measures: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Returns the name of every measure on test records, its value and the baseline's, as words."""
    baseline = measures.get("baseline") or {}
    rows = []
    for name, (title, form) in _TITLES.items():
        if measures.get(name) is not None:
            of_baseline = baseline.get(name)
            rows.append((title, form.format(measures[name]), "" if of_baseline is None else form.format(of_baseline)))
    return rows


_TITLES = {
    "accuracy": ("accuracy", "{:.2%}"),
    "auc": ("AUC", "{:.4f}"),
    "balanced_accuracy": ("balanced accuracy", "{:.2%}"),
    "f1": ("F1, mean over classes", "{:.4f}"),
    "calibration_error": ("calibration error", "{:.2%}"),
    "rmse": ("RMSE, in the target's units", "{:.4g}"),
    "mae": ("mean absolute error, in the target's units", "{:.4g}"),
    "r2": ("R²", "{:.4f}"),
    "perplexity": ("perplexity", "{:.2f}"),
}


def count_confusion(said: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Returns how many records of each class (row) were said to be of each class (column), (C, C)."""
    return torch.bincount(targets * classes + said, minlength=classes * classes).view(classes, classes)


def _measures_of_confusion(confusion: Tensor) -> Measures:
    """Returns the measures that a table of counts gives: balanced accuracy and F1."""
    right = confusion.diagonal().double()
    there, said = confusion.sum(dim=1).double(), confusion.sum(dim=0).double()
    recall = [float(r / n) if n else None for r, n in zip(right, there, strict=True)]
    # 2·precision·recall / (precision + recall) = 2·right / (there + said), which is 0 where nothing is right.
    f1 = [float(2 * r / (n + s)) if n else None for r, n, s in zip(right, there, said, strict=True)]
    return {"balanced_accuracy": _mean_of_known(recall), "f1": _mean_of_known(f1), "f1_by_class": f1}


def _auc_of_class(scores: Tensor, is_of_class: Tensor) -> float | None:
    """Returns the AUC measure of a class: the chance that a record of it scores above another, ties counting half; None
    without both.

    By ranks (Mann and Whitney 1947): AUC = (Σ ranks of the class − n₁(n₁ + 1)/2) / (n₁ n₀), equal scores sharing their mean
    rank.
    """
    inside = int(is_of_class.sum())
    outside = len(scores) - inside
    if not inside or not outside:
        return None
    _, place, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks = (last - (counts.double() - 1) / 2)[place]
    return float((ranks[is_of_class].sum() - inside * (inside + 1) / 2) / (inside * outside))


def _calibration_error(probabilities: Tensor, targets: Tensor) -> float:
    """Returns the calibration measure: the expected calibration error of the most probable class, in ten bins of equal
    width (Guo et al. 2017).
    """
    confidence, said = probabilities.max(dim=1)
    right = (said == targets).double()
    bins = (confidence * _BINS).long().clamp(max=_BINS - 1)
    distance = torch.zeros(_BINS, dtype=torch.float64).index_add_(0, bins, confidence - right)
    return float(distance.abs().sum() / len(targets))


def _mean_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

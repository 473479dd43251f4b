"""Evaluates the model of a run: measures on test records, beside those of a baseline.

Measures on test records, which are public or named in the claim:

    auc                  chance that a record of a class scores above one of another; mean over classes, one against all
    balanced_accuracy    mean over the classes of the share that is recognised
    f1                   harmonic mean of precision and recall, mean over the classes; f1_by_class has each
    calibration_error    mean distance of the stated probability from the share that is right, in ten bins
    confusion            how many records of class i (row) were said to be of class j (column)
    rmse, mae, r2        of numbers, in the target's own units; r2 is the share of the variance that is explained
    perplexity           exp of the mean loss, of language models, whose loss is a mean over tokens

The baseline knows the test records' classes or numbers and nothing of a single record: it always says the most frequent
class, or the mean. A measure that does not beat it shows that nothing was learnt.

Privacy: accuracy and loss on the training records are computed only if they were asked for. The claim lists them by name
from the first step on (`Job.list_not_covered`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sordino.app.runs.job import TRAINING_EVALUATED, Job
from sordino.app.runs.problem import LOSSES
from sordino.app.runs.run_device import device_of
from sordino.ledger.ledger import Ledger
from sordino.release.sealed import Sealed

_CHUNK = 250
"""Records at a time: few enough that the outputs of a layer stay near the processor."""


@dataclass(frozen=True)
class Evaluation:
    """The loss of a model on some records and, if they have classes, its accuracy."""

    loss: float
    outputs: Tensor
    """What the model said of every record, (N, …)."""
    accuracy: float | None = None
    by_class: list[float | None] | None = None
    """The accuracy on the records of each class; None of a class without any."""


def evaluate(
    model: nn.Module,
    records: TensorDataset,
    loss_fn: Callable[[nn.Module, Tensor, Tensor], Tensor],
    classes: int | None,
) -> Evaluation:
    """Evaluates a model: returns the mean loss on the records and, given a number of classes, the accuracy as a whole
    and by class.
    """
    # Evaluation mode is left again afterwards, so that training continues as before.
    training = model.training
    model.eval()
    class_count = classes or 0
    correct_by_class, records_by_class, loss = torch.zeros(class_count).double(), torch.zeros(class_count).double(), 0.0
    outputs = []
    x, y = records.tensors
    device = device_of(model)
    # Records are processed in chunks to bound memory, where the model is, and measured on the CPU. The scores that the
    # loss computed serve the accuracy too.
    with torch.no_grad():
        for inputs, targets in zip(x.split(_CHUNK), y.split(_CHUNK), strict=True):
            scores = _OutputRecorder(model)
            loss += float(loss_fn(scores, inputs.to(device), targets.to(device)).sum())
            outputs.append(scores.last_output.cpu())
            if classes is not None:
                records_by_class += torch.bincount(targets, minlength=class_count)
                correct_by_class += torch.bincount(targets[outputs[-1].argmax(dim=1) == targets], minlength=class_count)
    model.train(training)
    if classes is None:
        return Evaluation(loss / len(y), torch.cat(outputs))
    by_class = [r / n if n else None for r, n in zip(correct_by_class.tolist(), records_by_class.tolist(), strict=True)]
    return Evaluation(loss / len(y), torch.cat(outputs), float(correct_by_class.sum()) / len(y), by_class)


def mark_correct_records(model: nn.Module, job: Job) -> Tensor:
    """Evaluates a run's model on each training record: returns which are classified correctly, (N,) of 0 and 1.

    Privacy: the result is private and must be released with noise.
    """
    outputs = evaluate(model, job.data.train, job.problem.loss_fn, None).outputs
    return (outputs.argmax(dim=1) == job.data.train.tensors[1]).float()


def evaluate_run(job: Job, ledger: Ledger, model: nn.Module) -> tuple[Evaluation, dict[str, Any]]:
    """Evaluates a run's model on the test records; returns the result and further fields of its `Row`.

    Accuracy and loss on the training records are computed only if they were asked for, and are then disclosed in the
    ledger.
    """
    # The test set is public, or is named in the claim, so its figures are shown as they are.
    prepared, problem = job.data, job.problem
    classes = prepared.classes if problem.classifies else None
    test_result = evaluate(model, prepared.test, problem.loss_fn, classes)
    further_fields: dict[str, Any] = {"test_by_class": test_result.by_class, "measures": _measure(job, test_result)}
    # Figures of the training records are sealed; they are opened by a disclosure that the claim lists.
    if job.settings.options.show_private:
        train = Sealed(evaluate(model, prepared.train, problem.loss_fn, classes), ledger).disclose(TRAINING_EVALUATED)
        further_fields |= {"train_accuracy": train.accuracy, "train_loss": train.loss}
    return test_result, further_fields


def _measure(job: Job, result: Evaluation) -> Measures | None:
    """Evaluates a run's model on its test records: returns its measures beside those of a baseline; None of landscapes."""
    _, targets = job.data.test.tensors
    outputs = result.outputs
    # A language model has a row of scores for each token.
    if LOSSES[job.settings.recipe.loss].is_of_tokens:
        return {**measure_tokens(outputs, targets), "baseline": frequency_baseline(targets)}
    # Other measures need a row of scores or numbers for each record, all of them finite.
    if outputs.dim() != 2 or not bool(torch.isfinite(outputs).all()):
        return None
    if job.problem.classifies:
        baseline = majority_baseline(targets, outputs.shape[1])
        return {"accuracy": result.accuracy, **measure_classes(outputs, targets), "baseline": baseline}
    if outputs.shape != targets.shape or job.settings.recipe.loss not in ("squared", "absolute"):
        return None
    units = job.data.encoder.units_per_one
    return {**measure_numbers(outputs, targets, units), "baseline": mean_baseline(targets, units)}


class _OutputRecorder(nn.Module):
    """Wraps a model and keeps its last output, which the loss computes and the accuracy needs as well."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = [model]  # not a part of this module
        self.last_output = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the model's output and keeps it."""
        self.last_output = self.model[0](x)
        return self.last_output


_BINS = 10
MOST_CLASSES_IN_CONFUSION = 20
"""A larger table is not written."""

Measures = dict[str, Any]


def measure_classes(scores: Tensor, targets: Tensor) -> Measures:
    """Evaluates a classifier on test records: returns its measures from its scores (N, C), before softmax, and the true
    classes (N,).

    A class without a test record counts in no mean.

    >>> measure_classes(torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 1.0]]), torch.tensor([0, 1, 0]))["balanced_accuracy"]
    0.75
    """
    # Probabilities in float64, so that ties and calibration are not decided by rounding.
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
    """Evaluates the baseline that always says the most frequent class of the test records: returns its measures.

    >>> majority_baseline(torch.tensor([0, 0, 0, 1]), 2)["accuracy"]
    0.75
    """
    # The baseline knows how frequent the classes are, and nothing else.
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
    """Evaluates predicted numbers (N, K) on test records: returns their measures, where one step of the scaled target
    is `units_per_one` of its own.

    >>> measure_numbers(torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [2.0]]))["rmse"]
    0.7071067811865476
    """
    # R² compares the squared error with that of the mean.
    error = (outputs - targets).double()
    spread = (targets - targets.mean(dim=0)).double()
    unexplained, variance = float(error.square().sum()), float(spread.square().sum())
    return {
        "rmse": math.sqrt(float(error.square().mean())) * units_per_one,
        "mae": float(error.abs().mean()) * units_per_one,
        "r2": 1 - unexplained / variance if variance > 0 else None,
    }


def measure_tokens(scores: Tensor, targets: Tensor) -> Measures:
    """Evaluates a language model on test records: returns its measures from its scores (N, T, V) and the true tokens
    (N, T).

    Tokens with target -100 are left out, and every other token counts alike, however long its text is.

    >>> measure_tokens(torch.zeros(1, 2, 4), torch.tensor([[3, -100]]))["perplexity"]
    4.0
    """
    mean = torch.nn.functional.cross_entropy(scores.double().flatten(0, 1), targets.flatten())
    return {"perplexity": round(perplexity(float(mean)), 9) if bool(torch.isfinite(mean)) else None}


def frequency_baseline(targets: Tensor) -> Measures:
    """Evaluates a baseline that knows how frequent each token of the test records is, and no context: returns its
    measures.
    """
    counted = targets[targets >= 0]
    shares = torch.bincount(counted).double() / max(1, len(counted))
    return {"kind": "token frequencies", "perplexity": perplexity(float(-torch.xlogy(shares, shares).sum()))}


def mean_baseline(targets: Tensor, units_per_one: float = 1.0) -> Measures:
    """Returns the measures of always saying the mean of the test records' numbers."""
    measures = measure_numbers(targets.mean(dim=0, keepdim=True).expand_as(targets), targets, units_per_one)
    return {"kind": "mean", **measures}


def perplexity(mean_loss: float) -> float:
    """Returns the perplexity of a language model that is evaluated on test records: exp of the mean loss over tokens;
    infinite where it overflows.

    >>> perplexity(0.0), perplexity(1e9)
    (1.0, inf)
    """
    return math.exp(mean_loss) if mean_loss < 700 else math.inf


def describe_measures(measures: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Returns the measures of a model that was evaluated on test records in words: name, value and the baseline's value
    of each.
    """
    # Measures come in one order, each beside the baseline's where that has it.
    baseline = measures.get("baseline") or {}
    rows = []
    for name, (title, form) in _TITLES.items():
        if measures.get(name) is not None:
            of_baseline = baseline.get(name)
            rows.append((title, _write(form, measures[name]), "" if of_baseline is None else _write(form, of_baseline)))
    return rows


def _write(form: str, measure: float) -> str:
    """Returns a measure in its form; a large one in whole numbers, because 4.594e+04 is hard to read beside a target.

    >>> _write("{:.4g}", 45_944.2), _write("{:.4g}", 0.61234), _write("{:.2%}", 0.5)
    ('45,944', '0.6123', '50.00%')
    """
    return f"{measure:,.0f}" if 1e4 <= abs(measure) < 1e15 else form.format(measure)


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
    """Returns the measures of an evaluated classifier that a table of confusion gives: balanced accuracy and F1."""
    # A class without test records has no recall and counts in no mean.
    right = confusion.diagonal().double()
    there, said = confusion.sum(dim=1).double(), confusion.sum(dim=0).double()
    recall = [float(r / n) if n else None for r, n in zip(right, there, strict=True)]
    # 2·precision·recall / (precision + recall) = 2·right / (there + said), which is 0 where nothing is right.
    f1 = [float(2 * r / (n + s)) if n else None for r, n, s in zip(right, there, said, strict=True)]
    return {"balanced_accuracy": _mean_of_known(recall), "f1": _mean_of_known(f1), "f1_by_class": f1}


def _auc_of_class(scores: Tensor, is_of_class: Tensor) -> float | None:
    """Returns the AUC of a class when a classifier is evaluated: the chance that a record of it scores above another,
    ties counting half; None without both.

    By ranks (Mann and Whitney 1947): AUC = (Σ ranks of the class − n₁(n₁ + 1)/2) / (n₁ n₀), equal scores sharing their mean
    rank.
    """
    inside = int(is_of_class.sum())
    outside = len(scores) - inside
    if not inside or not outside:
        return None
    # Equal scores share the mean of the ranks that they take up together.
    _, place, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks = (last - (counts.double() - 1) / 2)[place]
    return float((ranks[is_of_class].sum() - inside * (inside + 1) / 2) / (inside * outside))


def _calibration_error(probabilities: Tensor, targets: Tensor) -> float:
    """Returns the expected calibration error of a classifier that is evaluated: of its most probable class, in ten bins
    of equal width (Guo et al. 2017).
    """
    # Records are put in bins by the stated probability; a bin counts by how many records it holds.
    confidence, said = probabilities.max(dim=1)
    right = (said == targets).double()
    bins = (confidence * _BINS).long().clamp(max=_BINS - 1)
    distance = torch.zeros(_BINS, dtype=torch.float64).index_add_(0, bins, confidence - right)
    return float(distance.abs().sum() / len(targets))


def _mean_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

"""Accuracy, loss and further measures on the public test set; accuracy and loss on the training set if asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sordino.app.runs.job import TRAINING_EVALUATED, Job
from sordino.app.runs.measures import Measures, majority_baseline, mean_baseline, measure_classes, measure_numbers
from sordino.ledger.ledger import Ledger
from sordino.release.sealed import Sealed

_CHUNK = 2000


@dataclass(frozen=True)
class Evaluation:
    """The loss of a model on some records and, if they have classes, its accuracy."""

    loss: float
    accuracy: float | None = None
    by_class: list[float | None] | None = None
    """The accuracy on the records of each class; None of a class without any."""
    outputs: Tensor | None = None
    """What the model said of every record, (N, …)."""


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
    # Records are processed in chunks to bound memory; the scores that the loss computed serve the accuracy too.
    with torch.no_grad():
        for inputs, targets in zip(x.split(_CHUNK), y.split(_CHUNK), strict=True):
            scores = _OutputRecorder(model)
            loss += float(loss_fn(scores, inputs, targets).sum())
            outputs.append(scores.last_output)
            if classes is not None:
                records_by_class += torch.bincount(targets, minlength=class_count)
                correct_by_class += torch.bincount(
                    targets[scores.last_output.argmax(dim=1) == targets], minlength=class_count
                )
    model.train(training)
    if classes is None:
        return Evaluation(loss / len(y), outputs=torch.cat(outputs))
    by_class = [r / n if n else None for r, n in zip(correct_by_class.tolist(), records_by_class.tolist(), strict=True)]
    return Evaluation(loss / len(y), float(correct_by_class.sum()) / len(y), by_class, torch.cat(outputs))


def mark_correct_records(model: nn.Module, job: Job) -> Tensor:
    """Evaluates a run's model on each training record: returns which are classified correctly, (N,) of 0 and 1.

    Privacy: the result is private and must be released with noise.
    """
    x, y = job.data.prepared.train.tensors
    correct_chunks, training = [], model.training
    model.eval()
    with torch.no_grad():
        for inputs, targets in zip(x.split(_CHUNK), y.split(_CHUNK), strict=True):
            scores = _OutputRecorder(model)
            job.problem.loss_fn(scores, inputs, targets)
            correct_chunks.append(scores.last_output.argmax(dim=1) == targets)
    model.train(training)
    return torch.cat(correct_chunks).float()


def evaluate_run(job: Job, ledger: Ledger, model: nn.Module) -> tuple[Evaluation, dict[str, Any]]:
    """Evaluates a run's model on the test records; returns the result and further fields of its `Row`.

    Accuracy and loss on the training records are computed only if they were asked for, and are then disclosed in the
    ledger.
    """
    prepared, problem = job.data.prepared, job.problem
    classes = prepared.classes if problem.classifies else None
    test_result = evaluate(model, prepared.test, problem.loss_fn, classes)
    further_fields: dict[str, Any] = {"test_by_class": test_result.by_class, "measures": _measure(job, test_result)}
    if job.settings.options.show_private:
        train = Sealed(evaluate(model, prepared.train, problem.loss_fn, classes), ledger).disclose(TRAINING_EVALUATED)
        further_fields |= {"train_accuracy": train.accuracy, "train_loss": train.loss}
    return test_result, further_fields


def _measure(job: Job, result: Evaluation) -> Measures | None:
    """Returns the measures in the evaluation of a run's model on its test records, beside those of a baseline; None of
    landscapes.
    """
    _, targets = job.data.prepared.test.tensors
    outputs = result.outputs
    if outputs is None or outputs.dim() != 2 or not bool(torch.isfinite(outputs).all()):
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

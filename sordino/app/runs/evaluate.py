"""Accuracy and loss on the test set, which is taken to be public; on the training set where that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sordino.app.runs.job import TRAINING_EVALUATED, Job
from sordino.ledger.ledger import Ledger
from sordino.release.sealed import Sealed

_CHUNK = 2000


@dataclass(frozen=True)
class Evaluation:
    """What a model is worth on some records; of numbers there is no accuracy."""

    loss: float
    accuracy: float | None = None
    by_class: list[float | None] | None = None
    """The accuracy on the records of each class; None of a class without any."""


def evaluate(
    model: nn.Module,
    records: TensorDataset,
    loss_fn: Callable[[nn.Module, Tensor, Tensor], Tensor],
    classes: int | None,
) -> Evaluation:
    """The mean loss of the records; with a number of classes, the share of them classified rightly, too."""
    training = model.training
    model.eval()
    counted = classes or 0
    right, there, loss = torch.zeros(counted).double(), torch.zeros(counted).double(), 0.0
    x, y = records.tensors
    with torch.no_grad():
        for inputs, targets in zip(x.split(_CHUNK), y.split(_CHUNK), strict=True):
            scores = _Kept(model)
            loss += float(loss_fn(scores, inputs, targets).sum())
            if classes is not None:
                there += torch.bincount(targets, minlength=counted)
                right += torch.bincount(targets[scores.last.argmax(dim=1) == targets], minlength=counted)
    model.train(training)
    if classes is None:
        return Evaluation(loss / len(y))
    by_class = [r / n if n else None for r, n in zip(right.tolist(), there.tolist(), strict=True)]
    return Evaluation(loss / len(y), float(right.sum()) / len(y), by_class)


def correct(model: nn.Module, job: Job) -> Tensor:
    """Which training records a run's model classifies rightly, (N,) of 0 and 1. Private: to be released with noise."""
    x, y = job.data.prepared.train.tensors
    found, training = [], model.training
    model.eval()
    with torch.no_grad():
        for inputs, targets in zip(x.split(_CHUNK), y.split(_CHUNK), strict=True):
            scores = _Kept(model)
            job.problem.loss_fn(scores, inputs, targets)
            found.append(scores.last.argmax(dim=1) == targets)
    model.train(training)
    return torch.cat(found).float()


def at_evaluation(job: Job, ledger: Ledger, model: nn.Module) -> tuple[Evaluation, dict[str, Any]]:
    """Of a run's model on the test records, and more fields of its `Row`; the training records', asked for, disclosed."""
    prepared, problem = job.data.prepared, job.problem
    classes = prepared.classes if problem.classifies else None
    found = evaluate(model, prepared.test, problem.loss_fn, classes)
    more: dict[str, Any] = {"test_by_class": found.by_class}
    if job.settings.options.show_private:
        train = Sealed(evaluate(model, prepared.train, problem.loss_fn, classes), ledger).disclose(TRAINING_EVALUATED)
        more |= {"train_accuracy": train.accuracy, "train_loss": train.loss}
    return found, more


class _Kept(nn.Module):
    """The model, and what it said last: a loss asks it once, and an accuracy needs the same answer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = [model]  # not a part of this module
        self.last = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """The model's own."""
        self.last = self.model[0](x)
        return self.last

"""scikit-learn integration: `DPClassifier` and `DPRegressor` for tables.

    model = DPClassifier(epsilon=1.0, delta=1e-5, low=0.0, high=1.0, classes=[0, 1])
    model.fit(X, y).predict_proba(X_new)
    print(model.claim_)

A linear model, or a network with `hidden` units, trained by DP-SGD with noise calibrated to ε. `low` and `high` are the
public bounds of the columns (numbers, or one per column): numbers beyond them are cut, and all are scaled to [−1, 1]. With
`ledger=sd.Ledger()` a second `fit` is charged together with the first.

What would not be covered is refused or voids the claim: cross-validation and searches score private records without noise,
ensembles resample them; a step of a pipeline that was fitted on the records read them without noise; so did `score` and
`predict` on the training set, whether it is the same array, a copy or a data frame of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.integrations.missing_library import NotInstalled
from sordino.integrations.tabular import Array, Tabular
from sordino.ledger.ledger import Ledger
from sordino.refusal import Refusal

try:
    from sklearn.base import ClassifierMixin, RegressorMixin
    from sklearn.utils.validation import check_array
except ImportError as error:
    raise NotInstalled("sklearn", "sklearn") from error

CLASSES = "which classes there are"


class DPClassifier(ClassifierMixin, Tabular):  # type: ignore[misc]
    """A classifier of rows of numbers, (ε, δ)-differentially private.

    Args:
        epsilon: to be met,
        delta: at this δ.
        low: public lower bounds of the columns, one number or one per column.
        high: public upper bounds.
        classes: the public set of classes. Without it those in `y` are used, and the claim says that it does not cover
            which there are.
        hidden: units of a hidden layer; 0 for a linear model.
        epochs: passes over the records, on average.
        lot: records in a lot, on average.
        learning_rate: of Adam.
        bound: the length C that gradients are clipped to.
        ledger: where everything done to the same records is charged.
        seed: for tests.
        **other_names: `batch_size` for `lot`, `lr` for `learning_rate`, `max_grad_norm` for `bound` and the like.

    Privacy:
        `fit` spends ε. `predict` and `score` for records that were trained on void the claim.

    Examples:
        >>> rows = np.random.default_rng(0).uniform(size=(400, 2))
        >>> model = DPClassifier(epsilon=2.0, delta=1e-4, low=0.0, high=1.0, classes=[0, 1], epochs=2, lot=100)
        >>> model.fit(rows, (rows[:, 0] > 0.5).astype(int)).claim_.epsilon <= 2.0
        True

    """

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        low: Any = None,
        high: Any = None,
        classes: Any = None,
        hidden: int = 0,
        epochs: float = 30.0,
        lot: int = 512,
        learning_rate: float = 0.02,
        bound: float = 1.0,
        ledger: Ledger | None = None,
        seed: int | None = None,
        **other_names: Any,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            low=low,
            high=high,
            hidden=hidden,
            epochs=epochs,
            lot=lot,
            learning_rate=learning_rate,
            bound=bound,
            ledger=ledger,
            seed=seed,
            **other_names,
        )
        self.classes = classes

    def fit(self, x: Any, y: Any) -> DPClassifier:
        """Trains the scikit-learn classifier on a table, to the target ε."""
        table, labels = check_array(x), np.asarray(y)
        if labels.ndim != 1 or len(labels) != len(table):
            raise ValueError("y: need one label for each row of X")
        # Classes that are read off the labels say something about the records without noise: they are disclosed below.
        self.classes_ = np.unique(labels) if self.classes is None else np.unique(np.asarray(self.classes))
        if len(self.classes_) < 2:
            raise ValueError("classes: need at least two")
        known = np.isin(labels, self.classes_)
        if not known.all():
            raise Refusal(
                "y holds a label that is not in `classes`.\n"
                "The classes are public and must be all that may occur.\n"
                "Leave such rows out beforehand, or name their class."
            )
        # `np.unique` has sorted the classes, so a binary search finds the place of every label.
        places = torch.as_tensor(np.searchsorted(self.classes_, labels))
        disclosed = [CLASSES] if self.classes is None else []
        self._train(x, table, places, len(self.classes_), _cross_entropy, disclosed)
        return self

    def predict_proba(self, x: Any) -> Array:
        """Returns the probabilities of `classes_`, (rows, classes)."""
        found: Array = self._compute_outputs(x).softmax(dim=1).numpy()
        return found

    def decision_function(self, x: Any) -> Array:
        """Returns scores as scikit-learn's classifiers do; for two classes that of the second over the first."""
        scores = self._compute_outputs(x).numpy()
        found: Array = scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores
        return found

    def predict(self, x: Any) -> Array:
        """Returns the most probable class."""
        found: Array = self.classes_[self._compute_outputs(x).argmax(dim=1).numpy()]
        return found

    def score(self, x: Any, y: Any, sample_weight: Any = None) -> float:
        """Returns the accuracy; on the training set itself it voids the claim."""
        return float(super().score(x, y, sample_weight))


class DPRegressor(RegressorMixin, Tabular):  # type: ignore[misc]
    """Regression on rows of numbers, (ε, δ)-differentially private.

    Args:
        epsilon: to be met,
        delta: at this δ.
        target_low: public lower bound of y; numbers beyond are cut.
        target_high: public upper bound of y.
        low: public lower bounds of the columns.
        high: public upper bounds.
        hidden: units of a hidden layer; 0 for a linear model.
        epochs: passes over the records, on average.
        lot: records in a lot, on average.
        learning_rate: of Adam.
        bound: the length C that gradients are clipped to.
        ledger: where everything done to the same records is charged.
        seed: for tests.
        **other_names: `batch_size` for `lot`, `lr` for `learning_rate`, `max_grad_norm` for `bound` and the like.

    Privacy:
        `fit` spends ε. `predict` and `score` for records that were trained on void the claim.

    Examples:
        >>> rows = np.random.default_rng(0).uniform(size=(400, 2))
        >>> model = DPRegressor(
        ...     epsilon=2.0, delta=1e-4, low=0.0, high=1.0, target_low=0.0, target_high=2.0, epochs=2, lot=100
        ... )
        >>> model.fit(rows, rows.sum(axis=1)).claim_.epsilon <= 2.0
        True

    """

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        target_low: float,
        target_high: float,
        low: Any = None,
        high: Any = None,
        hidden: int = 0,
        epochs: float = 30.0,
        lot: int = 512,
        learning_rate: float = 0.02,
        bound: float = 1.0,
        ledger: Ledger | None = None,
        seed: int | None = None,
        **other_names: Any,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            low=low,
            high=high,
            hidden=hidden,
            epochs=epochs,
            lot=lot,
            learning_rate=learning_rate,
            bound=bound,
            ledger=ledger,
            seed=seed,
            **other_names,
        )
        self.target_low, self.target_high = target_low, target_high

    def fit(self, x: Any, y: Any) -> DPRegressor:
        """Trains the scikit-learn regressor on a table, to the target ε."""
        table, target = check_array(x), np.asarray(y, dtype=np.float64)
        if target.ndim != 1 or len(target) != len(table):
            raise ValueError("y: need one number for each row of X")
        if not self.target_low < self.target_high:
            raise ValueError("target_low and target_high: need target_low < target_high")
        # Cut at public bounds and scaled by them to [−1, 1]: no record has a part in the scale of the others.
        scaled = (
            np.clip(target, self.target_low, self.target_high) - self._target_middle()
        ) / self._target_half_width()
        self._train(x, table, torch.as_tensor(scaled, dtype=torch.float32), 1, _squared_error, [])
        return self

    def predict(self, x: Any) -> Array:
        """Returns predictions of the scikit-learn regressor, within the bounds of the target."""
        raw = self._compute_outputs(x)[:, 0].numpy().astype(np.float64)
        found: Array = np.clip(
            raw * self._target_half_width() + self._target_middle(), self.target_low, self.target_high
        )
        return found

    def score(self, x: Any, y: Any, sample_weight: Any = None) -> float:
        """Returns R²; on the training set itself it voids the claim."""
        return float(super().score(x, y, sample_weight))

    def _target_middle(self) -> float:
        return (self.target_high + self.target_low) / 2

    def _target_half_width(self) -> float:
        return (self.target_high - self.target_low) / 2


def _cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def _squared_error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    found: Tensor = (model(x)[:, 0] - y).square()
    return found

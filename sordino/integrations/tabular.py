"""Tabular models: scaling and training that `DPClassifier` and `DPRegressor` have in common."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sordino.integrations.callers import inspect_callers_of_fit
from sordino.integrations.integrated_run import IntegratedRun
from sordino.integrations.missing_library import NotInstalled
from sordino.integrations.privacy import Privacy
from sordino.integrations.same_records import SCORED, TrainedTable, stand_in_for
from sordino.ledger.claims import Claim
from sordino.ledger.ledger import Ledger
from sordino.lots.repeated_records import EqualRows
from sordino.optim.average import Average
from sordino.runtime_checks.fitted_tables import find_sign_of_fitting
from sordino.sampling.poisson import Poisson

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils.validation import check_array, check_is_fitted
except ImportError as error:
    raise NotInstalled("sklearn", "sklearn") from error

Array = NDArray[Any]

OTHER_NAMES = {
    "batch_size": "lot",
    "lr": "learning_rate",
    "clip": "bound",
    "max_grad_norm": "bound",
    "l2_norm_clip": "bound",
    "n_epochs": "epochs",
    "max_epochs": "epochs",
    "random_state": "seed",
}
"""What other libraries call the parameters of the estimators; they are kept under the estimators' own names."""

_DECAY = 0.95
"""The decay of the average of the weights that is kept: it covers the last twenty steps or so."""


class Tabular(BaseEstimator):  # type: ignore[misc]
    """The base of both estimators: their parameters, training, outputs and claim."""

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
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
        self.epsilon, self.delta, self.low, self.high = epsilon, delta, low, high
        self.hidden, self.epochs, self.lot, self.learning_rate = hidden, epochs, lot, learning_rate
        self.bound, self.ledger, self.seed = bound, ledger, seed
        # A parameter that was given under two names would have two values, of which one would win without a word.
        for name, value in self._use_own_names(other_names).items():
            if getattr(self, name) != inspect.signature(type(self).__init__).parameters[name].default:
                raise TypeError(f"{name}: is given twice, under two of its names; give one of them")
            setattr(self, name, value)

    def set_params(self, **params: Any) -> Tabular:
        """Sets parameters of the tabular model, by its own names or by those of other libraries, and returns it."""
        own_names = {name: value for name, value in params.items() if name not in OTHER_NAMES}
        renamed = self._use_own_names({name: value for name, value in params.items() if name in OTHER_NAMES})
        super().set_params(**own_names, **renamed)
        return self

    def _use_own_names(self, given: dict[str, Any]) -> dict[str, Any]:
        """Returns parameters of the tabular model under its own names; raises TypeError for a name that is unknown."""
        unknown = [name for name in given if name not in OTHER_NAMES]
        if unknown:
            known = ", ".join(sorted(self._get_param_names()))
            raise TypeError(f"{unknown[0]}: is no parameter of {type(self).__name__}; there is {known}")
        renamed = {OTHER_NAMES[name]: value for name, value in given.items()}
        if len(renamed) < len(given):
            raise TypeError(f"{', '.join(given)}: two of these name one parameter; give one of them")
        return renamed

    @property
    def claim_(self) -> Claim:
        """What can truly be said of everything that the tabular model did so far."""
        check_is_fitted(self, "model_")
        found: Claim = self.run_.claim()
        return found

    def _train(self, given: Any, x: Array, y: Tensor, outputs: int, loss: Any, disclosed: list[str]) -> None:
        """Trains the tabular model on the table x, made of what was given; `disclosed` was read off the data without
        noise.
        """
        features = self._scale_columns(x)
        # What was done to the table before may leave no guarantee; it is recorded after training.
        void = inspect_callers_of_fit() or find_sign_of_fitting(x) or _explain_repeated_rows(x)
        n = len(y)
        model = _make_network(features.shape[1], int(self.hidden), outputs, self.seed)
        # Lots are drawn by Poisson sampling, and the noise is calibrated to the number of steps.
        expected = min(float(self.lot), float(n))
        sampler = Poisson(min(1.0, self.lot / n))
        steps = max(1, round(self.epochs * n / expected))
        privacy = Privacy.target(epsilon=self.epsilon, delta=self.delta, bound=self.bound)
        data = TensorDataset(features, y)
        self.ledger_ = Ledger() if self.ledger is None else self.ledger
        # Copies of a table count as one dataset, so that two fits are known to add up.
        self.ledger_.uses(stand_in_for(x))
        for name in disclosed:
            self.ledger_.disclose(name)
        self.run_ = IntegratedRun(
            model, loss, privacy, data, sampler, steps, expected_batch=expected, ledger=self.ledger_, seed=self.seed
        )
        self.private_ = self.run_.private
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
        # Steps shrink towards 0, so that the noise of the last ones hardly moves the result.
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 - k / steps)
        average = Average(model, decay=_DECAY)
        # Plain DP-SGD with Adam; the average of the last weights is post-processing.
        for drawn in self.run_.draws():
            self.private_.backward(drawn)
            optimizer.step()
            schedule.step()
            average.update()
        average.copy_to(model)
        if void is not None:
            self.ledger_.void(void)
        self.model_ = model
        self.n_features_in_ = x.shape[1]
        # Digests of the rows, to notice when the training set is predicted for.
        self._trained_tables = (TrainedTable.remember(given), TrainedTable.remember(x))

    def _scale_columns(self, x: Array) -> Tensor:
        """Returns the columns of a tabular model's table, cut to public bounds and scaled to [−1, 1]; unchanged where
        no bounds were given.
        """
        if (self.low is None) != (self.high is None):
            raise ValueError(
                "low without high, or high without low: give both, the public bounds of the columns, or none"
            )
        if self.low is None:
            return torch.as_tensor(x, dtype=torch.float32)
        low, high = (np.broadcast_to(np.asarray(b, dtype=np.float64), (x.shape[1],)) for b in (self.low, self.high))
        if not (low < high).all():
            raise ValueError("low and high: need low < high in every column")
        return torch.as_tensor(2 * (np.clip(x, low, high) - low) / (high - low) - 1, dtype=torch.float32)

    @torch.no_grad()
    def _compute_outputs(self, x: Any) -> Tensor:
        """Returns the tabular model's outputs; for records that were trained on, it voids the claim."""
        check_is_fitted(self, "model_")
        table = check_array(x)
        if table.shape[1] != self.n_features_in_:
            raise ValueError(f"X has {table.shape[1]} columns: need the {self.n_features_in_} of fit")
        # What is predicted for records that were trained on has no noise. A loaded copy does not know them.
        if any(trained.shares_rows_with(x) for trained in getattr(self, "_trained_tables", ())):
            self.ledger_.void(SCORED)
        found: Tensor = self.model_(self._scale_columns(table))
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state without the run, because its noise must not be in two places.

        A loaded model predicts; its claim stays with this one.
        """
        return {
            name: value for name, value in vars(self).items() if name not in ("private_", "run_", "_trained_tables")
        }


def _explain_repeated_rows(x: Array) -> str | None:
    """Returns why a tabular model has no guarantee if rows of its table were copied, as oversampling does, else None.

    Rows that were cut and scaled afterwards may not show it.
    """
    if EqualRows.find_in(TensorDataset(torch.from_numpy(np.array(x, dtype=np.float64)))).copies == 1:
        return None
    return "rows are in the table several times, so one record moves the sum several times; give every record once"


def _make_network(columns: int, hidden: int, outputs: int, seed: int | None) -> nn.Module:
    """Returns the network of a tabular model: linear, or with one hidden layer, whose last layer begins at zero."""
    # Seeding inside a fork leaves the caller's generator as it was.
    with torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        last = nn.Linear(hidden or columns, outputs)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        return last if not hidden else nn.Sequential(nn.Linear(columns, hidden), nn.Tanh(), last)

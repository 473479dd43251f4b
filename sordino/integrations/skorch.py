"""skorch integration: its classifier and regressor, trained privately.

    net = NeuralNetClassifier(Net, criterion=nn.CrossEntropyLoss, privacy=Privacy.target(…), max_epochs=10, batch_size=100)
    net.fit(X, y)
    print(net.claim_)

`batch_size` is the expected lot. The criterion is asked for one loss per record (`reduction="none"`). skorch's own split
for validation is off: it would score private records without noise; `predefined_split` takes held-out ones.

Privacy: gradients come from `Private.backward` alone; nothing is recorded in the history that was not released. Whatever is
predicted or scored for records that were trained on voids the claim; cross-validation, searches and ensembles are refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sordino.integrations.callers import inspect_callers_of_fit
from sordino.integrations.epochs import EpochLoader, count_lots_per_epoch
from sordino.integrations.equal_rows import table_of
from sordino.integrations.integrated_run import IntegratedRun, require_privacy
from sordino.integrations.missing_library import NotInstalled
from sordino.integrations.privacy import Privacy
from sordino.integrations.same_records import SCORED, stand_in_for
from sordino.ledger.claims import Claim
from sordino.refusal import Refusal
from sordino.runtime_checks.fitted_tables import find_sign_of_fitting
from sordino.sampling.poisson import Poisson

try:
    import skorch
    import skorch.dataset
except ImportError as error:
    raise NotInstalled("skorch", "skorch") from error

CLASSES = "which classes there are"


def _to_array(table: Any) -> Any:
    return table.detach().cpu().numpy() if isinstance(table, Tensor) else table


class _PrivateNet:
    """The private part that both networks have in common; it comes before skorch's own class."""

    privacy: Privacy

    def get_iterator(self, dataset: Any, training: bool = False) -> Any:
        """Returns lots for skorch's training; any other iterator voids the claim if it has records of the training set."""
        net: Any = self
        if not training:  # every way of theirs to predict, score or validate comes through here
            if hasattr(net, "run_"):
                net.run_.void_if_trained_on((dataset,), SCORED)
            return super().get_iterator(dataset, training=training)  # type: ignore[misc]
        # Look at what came before this fit: it may have read the records without noise.
        table = table_of(dataset)
        void = inspect_callers_of_fit() or (None if table is None else find_sign_of_fitting(_to_array(table)))
        privacy = require_privacy(self.privacy)
        if isinstance(net.train_split, skorch.dataset.ValidSplit):
            raise Refusal(
                "train_split would score private records without noise after every epoch.\n"
                "The scores are printed, and the claim would not cover them.\n"
                "Use train_split=None, or skorch.helper.predefined_split(held_out)."
            )
        # Lots are drawn by Poisson sampling, and the noise is calibrated to all epochs.
        n = len(dataset)
        sampler = Poisson(min(1.0, net.batch_size / n))
        per_epoch = count_lots_per_epoch(n, sampler.expected_size(n))
        steps = per_epoch * net.max_epochs
        # From here on the run is charged; what is known against its claim is recorded at once.
        net.module_.train()
        net.run_ = IntegratedRun(net.module_, self._losses_by_record, privacy, dataset, sampler, steps)
        net.private_, net.ledger_ = net.run_.private, net.run_.ledger
        net.ledger_.uses(stand_in_for(table))
        if getattr(net, "classes", ()) is None:
            net.ledger_.disclose(CLASSES)
        if void is not None:
            net.ledger_.void(void)
        return EpochLoader(net.run_.draws(), per_epoch, dataset)

    def _losses_by_record(self, module: nn.Module, x: Any, y: Any) -> Tensor:
        """Returns one loss per record from the criterion of the skorch net."""
        net: Any = self
        scores = module(**x) if isinstance(x, dict) else module(x)
        found: Tensor = net.get_loss(scores, y, X=x, training=True)
        return found

    def train_step_single(self, batch: Any, **fit_params: Any) -> dict[str, Any]:
        """Writes the lot's noisy gradient in skorch's training step and returns the released loss, or NaN if none is
        released.
        """
        net: Any = self
        if fit_params:
            raise Refusal(
                f"fit parameters {', '.join(fit_params)} were given.\n"
                "Everything that a record has is drawn with it, so it must be in X.\n"
                "Put them there."
            )
        net._set_training(True)
        loss = net.run_.backward(batch, "Leave get_iterator as it is.")
        # Predictions for the lot were not released, so callbacks get none.
        return {"loss": torch.tensor(float("nan") if loss is None else loss), "y_pred": torch.zeros(0)}

    def run_single_epoch(self, iterator: Any, training: bool, prefix: str, step_fn: Any, **fit_params: Any) -> None:
        """Runs an epoch as skorch does, with the public size of a lot in place of the true one."""
        net: Any = self
        if not training:
            super().run_single_epoch(iterator, training, prefix, step_fn, **fit_params)  # type: ignore[misc]
            return
        for batch in iterator:
            net.notify("on_batch_begin", batch=batch, training=True)
            step = step_fn(batch, **fit_params)
            net.history.record_batch(prefix + "_loss", step["loss"].item())
            # How many records a lot really has is private; the history gets the public number.
            net.history.record_batch(prefix + "_batch_size", max(1, round(batch.expected_batch)))
            net.notify("on_batch_end", batch=batch, training=True, **step)
        net.history.record(prefix + "_batch_count", len(iterator))

    def validation_step(self, batch: Any, **fit_params: Any) -> dict[str, Any]:
        """Returns skorch's step with the mean of the losses of held-out records."""
        # The criterion gives one loss per record here, where skorch expects one number.
        step: dict[str, Any] = super().validation_step(batch, **fit_params)  # type: ignore[misc]
        return {**step, "loss": step["loss"].mean()}

    @property
    def claim_(self) -> Claim:
        """What can truly be said of the skorch net's training so far."""
        net: Any = self
        if not hasattr(net, "run_"):
            raise Refusal("nothing was trained yet.\nThere is no run that a claim could be about.\nCall fit first.")
        found: Claim = net.run_.claim()
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state without the run: its noise must not be in two places, and a copy has no ledger."""
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name not in ("private_", "run_")}


class NeuralNetClassifier(_PrivateNet, skorch.NeuralNetClassifier):  # type: ignore[misc]
    """skorch's classifier, private.

        privacy = Privacy.target(epsilon=3.0, delta=1e-5, bound=1.0)
        net = NeuralNetClassifier(nn.Linear(20, 2), privacy=privacy, classes=[0, 1], batch_size=100)
        print(net.fit(X, y).claim_)

    Args:
        module: theirs.
        *args: as they take them.
        privacy: a query and a δ, or a target.
        criterion: asked for one loss per record.
        train_split: None, or `predefined_split(held_out)`.
        **kwargs: theirs. `batch_size` is the expected lot; `classes` should be given, or the claim does not cover which
            there are.

    Privacy:
        `fit` spends ε. Whatever is predicted for records that were trained on voids the claim.

    """

    def __init__(
        self,
        module: Any,
        *args: Any,
        privacy: Privacy,
        criterion: Any = nn.CrossEntropyLoss,
        train_split: Any = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("criterion__reduction", "none")
        super().__init__(module, *args, criterion=criterion, train_split=train_split, **kwargs)
        self.privacy = privacy


class NeuralNetRegressor(_PrivateNet, skorch.NeuralNetRegressor):  # type: ignore[misc]
    """skorch's regressor, private.

        net = NeuralNetRegressor(nn.Linear(20, 1), privacy=Privacy.target(epsilon=3.0, delta=1e-5, bound=1.0))
        print(net.fit(X, y).claim_)

    Args:
        module: theirs.
        *args: as they take them.
        privacy: a query and a δ, or a target.
        criterion: asked for one loss per record.
        train_split: None, or `predefined_split(held_out)`.
        **kwargs: theirs.

    Privacy:
        `fit` spends ε. Whatever is predicted for records that were trained on voids the claim.

    """

    def __init__(
        self,
        module: Any,
        *args: Any,
        privacy: Privacy,
        criterion: Any = nn.MSELoss,
        train_split: Any = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("criterion__reduction", "none")
        super().__init__(module, *args, criterion=criterion, train_split=train_split, **kwargs)
        self.privacy = privacy

    def _losses_by_record(self, module: nn.Module, x: Any, y: Any) -> Tensor:
        # A record with several targets still has one loss: it is records that are clipped.
        return super()._losses_by_record(module, x, y).flatten(1).mean(dim=1)

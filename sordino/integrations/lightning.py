"""Lightning integration: a module whose training step is `Private.backward`.

It works with automatic optimisation:

    class Classifier(PrivateModule):
        def record_losses(self, x, y): …                  # one loss per record, in place of training_step
        def configure_optimizers(self): …                 # as ever

    module = Classifier()
    lots = module.make_private(data, Privacy.target(epsilon=3.0, delta=1e-5, bound=1.0), sd.Poisson(0.01), steps=500)
    L.Trainer(max_epochs=1).fit(module, lots)
    print(module.claim())

Lightning's loop, loggers, callbacks and checkpoints are its own. A checkpoint holds the ledger and no noise key: training
goes on from it with a new one. `privacy/epsilon` is logged, and `loss` where one is released (`sd.WithLoss`).

Privacy: gradients come from `Private.backward` alone, in the hook `backward`; every check of `Private` is at work.
"""

from __future__ import annotations

import math
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from sordino.integrations.integrated_run import IntegratedRun
from sordino.integrations.missing_library import NotInstalled
from sordino.integrations.privacy import Privacy
from sordino.integrations.same_records import EVALUATED
from sordino.ledger.claims import Claim
from sordino.lots.lot import Draws
from sordino.per_sample.protocol import Backend
from sordino.private import Private
from sordino.refusal import Refusal
from sordino.sampling.sampler import Sampler

try:
    import lightning
except ImportError as error:
    raise NotInstalled("lightning", "lightning") from error

_STATE = "sordino"
_HOOKS = (
    "on_train_start",
    "on_validation_start",
    "on_test_start",
    "on_predict_start",
    "on_save_checkpoint",
    "on_load_checkpoint",
)
_EVERY = 10
"""Steps between two logged values of ε."""


class PrivateModule(lightning.LightningModule):  # type: ignore[misc]
    """A `LightningModule` that is trained privately: write `record_losses` and `configure_optimizers`.

        module = Classifier()
        lots = module.make_private(data, Privacy.target(epsilon=3.0, delta=1e-5, bound=1.0), sd.Poisson(0.01), steps=500)
        lightning.Trainer(max_epochs=1).fit(module, lots)
        print(module.claim())

    Privacy:
        `fit` spends ε. Validating, testing or predicting records that were trained on voids the claim.

    """

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[str, Any] = {}  # what is not a module: Lightning must not move, copy or save it

    def __init_subclass__(cls, **more: Any) -> None:
        """Puts the hooks that a subclass writes behind those here, whether or not it calls `super`."""
        super().__init_subclass__(**more)
        for name in _HOOKS:
            if name in vars(cls):
                setattr(cls, name, _chain_hooks(getattr(PrivateModule, name), vars(cls)[name]))

    def __getstate__(self) -> dict[str, Any]:
        """Returns the weights alone, because the noise must not be in two places."""
        return {**super().__getstate__(), "_held": {}}

    def record_losses(self, *batch: Any) -> Tensor:
        """Returns one loss per record of a batch, shape (B,)."""
        raise NotImplementedError(f"{type(self).__name__}: write record_losses(self, *batch), one loss per record")

    def make_private(
        self,
        dataset: Any,
        privacy: Privacy,
        sampler: Sampler,
        steps: int,
        *,
        expected_batch: float | None = None,
        backend: Backend | None = None,
        **more: Any,
    ) -> Draws:
        """Returns the lots to fit a Lightning module on: `trainer.fit(module, lots)`.

        Args:
            dataset: has a length and records by number.
            privacy: a query and a δ, or a target.
            sampler: who is in a lot.
            steps: how many lots.
            expected_batch: the public number that every sum is divided by.
            backend: how gradients are measured.
            **more: goes to `Private.draws`.

        Returns:
            The lots, to be given to `trainer.fit` as its data loader.

        """
        # Only losses by record can be bounded, so whatever replaces them is refused.
        for name in ("training_step", "backward"):
            if getattr(type(self), name) is not getattr(PrivateModule, name):
                raise Refusal(f"{name} is overridden: what it computes is not bounded by record; write record_losses")
        if not self.automatic_optimization:
            raise Refusal("automatic_optimization=False: each lot is one step of one optimizer; leave it as it is")
        run = IntegratedRun(
            self, _losses_by_record, privacy, dataset, sampler, steps, expected_batch=expected_batch, backend=backend
        )
        # A checkpoint that was loaded before brings its ledger and position.
        if _STATE in self._held:
            run.private.load_state_dict(self._held.pop(_STATE))
        self._held["run"] = run
        return run.draws(**more)

    @property
    def private(self) -> Private:
        """The run."""
        return self._require_run().private

    def _require_run(self) -> IntegratedRun:
        """Returns the private run of a Lightning module; refuses a module that was not made private."""
        if "run" not in self._held:
            raise Refusal("this module was not made private: fit it on the lots that module.make_private(…) gives")
        run: IntegratedRun = self._held["run"]
        return run

    def claim(self) -> Claim:
        """Returns what can truly be said of the training so far."""
        return self._require_run().claim()

    def on_train_start(self) -> None:
        """Refuses the settings of Lightning's trainer that a loop of lots cannot do."""
        trainer = self.trainer
        if trainer.accumulate_grad_batches != 1:
            raise Refusal(
                f"accumulate_grad_batches={trainer.accumulate_grad_batches}: a lot is one step, however large, and the "
                "lots before the last would be lost; leave it out, and give make_private a larger rate"
            )
        if str(trainer.precision) not in ("32-true", "64-true", "32", "64"):
            raise Refusal(
                f"precision={trainer.precision!r}: half precision is not supported by this integration; use 32-true, or "
                "train in bfloat16 in a loop of your own"
            )
        if trainer.world_size > 1:
            raise Refusal("several processes: each would draw for itself; use devices=1")

    def on_validation_start(self) -> None:
        """Voids the claim if records that were trained on are to be validated."""
        self._void_if_trained_on(self.trainer.val_dataloaders)

    def on_test_start(self) -> None:
        """Voids the claim if records that were trained on are to be tested."""
        self._void_if_trained_on(self.trainer.test_dataloaders)

    def on_predict_start(self) -> None:
        """Voids the claim if records that were trained on are to be predicted for."""
        self._void_if_trained_on(self.trainer.predict_dataloaders)

    def log(self, name: str, value: Any, *positional: Any, **more: Any) -> None:
        """Logs a value as Lightning does; refuses what `record_losses` would log, which has no noise."""
        if self._held.get("asked"):
            raise Refusal(
                f"self.log({name!r}) in record_losses: what is computed there is of private records and has no noise; "
                "release a noisy mean of the losses that the claim counts, by Privacy.target(…, loss_bound=…)"
            )
        super().log(name, value, *positional, **more)

    def _void_if_trained_on(self, loaders: Any) -> None:
        if "run" in self._held:
            datasets = (getattr(loader, "dataset", None) for loader in _flatten_loaders(loaders))
            self._require_run().void_if_trained_on(datasets, EVALUATED)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Keeps the lot for `backward`."""
        self._held["lot"] = batch
        return torch.zeros((), device=self.device, requires_grad=True)

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Writes the lot's noisy gradient into `.grad` in place of Lightning's backward, and what was released into the
        log.
        """
        lot, run = self._held.pop("lot"), self._require_run()
        released_loss = run.backward(lot, "Fit on the lots of module.make_private(…), as in trainer.fit(module, lots).")
        size = max(1, round(lot.expected_batch))  # a public number
        if released_loss is not None:
            self.log("loss", released_loss, on_step=True, batch_size=size)
        if lot.step % _EVERY == 0:
            # Without a guarantee ε is infinite; the last finite one must not stay on the progress bar.
            epsilon = run.epsilon()
            shown = math.inf if epsilon is None else epsilon
            self.log("privacy/epsilon", shown, on_step=True, prog_bar=True, batch_size=size)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Saves the ledger and the position with the weights; the noise key stays in this process."""
        if "run" in self._held:
            checkpoint[_STATE] = self.private.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes the ledger and the position from a Lightning checkpoint; refuses one that has none."""
        state = checkpoint.get(_STATE)
        if state is None:
            raise Refusal("this checkpoint has no ledger: what its training cost is not known; begin from its weights")
        if "run" in self._held:
            raise Refusal(
                "load the checkpoint before make_private: module = Classifier.load_from_checkpoint(path), then "
                "module.make_private(…) for the steps that are left, then fit"
            )
        self._held[_STATE] = state


def _losses_by_record(module: Any, *batch: Any) -> Tensor:
    """Returns the losses that a Lightning module's `record_losses` gives, and refuses logging while it runs."""
    module._held["asked"] = True
    try:
        losses: Tensor = module.record_losses(*batch)
    finally:
        module._held["asked"] = False
    return losses


def _chain_hooks(first: Any, second: Any) -> Any:
    """Returns a Lightning hook that runs that of `PrivateModule` first and then that of the subclass."""

    @wraps(second)
    def hook(self: Any, *args: Any, **kwargs: Any) -> Any:
        first(self, *args, **kwargs)
        return second(self, *args, **kwargs)

    return hook


def _flatten_loaders(loaders: Any) -> list[Any]:
    """Returns a list of data loaders from what Lightning takes: one, lists and dicts, or its `CombinedLoader`."""
    inner = getattr(loaders, "flattened", loaders)
    if isinstance(inner, dict):
        inner = list(inner.values())
    return [one for part in inner for one in _flatten_loaders(part)] if isinstance(inner, list | tuple) else [inner]

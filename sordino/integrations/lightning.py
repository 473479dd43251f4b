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
goes on from it with a new one, or with the old one if that was kept in a key folder. Under torchrun the ranks divide each
lot, with the claim and the bits of one process: `L.Trainer(strategy=PrivateStrategy(), devices=…)`. `privacy/epsilon` is
logged, and `loss` where one is released (`sd.WithLoss`).

Privacy: gradients come from `Private.backward` alone, in the hook `backward`; every check of `Private` is at work.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial, wraps
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from sordino.integrations.integrated_run import IntegratedRun
from sordino.integrations.launched import is_in_group, join_launched_group, refuse_training_alone
from sordino.integrations.missing_library import NotInstalled
from sordino.integrations.privacy import Privacy
from sordino.integrations.same_records import EVALUATED
from sordino.ledger.claims import Claim
from sordino.ledger.tripwire import following_move
from sordino.lots.lot import Draws
from sordino.per_sample.protocol import Backend
from sordino.private import Private
from sordino.refusal import Refusal
from sordino.sampling.sampler import Sampler

try:
    import lightning
    from lightning_utilities.core.apply_func import apply_to_collection
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
_PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true")
"""Lightning's precisions that need no gradient scaler."""
_CONVERTED = {"64-true": torch.float64, "bf16-true": torch.bfloat16}
"""Precisions in which parameters and batches are converted as a whole."""


class PrivateStrategy(lightning.pytorch.strategies.DDPStrategy):  # type: ignore[misc]
    """Lightning's strategy for several processes, without their average of gradients: the ranks divide each lot.

        torchrun --nproc-per-node 2 train.py

        lots = module.make_private(…)                        # joins the processes that torchrun started
        lightning.Trainer(strategy=PrivateStrategy(), devices=2).fit(module, lots)

    Privacy:
        DistributedDataParallel would add up gradients that are no releases. Here the module stays as it is, and
        `Private.backward` writes the same released gradient on every rank.

    """

    def configure_ddp(self) -> None:
        """Leaves the module unwrapped, because `Private` divides the lots by itself."""


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
        # A hook that forgets to call `super` would else switch off the refusals here, and the saving of the ledger.
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
        precision: str = "32-true",
        key_folder: str | Path | None = None,
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
            precision: that of Lightning's trainer, such as "bf16-mixed": losses are tried before the trainer is there.
            key_folder: a folder for the noise key, as secret as the data. A module that was loaded from a checkpoint then
                repeats the bits of the undisturbed run, on any number of ranks.
            **more: goes to `Private.draws`.

        Returns:
            The lots, to be given to `trainer.fit` as its data loader.

        """
        # Only losses by record can be bounded, so whatever replaces them is refused.
        for name in ("training_step", "backward"):
            if getattr(type(self), name) is not getattr(PrivateModule, name):
                raise Refusal(
                    f"{name} is overridden.\nWhat it computes is not bounded by record.\nWrite record_losses."
                )
        if not self.automatic_optimization:
            raise Refusal(
                "automatic_optimization=False was given.\n"
                "Each lot is one step of one optimizer, which the trainer makes.\n"
                "Leave it as it is."
            )
        if precision not in _PRECISIONS:
            raise Refusal(
                f"precision={precision!r} was given.\n"
                "Its gradient scaler would scale gradients that were released.\n"
                f"Use one of {', '.join(_PRECISIONS)}."
            )
        self._held["precision"] = precision
        if precision in _CONVERTED:  # as Lightning would do it later, when the losses have been tried
            self.to(_CONVERTED[precision])
        # The ranks must know each other before the run has a key; Lightning would introduce them in `fit`.
        join_launched_group(self.device)
        run = IntegratedRun(
            self,
            _losses_by_record,
            privacy,
            dataset,
            sampler,
            steps,
            expected_batch=expected_batch,
            backend=backend,
            key_folder=key_folder,
        )
        # A checkpoint that was loaded before brings its ledger and position.
        run.start(self._held.pop(_STATE, None))
        self._held["run"] = run
        return run.draws(**more)

    @property
    def steps_done(self) -> int:
        """The lots that the Lightning module has drawn so far, also in the run whose checkpoint was loaded and is to be
        continued.
        """
        if "run" in self._held:
            return self.private.steps
        return int(self._held[_STATE]["steps"]) if _STATE in self._held else 0

    @property
    def private(self) -> Private:
        """The run."""
        return self._require_run().private

    def _require_run(self) -> IntegratedRun:
        """Returns the private run of a Lightning module; refuses a module that was not made private."""
        if "run" not in self._held:
            raise Refusal(
                "this module was not made private.\n"
                "The trainer would train it on plain batches, without noise.\n"
                "Fit it on the lots that module.make_private(…) gives."
            )
        run: IntegratedRun = self._held["run"]
        return run

    def claim(self) -> Claim:
        """Returns what can truly be said of the training so far."""
        return self._require_run().claim()

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Moves the module as Lightning does. The trainer moves it to its device before the first lot and back to the CPU
        after the last, and the claim stays, because a move changes no value.
        """
        with following_move(self):
            super().to(*args, **kwargs)
        return self

    def cpu(self) -> Self:
        """Moves the module to the CPU, as Lightning's trainer does at the end of `fit`; the claim stays."""
        with following_move(self):
            super().cpu()
        return self

    def cuda(self, device: torch.device | int | None = None) -> Self:
        """Moves the Lightning module to a CUDA device; the claim stays."""
        with following_move(self):
            super().cuda(device)
        return self

    def on_train_start(self) -> None:
        """Refuses the settings of Lightning's trainer that a loop of lots cannot do."""
        trainer = self.trainer
        if trainer.accumulate_grad_batches != 1:
            raise Refusal(
                f"accumulate_grad_batches={trainer.accumulate_grad_batches} was given.\n"
                "A lot is one step, however large, and the lots before the last would be lost.\n"
                "Leave it out, and give make_private a larger rate."
            )
        tried = self._held.get("precision", "32-true")
        if str(trainer.precision) != tried:
            raise Refusal(
                f"precision={trainer.precision!r}, and the losses were tried in {tried!r}.\n"
                "What was tried must be what is trained: give the same precision to make_private and to the Trainer, "
                "one "
                f"of {', '.join(_PRECISIONS)}."
            )
        refuse_training_alone(
            trainer.world_size,
            "Start the processes by torchrun, and give Trainer(devices=…, strategy=PrivateStrategy()).",
        )
        if is_in_group() and trainer.strategy.model is not self:
            raise Refusal(
                f"the strategy wrapped the module in a {type(trainer.strategy.model).__name__}, which adds up "
                "gradients "
                "that are no releases.\n"
                "Give Trainer(strategy=PrivateStrategy()), of sordino.integrations.lightning."
            )

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
                f"self.log({name!r}) in record_losses.\n"
                "What is computed there is of private records and has no noise.\n"
                "Release a noisy mean of the losses that the claim counts, by Privacy.target(…, loss_bound=…)."
            )
        super().log(name, value, *positional, **more)

    def _void_if_trained_on(self, loaders: Any) -> None:
        if "run" in self._held:
            datasets = (getattr(loader, "dataset", None) for loader in _flatten_loaders(loaders))
            self._require_run().void_if_trained_on(datasets, EVALUATED)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Keeps the lot of Lightning's training step for `backward`."""
        # Lightning wants a loss that can be differentiated; this zero never is, because `backward` is another one here.
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
            raise Refusal(
                "this checkpoint has no ledger.\n"
                "What its training cost is not known.\n"
                "Begin from its weights, whose training then counts as public."
            )
        if "run" in self._held:
            raise Refusal(
                "the checkpoint was loaded after make_private.\n"
                "The run would not know what its training has cost.\n"
                "Load it first: module = Classifier.load_from_checkpoint(path), then module.make_private(…) for the "
                "steps that are left, then fit."
            )
        self._held[_STATE] = state


def _losses_by_record(module: Any, *batch: Any) -> Tensor:
    """Returns the losses that a Lightning module's `record_losses` gives in the run's precision, and refuses logging while
    it runs.
    """
    precision = module._held.get("precision", "32-true")
    if precision in _CONVERTED:
        # Only floats follow the type of the weights: token ids and labels must stay whole numbers.
        batch = apply_to_collection(batch, Tensor, partial(_convert_floats, next(module.parameters()).dtype))
    mixed = torch.autocast(module.device.type, torch.bfloat16) if precision == "bf16-mixed" else nullcontext()
    # While this is set `log` refuses, also if the user's function raises in between.
    module._held["asked"] = True
    try:
        with mixed:
            losses: Tensor = module.record_losses(*batch)
    finally:
        module._held["asked"] = False
    return losses


def _convert_floats(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _chain_hooks(first: Any, second: Any) -> Any:
    """Returns a Lightning hook that runs that of `PrivateModule` first and then that of the subclass."""

    @wraps(second)
    def hook(self: Any, *args: Any, **kwargs: Any) -> Any:
        first(self, *args, **kwargs)
        return second(self, *args, **kwargs)

    return hook


def _flatten_loaders(loaders: Any) -> list[Any]:
    """Returns a list of data loaders from what Lightning takes: one, lists and dicts, or its `CombinedLoader`."""
    # A `CombinedLoader` has its loaders in this list, however they were nested.
    inner = getattr(loaders, "flattened", loaders)
    if isinstance(inner, dict):
        inner = list(inner.values())
    return [one for part in inner for one in _flatten_loaders(part)] if isinstance(inner, list | tuple) else [inner]

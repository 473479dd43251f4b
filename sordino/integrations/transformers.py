"""Hugging Face integration: their `Trainer`, private, with ε as a metric and a claim.

Their arguments, callbacks and checkpoints work as ever:

    trainer = Trainer(model, args, train_dataset=tokenised, processing_class=tokenizer,
                      privacy=Privacy.target(epsilon=3.0, delta=1e-5, bound=1.0))
    trainer.train()
    print(trainer.claim())

What is otherwise than theirs: lots are drawn (Poisson, of per_device_train_batch_size × gradient_accumulation_steps records
on average, processed at most per_device_train_batch_size at a time); the loss is one per record (`sordino.losses`), never
the model's own mean; gradients are clipped per record, so `max_grad_norm` is left out; nothing is logged that was not
released. Before the first step it is said what share of a step will be noise, and what to change where that is too much;
during the run `signal_to_noise` stands in the logs, from released gradients.

Under torchrun the ranks of the process group divide each lot. The lot, the claim and every bit of the parameters are those
of one process (on CPUs: `TrainingArguments(use_cpu=True)`); a checkpoint of one number of ranks is continued by another.

Privacy: gradients come from `Private.backward` alone and every check of `Private` is at work. Their loop only steps, logs,
evaluates and saves. Evaluating the training set voids the claim.
"""

from __future__ import annotations

import copy
import json
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sordino import validate
from sordino.finetuning.frozen_texts import find_adaptable_layer
from sordino.finetuning.plan import Plan, make_plan
from sordino.integrations.accelerate import prepare_plain_model
from sordino.integrations.epochs import EpochLoader, count_lots_per_epoch
from sordino.integrations.integrated_run import IntegratedRun, require_privacy
from sordino.integrations.launched import choose_records_at_once
from sordino.integrations.missing_library import NotInstalled
from sordino.integrations.privacy import Privacy
from sordino.integrations.same_records import EVALUATED
from sordino.ledger.claims import Claim, Guarantee
from sordino.losses import for_model
from sordino.lots.loading import count_records
from sordino.optim import SignalToNoise
from sordino.optim.step_noise import ENOUGH
from sordino.per_sample.protocol import Backend
from sordino.private import Private
from sordino.refusal import Refusal
from sordino.sampling.poisson import Poisson
from sordino.sampling.sampler import Sampler
from sordino.state_packing import pack, unpack

try:
    import transformers
except ImportError as error:
    raise NotInstalled("transformers", "huggingface") from error

STATE = "sordino"
"""Name of the files beside a checkpoint of theirs: the ledger and the position as JSON, tensors of a query's state.

They may be uploaded with the weights: the noise key is in neither. Training goes on from them with a new key."""
CARD = "PRIVACY.md"
_REFUSED: dict[str, tuple[Any, str]] = {
    "fp16": (False, "its gradient scaler would scale gradients that were released; use bf16=True, or float32"),
    "label_smoothing_factor": (0.0, "its loss is a mean over the batch; give loss_fn= with the smoothing in it"),
    "torch_compile": (False, "its lots have no fixed shape; leave it out, or compile the model in a loop of your own"),
    "auto_find_batch_size": (
        False,
        "lots are drawn by rate; set per_device_train_batch_size, which memory alone limits",
    ),
    "include_num_input_tokens_seen": ("no", "the number of tokens drawn is private; leave it out"),
    "train_sampling_strategy": ("random", "lots are drawn by a sampler; give sampler=, such as sd.ByLength"),
    "dataloader_drop_last": (False, "a lot has no last batch to drop; leave it out"),
    "fsdp": (None, "its shards are not the library's; leave it out, and every rank holds the model"),
    "deepspeed": (None, "it steps by gradients of its own; leave it out, and every rank holds the model"),
    "parallelism_config": (None, "lots are divided among all processes alike; leave it out"),
}


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """Their `Trainer`, trained privately.

        trainer = Trainer(model, args, train_dataset=tokenised, privacy=Privacy.target(epsilon=3.0, delta=1e-5, bound=1.0))
        trainer.train()
        print(trainer.claim())

    Args:
        model: theirs, or PEFT's.
        args: theirs. Lots have per-device batch × accumulation records on average.
        *positional, **more: theirs: datasets, callbacks, the tokenizer.
        privacy: a query and a δ, or a target.
        loss_fn: `loss_fn(model, batch)` gives one loss per record; by default that of the model's class.
        sampler: who is in a lot; Poisson by default.
        expected_batch: the public divisor. Without it the claim says that it does not cover the number of records.
        backend: how gradients are measured.
        key_folder: a folder for the noise key, as secret as the data. Training that continues from a checkpoint then
            repeats the bits of the undisturbed run, on any number of ranks; without it, it continues with a new key.

    Privacy:
        `train` spends ε. Evaluating records that were trained on voids the claim, under whatever name.

    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: transformers.TrainingArguments | None = None,
        *positional: Any,
        privacy: Privacy,
        loss_fn: Callable[..., Tensor] | None = None,
        sampler: Sampler | None = None,
        expected_batch: float | None = None,
        backend: Backend | None = None,
        key_folder: str | Path | None = None,
        **more: Any,
    ) -> None:
        require_privacy(privacy)
        # A loss of a batch cannot be bounded by record, so whatever would replace it is refused.
        if type(self).compute_loss is not transformers.Trainer.compute_loss:
            raise Refusal(
                "compute_loss is overridden, and training would not ask it.\n"
                "A private step needs one loss per record.\n"
                "Give loss_fn=, with one loss per record."
            )
        if more.get("compute_loss_func") is not None:
            raise Refusal(
                "compute_loss_func was given.\n"
                "It gives one number for a batch, and a record's share of it cannot be bounded.\n"
                "Give loss_fn=, a function of (model, batch) with one loss per record, such as "
                "sd.losses.classification."
            )
        # Their batch size and accumulation give the expected lot, before the arguments are changed for the loop.
        given = transformers.TrainingArguments("trainer_output") if args is None else args
        self._privacy, self._loss_fn, self._sampler, self._expected = privacy, loss_fn, sampler, expected_batch
        self._backend, self._at_once, self._key_folder = backend, given.per_device_train_batch_size, key_folder
        self._lot_size: int = given.per_device_train_batch_size * given.gradient_accumulation_steps
        self._run: IntegratedRun | None = None
        self._signal: SignalToNoise | None = None
        self._resume: dict[str, Any] | None = None
        super().__init__(model, _check_arguments(given), *positional, **more)

    def claim(self) -> Claim:
        """Returns what can truly be said of the training so far."""
        return self._require_run().claim()

    @property
    def private(self) -> Private | None:
        """The run; None before `train`."""
        return None if self._run is None else self._run.private

    def get_train_dataloader(self) -> EpochLoader:
        """Returns lots instead of the batches of Hugging Face's Trainer; called once by each call of `train`."""
        dataset = self.train_dataset
        if dataset is None:
            raise ValueError("Trainer: training requires a train_dataset.")
        n, args = count_records(dataset), self.args
        # Rate, lots in an epoch and steps follow from public numbers; the noise is calibrated to them.
        dataset, collate = self._select_columns(dataset)
        sampler = Poisson(min(1.0, self._lot_size / n)) if self._sampler is None else self._sampler
        validate.sampler("sampler", sampler)
        expected = sampler.expected_size(n) if self._expected is None else self._expected
        per_epoch = count_lots_per_epoch(n, expected)
        steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * per_epoch)
        # On their device and under their autocast, and not wrapped for several processes.
        prepare_plain_model(self.accelerator, self.model)
        # The loss must be one per record: that of the model's class, or the user's own.
        loss = for_model(self.model) if self._loss_fn is None else self._loss_fn
        run = self._run = IntegratedRun(
            self.model,
            loss,
            self._privacy,
            self.train_dataset,
            sampler,
            steps,
            expected_batch=self._expected,
            backend=self._backend,
            key_folder=self._key_folder,
        )
        # A checkpoint brings its ledger and position; the noise has a new key, unless the old one was kept.
        run.start(self._resume)
        self._resume = None
        self.model.train()  # the mode in which the loss is tried before the first draw
        # Only the steps that are left are drawn, in parts that leave work for several ranks.
        at_once = choose_records_at_once(self._at_once, expected) if run.has_bits_of_ranks else self._at_once
        draws = run.draws(
            dataset,
            max(1, steps - run.private.steps),
            physical_batch=at_once,
            collate=collate,
            workers=args.dataloader_num_workers,
        )
        self._signal = SignalToNoise(run.private)
        self._say_noise_of_steps(n)
        return EpochLoader(draws, per_epoch, dataset)

    def _say_noise_of_steps(self, records: int) -> None:
        """Writes to standard error, before the first step of Hugging Face's Trainer, what share of a step will be noise
        and what to change where it is too much.
        """
        noise = self._require_run().private.step_noise
        # All ranks know the same public numbers; one of them says so.
        if noise is None or not self.is_world_process_zero():
            return
        epsilon = self._privacy.epsilon
        target = "" if epsilon is None else f", epsilon={epsilon:g}"
        last = f"or let public numbers choose: sordino.finetune(model, tokenizer, texts, labels{target})"
        advice = noise.advise(records=records, epsilon=epsilon, delta=self._privacy.delta, last=last)
        sys.stderr.write(f"{advice}\n")
        # Where noise is much of the way, what `finetune` would choose is shown with its own figures.
        if noise.signal_to_noise < ENOUGH and (plan := self._plan_of_finetune(records)) is not None:
            sys.stderr.write(f"What sordino.finetune would choose by public numbers:\n{plan}\n")

    def _plan_of_finetune(self, records: int) -> Plan | None:
        """Returns the plan that `sordino.finetune` would make for the model, records and ε of Hugging Face's Trainer;
        None where the model is no classifier of texts, or no ε is aimed at.
        """
        config = getattr(self.model, "config", None)
        width, classes = getattr(config, "hidden_size", None), getattr(config, "num_labels", None)
        epsilon = self._privacy.epsilon
        # A language model has classes in its configuration too; only a model for sequence classification has a head.
        is_classifier = "ForSequenceClassification" in type(self.model).__name__
        if (
            epsilon is None
            or not is_classifier
            or not isinstance(width, int)
            or not isinstance(classes, int)
            or classes < 2
        ):
            return None
        can_adapt = find_adaptable_layer(self.model) is not None
        delta = self._privacy.delta
        return make_plan(records, classes=classes, width=width, epsilon=epsilon, delta=delta, can_adapt=can_adapt)

    def num_examples(self, dataloader: Any) -> int:
        """Returns how many records Hugging Face's Trainer is told of: for lots, the number expected to be drawn in an
        epoch, which is public.
        """
        if isinstance(dataloader, EpochLoader):
            return round(len(dataloader) * self._lot_size)
        found: int = super().num_examples(dataloader)
        return found

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Writes the lot's noisy gradient into `.grad` in place of Hugging Face's training step; returns the released
        mean of the losses, or 0.
        """
        if model is not self.model:
            raise Refusal(
                f"the model was wrapped in a {type(model).__name__}.\n"
                "Its layers are not those that per-sample gradients are taken of.\n"
                "Train the plain model."
            )
        model.train()
        released_loss = self._require_run().backward(inputs, "Leave get_train_dataloader as it is.")
        # The released gradient tells how much of a step is signal; a run that only walks at random is told so, once.
        if self._signal is not None:
            self._signal.update()
            if self._signal.finds_random_walk() and self.is_world_process_zero():
                sys.stderr.write(f"{self._signal.warning()}\n")
        return torch.tensor(released_loss or 0.0, device=self.args.device)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs what was released, and ε, through Hugging Face's Trainer."""
        run = self._run
        if run is not None and run.private.steps:
            if not run.releases_loss:
                logs.pop("loss", None)
                logs.pop("train_loss", None)
            epsilon = run.epsilon()
            if epsilon is not None:
                logs.update({"epsilon": epsilon, "delta": run.delta})
            # Of the steps since the last line, and of all steps so far, from released gradients.
            if self._signal is not None and (of_step := self._signal.of_step()) is not None:
                logs["signal_to_noise"] = round(of_step, 4)
                logs["signal_to_noise_of_run"] = round(self._signal.of_run() or 0.0, 4)
        super().log(logs, start_time)

    def train(self, resume_from_checkpoint: Any = None, *positional: Any, **more: Any) -> Any:
        """Trains as Hugging Face's Trainer does; the claim is in the metrics, and beside the model where one is saved."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = _find_last_complete_checkpoint(self.args.output_dir)
        self._read_state(resume_from_checkpoint)
        done = super().train(resume_from_checkpoint, *positional, **more)
        claim = self.claim()
        for name in ("epsilon", "delta"):  # as logged before the end: something may have come since
            done.metrics.pop(name, None)
        if isinstance(claim, Guarantee):
            done.metrics.update({"epsilon": claim.epsilon, "delta": claim.delta})
        if not self._require_run().releases_loss:
            done.metrics.pop("train_loss", None)
            done = done._replace(training_loss=float("nan"))
        if self.args.should_save:
            Path(self.args.output_dir, CARD).write_text(f"# Privacy\n\n```text\n{claim}\n```\n", encoding="utf-8")
        return done

    def evaluate(self, eval_dataset: Any = None, *positional: Any, **more: Any) -> Any:
        """Evaluates as theirs does; on records that were trained on it voids the claim."""
        self._void_if_trained_on(self.eval_dataset if eval_dataset is None else eval_dataset)
        return super().evaluate(eval_dataset, *positional, **more)

    def predict(self, test_dataset: Any, *positional: Any, **more: Any) -> Any:
        """Predicts as theirs does; for records that were trained on it voids the claim."""
        self._void_if_trained_on(test_dataset)
        return super().predict(test_dataset, *positional, **more)

    def evaluation_loop(self, dataloader: Any, *positional: Any, **more: Any) -> Any:
        """Runs their evaluation loop, under whatever name it was asked for, and checks its records first."""
        self._void_if_trained_on(getattr(dataloader, "dataset", None))
        return super().evaluation_loop(dataloader, *positional, **more)

    def hyperparameter_search(self, *_: Any, **__: Any) -> Any:
        """Refuses Hugging Face's hyper-parameter search: the best of several trainings costs more than one of them."""
        raise Refusal(
            "hyperparameter_search trains many times and publishes the best.\n"
            "The claim would be of that run alone.\n"
            "Use `sordino tune`, whose claim is of the search, or search on public data."
        )

    def create_model_card(self, *positional: Any, **more: Any) -> None:
        """Writes Hugging Face's model card, with the claim at its end."""
        super().create_model_card(*positional, **more)
        card = Path(self.args.output_dir, "README.md")
        if self._run is not None and card.exists() and self.is_world_process_zero():
            text = card.read_text(encoding="utf-8")
            card.write_text(f"{text}\n## Privacy\n\n```text\n{self.claim()}\n```\n", encoding="utf-8")

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Saves the ledger and the position beside Hugging Face's checkpoint; the noise key is not saved."""
        super()._save_checkpoint(model, trial)
        from safetensors.torch import save_file

        folder = Path(self._get_output_dir(trial=trial), f"checkpoint-{self.state.global_step}")
        tensors: dict[str, Tensor] = {}
        state = pack(self._require_run().private.state_dict(), STATE, tensors)
        if not self.args.should_save:  # one rank writes for all
            return
        # The JSON file comes last and at once: a checkpoint that has it is complete, whenever a process was killed.
        save_file(tensors, folder / f"{STATE}.safetensors")
        unfinished = folder / f"{STATE}.json.new"
        unfinished.write_text(json.dumps(state), encoding="utf-8")
        unfinished.replace(folder / f"{STATE}.json")

    def _read_state(self, checkpoint: Any) -> None:
        """Reads the ledger of a Hugging Face checkpoint that training goes on from; refuses a checkpoint without one."""
        if not checkpoint:
            return
        from safetensors.torch import load_file

        folder = Path(checkpoint)
        if not (folder / f"{STATE}.json").exists():
            raise Refusal(
                f"{folder.name} has no {STATE}.json.\n"
                "It was not saved by this Trainer, and what its training cost is not known.\n"
                "Start anew from the model, whose training then counts as public."
            )
        state = json.loads((folder / f"{STATE}.json").read_text(encoding="utf-8"))
        self._resume = unpack(state, load_file(folder / f"{STATE}.safetensors"))

    def _load_best_model(self) -> None:
        with self._require_run().private.post_processing("the best of the saved checkpoints, by the evaluation set"):
            super()._load_best_model()

    def _void_if_trained_on(self, dataset: Any) -> None:
        if self._run is not None:
            self._run.void_if_trained_on(dataset.values() if isinstance(dataset, dict) else (dataset,), EVALUATED)

    def _select_columns(self, dataset: Any) -> tuple[Any, Callable[[list[Any]], Any]]:
        """Returns the dataset and collate with the columns that the model takes, as Hugging Face's Trainer selects
        them.
        """
        collate = self.data_collator
        if type(dataset).__module__.startswith("datasets."):
            return self._remove_unused_columns(dataset, description="training"), collate
        # Theirs come from a set, in another order in every process; ranks compare what collates their records.
        self._set_signature_columns_if_needed()
        self._signature_columns.sort()
        return dataset, self._get_collator_with_removed_columns(collate, description="training")

    def _require_run(self) -> IntegratedRun:
        if self._run is None:
            raise Refusal("nothing was trained yet.\nThere is no run that a claim could be about.\nCall train() first.")
        return self._run


def _find_last_complete_checkpoint(folder: str) -> str | None:
    """Returns the last checkpoint in the output folder of Hugging Face's Trainer that is complete, or the last one if
    none is.

    A process that is killed while it saves leaves a checkpoint without a ledger. The one before it is whole.
    """
    last: str | None = transformers.trainer_utils.get_last_checkpoint(folder)
    complete = {
        int(path.parent.name.rpartition("-")[2]): str(path.parent)
        for path in Path(folder).glob(f"checkpoint-*/{STATE}.json")
    }
    return complete[max(complete)] if complete else last


def _check_arguments(args: Any) -> Any:
    """Returns a copy of Hugging Face's training arguments for a loop of lots, or refuses them with the cure."""
    for name, (usual, why) in _REFUSED.items():
        with suppress(AttributeError):  # arguments come and go with their versions
            if getattr(args, name) not in (usual, None, False if usual == "no" else usual):
                raise Refusal(f"{name}={getattr(args, name)!r}: {why}")
    if getattr(args, "n_gpu", 0) > 1:
        raise Refusal(
            f"one process with {args.n_gpu} devices: theirs would cut every batch over them by DataParallel.\n"
            f"Start one process for each device: torchrun --nproc-per-node {args.n_gpu} train.py"
        )
    checked = copy.copy(args)
    checked.gradient_accumulation_steps = 1  # a lot is one step, however large
    checked.max_grad_norm = 0.0  # records are clipped, one by one; what is released need not be
    checked.ignore_data_skip = True  # lots are drawn anew after a checkpoint, not skipped
    checked.average_tokens_across_devices = False  # theirs would multiply losses of held-out records by the processes
    return checked

"""Loops of the frameworks as a launcher starts them: `python -m tests.integrations.launched_loops KIND FOLDER …`.

Several kinds, as in `trainer+lightning`, run one after the other. Every kind trains a small model for some steps, writes
checkpoints and ends with `parameters.pt` and `claim.json`, which the first rank writes, in `FOLDER/KIND`. The noise key is
kept in `FOLDER/KIND/key`, so that a run that continues from the checkpoint of a step can be compared bit by bit.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import sordino as sd
from sordino.integrations import Privacy

warnings.simplefilter("ignore")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
QUERY = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(300, 6, generator=GENERATOR)
DATA = torch.utils.data.TensorDataset(X, (X[:, 0] > 0).long())
RATE = 1 / 6


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


def losses(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def report(folder: Path, model: nn.Module, claim: sd.Guarantee, **more: Any) -> None:
    """Writes what the run came to, on the first rank, after comparing it with the other ranks."""
    own = torch.cat([p.detach().float().flatten() for p in model.parameters()])
    if dist.is_initialized() and dist.get_world_size() > 1:
        others = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(others, own)
        assert all(torch.equal(own, other) for other in others)
    if not dist.is_initialized() or dist.get_rank() == 0:
        assert isinstance(claim, sd.Guarantee), claim
        torch.save({name: p.detach() for name, p in model.named_parameters()}, folder / "parameters.pt")
        size = dist.get_world_size() if dist.is_initialized() else 0
        said = {"epsilon": claim.epsilon, "event": repr(claim.event), "ranks": size, **more}
        (folder / "claim.json").write_text(json.dumps(said))


def train_by_trainer(folder: Path, args: argparse.Namespace) -> None:
    """Hugging Face's Trainer on sentences; a checkpoint after every step."""
    import transformers

    from sordino.integrations.transformers import Trainer
    from tests.integrations.words import Sentences, bert, padded

    class Slow(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            time.sleep(args.pause)

    settings = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=25,
        gradient_accumulation_steps=2,
        max_steps=args.steps,
        logging_steps=2,
        save_strategy="steps",
        save_steps=1,
        learning_rate=1e-2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        bf16=args.bf16,
    )
    model = bert()
    trainer = Trainer(
        model,
        settings,
        data_collator=padded,
        train_dataset=Sentences(300, seed=0),
        eval_dataset=Sentences(50, seed=1),
        privacy=Privacy(query=QUERY, delta=1e-5),
        key_folder=folder / "key",
        callbacks=[Slow()] if args.pause else [],
    )
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{args.resume}") if args.resume else None)
    evaluated = trainer.evaluate()["eval_loss"]
    report(folder, model, trainer.claim(), evaluated=evaluated)


def train_by_accelerate(folder: Path, args: argparse.Namespace) -> None:
    """A loop of one's own by accelerate, which writes its state after every step."""
    from accelerate import Accelerator

    from sordino.integrations.accelerate import prepare

    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if args.bf16 else "no")
    found = torch.load(folder / f"{args.resume}.pt", weights_only=True) if args.resume else None
    model = net()
    if found:
        model.load_state_dict(found["model"])
    model, optimizer = prepare(accelerator, model, torch.optim.Adam(model.parameters(), lr=0.05))
    private = sd.Private(model, losses, QUERY, mesh=None if dist.is_initialized() else "single")
    if found:
        optimizer.load_state_dict(found["optimizer"])
        private.load_state_dict(found["private"], replay=sd.Replay("the same script", secret=folder / "key"))
    elif accelerator.is_main_process:
        (folder / "key").mkdir(exist_ok=True)
        private.save_secret(folder / "key")
    for lot in private.draws(DATA, sd.Poisson(RATE), args.steps - private.steps, expected_batch=50, physical_batch=8):
        private.backward(lot)
        optimizer.step()
        if accelerator.is_main_process:
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "private": private.state_dict()}
            torch.save(parts, folder / "new")
            (folder / "new").replace(folder / f"{private.steps}.pt")
        time.sleep(args.pause)
    report(folder, accelerator.unwrap_model(model), private.claim(1e-5))


def train_by_lightning(folder: Path, args: argparse.Namespace) -> None:
    """Lightning's Trainer, with a checkpoint after every step."""
    import lightning

    from sordino.integrations.lightning import PrivateModule, PrivateStrategy

    logging.getLogger("lightning").setLevel(logging.ERROR)

    class Classifier(PrivateModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def record_losses(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(x), y, reduction="none")

        def validation_step(self, batch: Any, _: int) -> None:
            x, y = batch
            self.log("accuracy", (self.net(x).argmax(1) == y).float().mean(), sync_dist=True)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.5)

        def on_train_batch_end(self, *_: Any) -> None:
            time.sleep(args.pause)

    saved = folder / f"{args.resume}.ckpt"
    module = Classifier.load_from_checkpoint(saved, weights_only=False) if args.resume else Classifier()
    left = args.steps - module.steps_done
    lots = module.make_private(
        DATA,
        Privacy(query=QUERY, delta=1e-5),
        sd.Poisson(RATE),
        left,
        expected_batch=50,
        physical_batch=8,
        key_folder=folder / "key",
    )
    keep = lightning.pytorch.callbacks.ModelCheckpoint(
        folder, "{step}", auto_insert_metric_name=False, save_top_k=-1, every_n_train_steps=1
    )
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=dist.get_world_size() if dist.is_initialized() else 1,
        strategy=PrivateStrategy() if dist.is_initialized() else "auto",
        precision="bf16-mixed" if args.bf16 else "32-true",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[keep],
    )
    trainer.fit(
        module, lots, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(-X[:40], DATA.tensors[1][:40]))
    )
    report(folder, module.net, module.claim())


KINDS = {"trainer": train_by_trainer, "accelerate": train_by_accelerate, "lightning": train_by_lightning}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--resume", type=int, default=0, help="the step whose checkpoint is continued from")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after every step, so that one can be killed")
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for kind in args.kinds.split("+"):
        (args.folder / kind).mkdir(parents=True, exist_ok=True)
        KINDS[kind](args.folder / kind, args)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

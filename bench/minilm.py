"""MiniLM-L6 on texts: a head, LoRA and full fine-tuning of its last layers at several ε. One JSON line per run.

    python -m bench.minilm --task r8 --mode lora --epsilon 3 --held-out         a trial, on held-out training data
    python -m bench.minilm --task r8 --mode lora --epsilon 3 --seed 1 --keep    on the test set, into results/minilm.json
    python -m bench.minilm --table                                              the table of docs/recipes.md

What is reduced, so that a run takes minutes on one core: the first 64 tokens of a text are read; of MiniLM's six layers the
last `--layers` are trained, on what the frozen ones before them make of each text, computed once and kept. The head is
trained first, on frozen vectors, in small lots; then, with the head as it is, adapters or layers in large ones: two phases
in one ledger, at one noise multiplier.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import time
from functools import cache as cache_in_memory
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import sordino as sd
from bench.minilm_settings import SETTINGS
from sordino import events
from sordino.accounting import PLD, calibrate
from sordino.data import cache
from sordino.data.text import texts
from sordino.events.training import training_event
from sordino.nn import minilm
from sordino.runs.environment import processor

DELTA = 1e-5
RESULTS = Path(__file__).parent / "results" / "minilm.json"
RANK = 4


class Tail(nn.Module):
    """The last layers of the encoder, and a linear layer on the mean of the token vectors."""

    def __init__(self, layers: list[nn.Module], classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(minilm.WIDTH, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def vectors(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(B, T, width) to (B, width)."""
        hidden = hidden.float()  # (B, T, width)
        away = (1.0 - mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
        for layer in self.layers:
            hidden = layer(hidden, away)
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        seen = mask.unsqueeze(2).float()
        mean = (hidden * seen).sum(1) / seen.sum(1).clamp(min=1)
        return nn.functional.normalize(mean, dim=1) * float(minilm.WIDTH) ** 0.5

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """The scores."""
        return self.head(self.vectors(hidden, mask))


@cache_in_memory
def kept(task: str, part: str, layers: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """What the layers before the last ones make of texts, in half precision, the mask, and the whole encoder's vectors."""
    some: list[str] = getattr(texts(task), part)
    ids, mask = minilm.tokens(some, length)
    name = hashlib.sha256("\n".join(some).encode()).hexdigest()[:24]
    path = cache.root() / "features" / f"minilm-hidden-{6 - layers}-{length}-{name}.npy"
    whole = cache.root() / "features" / f"minilm-vectors-{length}-{name}.npy"
    if not path.is_file():
        encoder: Any = minilm.classifier(1).encoder.eval()
        made = np.empty((len(some), length, minilm.WIDTH), np.float16)
        with torch.no_grad():
            for at in range(0, len(some), 64):
                found = encoder(ids[at : at + 64], mask[at : at + 64], output_hidden_states=True).hidden_states
                made[at : at + 64] = found[6 - layers].numpy()
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, made)
    hidden = torch.from_numpy(np.load(path, mmap_mode="r+"))
    if not whole.is_file():
        last: Any = minilm.classifier(1).encoder
        np.save(whole, vectors(Tail(list(last.encoder.layer[6 - layers :]), 1).eval(), hidden, mask).numpy())
    return hidden, mask, torch.from_numpy(np.load(whole))


@torch.no_grad()
def vectors(model: Tail, hidden: Tensor, mask: Tensor) -> Tensor:
    """Of many texts, (N, width)."""
    return torch.cat([model.vectors(h, m) for h, m in zip(hidden.split(128), mask.split(128), strict=True)])


def trial(a: argparse.Namespace) -> dict[str, Any]:
    """One run."""
    began = time.process_time()
    found = texts(a.task)
    train, test = (kept(a.task, part, a.layers, a.length) for part in ("train", "test"))
    y, test_y = torch.tensor(found.train_labels), torch.tensor(found.test_labels)
    if a.held_out:  # a tenth of the training data, the same in every trial
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
        cut = len(y) * 9 // 10
        test, test_y = tuple(one[order[cut:]] for one in train), y[order[cut:]]  # type: ignore[assignment]
        train, y = tuple(one[order[:cut]] for one in train), y[order[:cut]]  # type: ignore[assignment]
    torch.manual_seed(a.seed)
    encoder: Any = minilm.classifier(1).encoder
    model = Tail(
        list(encoder.encoder.layer[6 - a.layers :]), len(found.classes)
    ).eval()  # no dropout: the noise is enough
    if a.mode == "lora":
        import peft

        peft.inject_adapter_in_model(
            peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=["query", "value"]), model
        )
    for name, p in model.named_parameters():
        p.requires_grad_(name.startswith("head"))

    def loss(model: nn.Module, *batch: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(*batch[:-1]), batch[-1], reduction="none")

    ledger, tuned = sd.Ledger(), 0 if a.mode == "head" else a.steps

    def event(sigma: float) -> events.Event:
        phases = [(a.head_lot, a.head_steps), (a.lot, tuned)]
        return events.compose(training_event(lot, events.Gaussian(sigma), steps) for lot, steps in phases if steps)

    if a.epsilon:
        query = sd.NoisySum(sd.Flat(a.bound), sd.Gaussian(calibrate(event, PLD(), a.epsilon, DELTA)))
    else:
        query = sd.NoisySum(sd.Flat(1e3), sd.Gaussian(0.0))

    def fit(part: nn.Module, columns: tuple[Tensor, ...], share: float, steps: int, rate: float) -> sd.Private:
        """`steps` lots with a falling rate."""
        private = sd.Private(part, loss, query, ledger=ledger)
        optimizer = torch.optim.Adam([p for p in part.parameters() if p.requires_grad], lr=rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 - k / steps)
        dataset = torch.utils.data.TensorDataset(*columns, y)
        expected = float(f"{share * len(y):.1g}")  # round: not N
        for lot in private.draws(dataset, sd.Poisson(share), steps, expected_batch=expected, physical_batch=a.physical):
            private.backward(lot)
            optimizer.step()
            schedule.step()
        return private

    def accuracy(trained: bool) -> float:
        scores = model.head(vectors(model, *test[:2]) if trained else test[2])
        return round(100 * float((scores.argmax(1) == test_y).float().mean()), 2)

    private = fit(model.head, (train[2],), a.head_lot, a.head_steps, a.head_rate)
    result = {k: v for k, v in vars(a).items() if k not in ("keep", "table", "physical")} | {
        "head_accuracy": accuracy(False)
    }
    if a.mode != "head":
        for name, p in model.named_parameters():
            p.requires_grad_("lora" in name or (a.mode == "full" and name.startswith("layers")))
        private = fit(model, train[:2], a.lot, a.steps, a.rate)
    result["accuracy"] = accuracy(a.mode != "head")
    said = private.claim(DELTA)
    result["trained"] = sum(p.numel() for p in model.parameters() if p.requires_grad)
    result["trained"] += sum(p.numel() for p in model.head.parameters()) if a.mode != "head" else 0
    result["claimed"] = round(said.epsilon, 4) if isinstance(said, sd.Guarantee) else said.reason
    result["not_covered"] = list(said.not_covered) if isinstance(said, sd.Guarantee) else []
    return result | {"cpu_seconds": round(time.process_time() - began), "processor": processor(), "threads": 1}


def table() -> str:
    """Mean and spread of the kept runs, as Markdown."""
    rows: dict[tuple[str, str], dict[float, list[dict[str, Any]]]] = {}
    for one in json.loads(RESULTS.read_text()):
        rows.setdefault((one["task"], one["mode"]), {}).setdefault(one["epsilon"], []).append(one)
    at = sorted({epsilon for row in rows.values() for epsilon in row}, key=lambda e: e or 1e9)
    lines = ["| task | trained | " + " | ".join(f"ε = {e:g}" if e else "no privacy" for e in at) + " | CPU-s a run |"]
    lines += ["|---" * (len(at) + 3) + "|"]
    for (task, mode), row in rows.items():
        numbers = next(iter(row.values()))[0]["trained"]
        cells = [_cell(row.get(epsilon, [])) for epsilon in at]
        seconds = max(one["cpu_seconds"] for runs in row.values() for one in runs)
        lines.append(f"| {task} | {mode}, {numbers:,} numbers | " + " | ".join(cells) + f" | {seconds} |")
    return "\n".join(lines)


def _cell(runs: list[dict[str, Any]]) -> str:
    values = [one["accuracy"] for one in runs]
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread}"


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--task", choices=("r8", "20news"), default="r8")
    p.add_argument("--mode", choices=("head", "lora", "full"), default="head")
    p.add_argument("--epsilon", type=float, default=0.0, help="0: no noise and no clipping to speak of")
    p.add_argument("--layers", type=int, default=1)
    p.add_argument("--length", type=int, default=64)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--physical", type=int, default=64)
    p.add_argument("--held-out", action="store_true")
    p.add_argument("--keep", action="store_true")
    p.add_argument("--table", action="store_true")
    for name, kind in (
        ("head-lot", float),
        ("lot", float),
        ("head-steps", int),
        ("head-rate", float),
        ("steps", int),
        ("rate", float),
    ):
        p.add_argument(f"--{name}", type=kind, help="in place of the tuned one")
    p.add_argument("--bound", type=float, default=1.0)
    a = p.parse_args()
    if a.table:
        print(table())
        return
    for name, value in SETTINGS[a.task, a.mode, a.epsilon].items():
        setattr(a, name, value if getattr(a, name) is None else getattr(a, name))
    result = trial(a)
    print(json.dumps(result), flush=True)
    if a.keep:
        before = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
        RESULTS.write_text(json.dumps([*before, result], indent=1) + "\n")


if __name__ == "__main__":
    main()

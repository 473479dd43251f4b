"""MiniLM-L6 on texts: a head, LoRA and full fine-tuning of its last layer at several ε. One JSON line per run.

    python -m bench.minilm --task r8 --mode lora --epsilon 3 --held-out         a trial, on held-out training data
    python -m bench.minilm --task r8 --mode lora --epsilon 3 8 --seeds 3 --keep on the test set, into results/minilm.json
    python -m bench.minilm --table                                              the table of docs/recipes.md

What is reduced is said in minilm_tail.py. The head is trained first, on the frozen encoder's vectors; then adapters or the
layer in large lots, and the head with them if it has a rate there: two phases in one ledger, at one noise multiplier.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import sordino as sd
from bench.minilm_settings import SETTINGS
from bench.minilm_tail import Tail, kept, last_layer
from sordino import events
from sordino.accounting import PLD, calibrate
from sordino.data.text import texts
from sordino.events.training import training_event
from sordino.runs.environment import processor

DELTA = 1e-5
RESULTS = Path(__file__).parent / "results" / "minilm.json"
RANK = 8
MODES = ("head", "lora", "full")
NUMBERS: dict[str, type] = {
    "head_lot": float,
    "head_steps": int,
    "head_rate": float,
    "lot": float,
    "steps": int,
    "rate": float,
    "head_rate_then": float,
    "bound": float,
    "scale": float,
}
ADAPTED = ["wider.dense", "output.dense"]


def loss(model: nn.Module, *batch: Tensor) -> Tensor:
    """Cross-entropy of each record."""
    return nn.functional.cross_entropy(model(*batch[:-1]), batch[-1], reduction="none")


def split(task: str, held_out: bool) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Columns of training and test records, labels last; or, of the training records, four fifths and the others."""
    found = texts(task)
    train = (*kept(task, "train"), torch.tensor(found.train_labels))
    if not held_out:
        return train, (*kept(task, "test"), torch.tensor(found.test_labels))
    order = torch.randperm(len(train[-1]), generator=torch.Generator().manual_seed(0))
    cut = len(order) * 4 // 5
    return tuple(one[order[:cut]] for one in train), tuple(one[order[cut:]] for one in train)


def trial(a: argparse.Namespace, parts: tuple[tuple[Tensor, ...], tuple[Tensor, ...]]) -> dict[str, Any]:
    """One run."""
    began = time.process_time()
    train, test = parts
    torch.manual_seed(a.seed)
    model = Tail(last_layer(), len(texts(a.task).classes)).eval()
    if a.mode == "lora":
        import peft

        peft.inject_adapter_in_model(peft.LoraConfig(r=RANK, lora_alpha=a.scale * RANK, target_modules=ADAPTED), model)
    ledger, tuned = sd.Ledger(), 0 if a.mode == "head" else a.steps

    def event(sigma: float) -> events.Event:
        phases = [(a.head_lot, a.head_steps), (a.lot, tuned)]
        return events.compose(training_event(lot, events.Gaussian(sigma), steps) for lot, steps in phases if steps)

    sigma = calibrate(event, PLD(), a.epsilon, DELTA) if a.epsilon else 0.0

    def fit(part: nn.Module, columns: tuple[Tensor, ...], rates: dict[str, float], share: float, steps: int) -> Any:
        """`steps` lots with a falling rate; `rates` by a word in a parameter's name, the first that fits."""
        groups: dict[float, list[Tensor]] = {}
        for name, p in part.named_parameters():
            rate = next((rate for word, rate in rates.items() if word in name), 0.0)
            p.requires_grad_(rate > 0)
            groups.setdefault(rate, []).append(p)
        optimizer = torch.optim.Adam([{"params": ps, "lr": rate} for rate, ps in groups.items() if rate > 0])
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 - k / steps)
        weigher = sd.Flat(a.bound) if a.epsilon else sd.Flat(1e3)
        private = sd.Private(part, loss, sd.NoisySum(weigher, sd.Gaussian(sigma)), ledger=ledger)
        expected = float(f"{share * len(columns[0]):.1g}")  # round: not N
        for lot in private.draws(
            torch.utils.data.TensorDataset(*columns),
            sd.Poisson(share),
            steps,
            expected_batch=expected,
            physical_batch=a.physical,
        ):
            private.backward(lot)
            optimizer.step()
            schedule.step()
        return private

    private = fit(model.head, train[2:], {"": a.head_rate}, a.head_lot, a.head_steps)
    scores = model.head(test[2])
    result = {k: v for k, v in vars(a).items() if k not in ("keep", "table", "physical", "seeds")}
    result |= {"sigma": round(sigma, 3), "head_accuracy": _percent(scores, test[3])}
    result["trained"] = sum(p.numel() for p in model.head.parameters())
    if a.mode != "head":
        rates = {"head": a.head_rate_then, ("lora" if a.mode == "lora" else ""): a.rate}
        private = fit(model, (*train[:2], train[3]), rates, a.lot, a.steps)
        result["trained"] += sum(p.numel() for n, p in model.named_parameters() if p.requires_grad and "head" not in n)
        with torch.no_grad():
            scores = torch.cat([model(*some) for some in zip(*(one.split(128) for one in test[:2]), strict=True)])
    result["accuracy"] = _percent(scores, test[3])
    said = private.claim(DELTA)
    result["claimed"] = round(said.epsilon, 4) if isinstance(said, sd.Guarantee) else said.reason
    result["not_covered"] = list(said.not_covered) if isinstance(said, sd.Guarantee) else []
    return result | {"cpu_seconds": round(time.process_time() - began), "processor": processor(), "threads": 1}


def _percent(scores: Tensor, labels: Tensor) -> float:
    return round(100 * float((scores.argmax(1) == labels).float().mean()), 2)


def table() -> str:
    """Mean and spread of the kept runs, as Markdown."""
    rows: dict[tuple[str, str], dict[float, list[dict[str, Any]]]] = {}
    for one in json.loads(RESULTS.read_text()):
        rows.setdefault((one["task"], one["mode"]), {}).setdefault(one["epsilon"], []).append(one)
    at = sorted({epsilon for row in rows.values() for epsilon in row}, key=lambda e: e or 1e9)
    lines = ["| task | trained | " + " | ".join(f"ε = {e:g}" if e else "no privacy" for e in at) + " | CPU-s a run |"]
    lines += ["|---" * (len(at) + 3) + "|"]
    for (task, mode), row in sorted(rows.items(), key=lambda pair: (pair[0][0] != "r8", MODES.index(pair[0][1]))):
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
    p = argparse.ArgumentParser(allow_abbrev=False)  # --seed 2 is not --seeds 2
    p.add_argument("--task", choices=("r8", "20news"), default="r8")
    p.add_argument("--mode", choices=MODES, default="head")
    p.add_argument("--epsilon", type=float, nargs="+", default=[0.0], help="0: no noise and no clipping to speak of")
    p.add_argument(
        "--seeds", type=int, default=1, help="0, 1, … of initial adapters; lots and noise are fresh in every run"
    )
    p.add_argument("--physical", type=int, default=256)
    p.add_argument("--held-out", action="store_true")
    p.add_argument("--keep", action="store_true")
    p.add_argument("--table", action="store_true")
    for name, kind in NUMBERS.items():
        p.add_argument(f"--{name.replace('_', '-')}", type=kind, help="in place of the tuned one")
    a = p.parse_args()
    if a.table:
        print(table())
        return
    parts = split(a.task, a.held_out)
    for epsilon, seed in ((epsilon, seed) for epsilon in a.epsilon for seed in range(a.seeds)):
        chosen = SETTINGS[a.task, a.mode, epsilon]
        numbers = {name: chosen[name] if getattr(a, name) is None else getattr(a, name) for name in NUMBERS}
        result = trial(argparse.Namespace(**vars(a) | numbers | {"epsilon": epsilon, "seed": seed}), parts)
        print(json.dumps(result), flush=True)
        if a.keep:
            before = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
            RESULTS.write_text(json.dumps([*before, result], indent=1) + "\n")


if __name__ == "__main__":
    main()

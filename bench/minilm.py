"""Accuracy of MiniLM-L6 on texts at several ε: head alone, LoRA, attention, or the last layer.

    python -m bench.minilm --task r8 --mode lora --epsilon 3 --held-out         a trial, on held-out training data
    python -m bench.minilm --task r8 --mode lora --epsilon 3 8 --seeds 3 --keep on the test set, into results/minilm.json
    python -m bench.minilm --table                                              the table of docs/recipes.md

One JSON line per run. What is reduced is said in minilm_layer.py. Three phases in one ledger: the head on the frozen
encoder's vectors, in many cheap lots; the layer, by adapters or as a whole, attention, or both, and the head with them,
in lots with noise of their own; and, where it has lots left, the head on the vectors then made.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import sordino as sd
from bench.minilm_kept import directions, load_kept
from bench.minilm_layer import LastLayer, last_layer
from bench.minilm_settings import SETTINGS
from sordino import events
from sordino.accounting import PLD, calibrate
from sordino.app.data.labelled_texts import load_texts
from sordino.events.training import training_event
from sordino.kernels.processor import processor_name

DELTA = 1e-5
RESULTS = Path(__file__).parent / "results" / "minilm.json"
MODES = ("head", "attention", "lora", "full")
NUMBERS: dict[str, type] = {
    "head_lot": float,
    "head_steps": int,
    "head_rate": float,
    "head_noise": float,  # times the multiplier at which the head's lots take the whole budget; 0: one for all lots
    "lot": float,
    "steps": int,
    "rate": float,
    "query_rate": float,
    "pool_rate": float,
    "with_rate": float,  # of the head in the same lots
    "last_steps": int,  # of the head, after the others
    "last_rate": float,
    "bound": float,
    "layer_bound": float,
    "rank": int,
    "scale": float,  # of A
}
WARMUP = 4
"""Lots in which the rate rises, where adapters or the layer are trained."""


def loss(model: nn.Module, *batch: Tensor) -> Tensor:
    """Returns the cross-entropy of each record."""
    return nn.functional.cross_entropy(model(*batch[:-1]), batch[-1], reduction="none")


@dataclass(frozen=True)
class Part:
    """Texts that are trained on, or tested."""

    columns: tuple[Tensor, ...]
    vectors: Tensor
    labels: Tensor


def split(task: str, held_out: bool, pooled: bool) -> tuple[Part, Part]:
    """Returns training and test texts; with `held_out`, four fifths and one fifth of the training texts."""
    found, train = load_texts(task), load_kept(task, "train", pooled)
    labels = torch.tensor(found.train_labels)
    if not held_out:
        test = load_kept(task, "test", pooled)
        others = torch.tensor(found.test_labels)
        return Part(train.columns, train.vectors, labels), Part(test.columns, test.vectors, others)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    cut = len(order) * 4 // 5
    most, rest = (
        Part(tuple(one[rows] for one in train.columns), train.vectors[rows], labels[rows])
        for rows in (order[:cut], order[cut:])
    )
    return most, rest


def multipliers(a: argparse.Namespace) -> tuple[float, float]:
    """Returns the noise multipliers of the head's lots and of the others, together within ε."""
    if not a.epsilon:
        return 0.0, 0.0
    steps = a.head_steps + a.last_steps

    def together(in_head: float, in_tail: float) -> events.Event:
        tail = [training_event(a.lot, events.Gaussian(in_tail), a.steps)] if a.steps else []
        return events.compose([training_event(a.head_lot, events.Gaussian(in_head), steps), *tail])

    if not (a.head_noise and a.steps):
        one = calibrate(lambda sigma: together(sigma, sigma), PLD(), a.epsilon, DELTA)
        return one, one
    alone = calibrate(lambda sigma: training_event(a.head_lot, events.Gaussian(sigma), steps), PLD(), a.epsilon, DELTA)
    in_head = alone * a.head_noise
    return in_head, calibrate(lambda sigma: together(in_head, sigma), PLD(), a.epsilon, DELTA)


def trial(a: argparse.Namespace, parts: tuple[Part, Part]) -> dict[str, Any]:
    """Makes one run and returns its result."""
    began = time.process_time()
    train, test = parts
    torch.manual_seed(a.seed)
    found = directions(a.rank)
    downs = {name: a.scale * found[name] for name in a.adapted.split(",")} if a.mode == "lora" else {}
    model = LastLayer(last_layer(), len(load_texts(a.task).classes), downs).eval()
    words = {
        "pool": a.pool_rate,
        "head": a.with_rate,
        "query.up.": a.query_rate,
        "" if a.mode == "full" else "up.": a.rate,
    }
    warmup = WARMUP if a.mode in ("lora", "full") else 0
    ledger, (in_head, in_tail) = sd.Ledger(), multipliers(a)

    def fit(
        part: nn.Module,
        columns: tuple[Tensor, ...],
        rates: dict[str, float],
        share: float,
        steps: int,
        noise: tuple[float, float],
    ) -> Any:
        """Trains for `steps` lots with a rate that falls to 0.

        `rates` are by a word in a parameter's name; the first that fits counts.
        """
        groups: dict[float, list[Tensor]] = {}
        for name, p in part.named_parameters():
            rate = next((rate for word, rate in rates.items() if word in name), 0.0)
            p.requires_grad_(rate > 0)
            groups.setdefault(rate, []).append(p)
        optimizer = torch.optim.Adam([{"params": ps, "lr": rate} for rate, ps in groups.items() if rate > 0])
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda k: min(1.0, (k + 1) / (1 + warmup)) * (1 - k / steps)
        )
        bound, sigma = noise
        clipping = sd.Flat(bound) if a.epsilon else sd.Flat(1e3)
        private = sd.Private(part, loss, sd.NoisySum(clipping, sd.Gaussian(sigma)), ledger=ledger)
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

    @torch.no_grad()
    def vectors(part: Part) -> Tensor:
        chunks = zip(*(one.split(256) for one in part.columns), strict=True)
        return torch.cat([model.vectors(*some) for some in chunks])

    def accuracy(made: Tensor) -> float:
        return _percent(model.head(made), test.labels)

    head = sum(p.numel() for p in model.head.parameters())
    result = {k: v for k, v in vars(a).items() if k not in ("keep", "table", "physical", "seeds", "first")}
    result |= {"sigma": round(in_head, 3), "layer_sigma": round(in_tail, 3), "trained": head}
    private = fit(
        model.head, (train.vectors, train.labels), {"": a.head_rate}, a.head_lot, a.head_steps, (a.bound, in_head)
    )
    result["head_accuracy"] = accuracy(test.vectors)
    made = test.vectors
    if a.steps:
        private = fit(model, (*train.columns, train.labels), words, a.lot, a.steps, (a.layer_bound, in_tail))
        result["trained"] = sum(p.numel() for n, p in model.named_parameters() if p.requires_grad or "head" in n)
        made = vectors(test)
        result["layer_accuracy"] = accuracy(made)
    if a.last_steps:
        columns = vectors(train), train.labels
        private = fit(model.head, columns, {"": a.last_rate}, a.head_lot, a.last_steps, (a.bound, in_head))
    result["accuracy"] = accuracy(made)
    said = private.claim(DELTA)
    result["claimed"] = round(said.epsilon, 4) if isinstance(said, sd.Guarantee) else said.reason
    result["not_covered"] = list(said.not_covered) if isinstance(said, sd.Guarantee) else []
    return result | {"cpu_seconds": round(time.process_time() - began), "processor": processor_name(), "threads": 1}


def _percent(scores: Tensor, labels: Tensor) -> float:
    return round(100 * float((scores.argmax(1) == labels).float().mean()), 2)


def table() -> str:
    """Returns mean and spread of the kept runs as a Markdown table."""
    rows: dict[tuple[str, str], dict[float, list[dict[str, Any]]]] = {}
    for one in json.loads(RESULTS.read_text()):
        rows.setdefault((one["task"], one["mode"]), {}).setdefault(one["epsilon"], []).append(one)
    at = sorted({epsilon for row in rows.values() for epsilon in row}, key=lambda e: e or 1e9)
    lines = ["| task | trained | " + " | ".join(f"ε = {e:g}" if e else "no privacy" for e in at) + " | CPU-s a run |"]
    lines += ["|---" * (len(at) + 3) + "|"]
    for (task, mode), row in sorted(rows.items(), key=lambda pair: (pair[0][0] != "r8", MODES.index(pair[0][1]))):
        numbers = max(one["trained"] for runs in row.values() for one in runs)
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
    """Parses the arguments, makes the runs, and keeps or prints their results."""
    p = argparse.ArgumentParser(allow_abbrev=False)  # --seed 2 is not --seeds 2
    p.add_argument("--task", choices=("r8", "20news"), default="r8")
    p.add_argument("--mode", choices=MODES, default="head")
    p.add_argument("--epsilon", type=float, nargs="+", default=[0.0], help="0: no noise and no clipping to speak of")
    p.add_argument("--seeds", type=int, default=1, help="how many runs; lots and noise are fresh in every one")
    p.add_argument("--first", type=int, default=0, help="number of the first")
    p.add_argument("--physical", type=int, default=64)
    p.add_argument("--adapted", default=None)
    p.add_argument("--held-out", action="store_true")
    p.add_argument("--keep", action="store_true")
    p.add_argument("--table", action="store_true")
    for name, kind in NUMBERS.items():
        p.add_argument(f"--{name.replace('_', '-')}", type=kind, help="in place of the tuned one")
    a = p.parse_args()
    if a.table:
        print(table())
        return
    for epsilon, seed in ((epsilon, a.first + i) for epsilon in a.epsilon for i in range(a.seeds)):
        chosen = SETTINGS[a.task, a.mode, epsilon]
        adapted = chosen["adapted"] if a.adapted is None else a.adapted
        numbers = {"adapted": adapted} | {
            name: chosen[name] if getattr(a, name) is None else getattr(a, name) for name in NUMBERS
        }
        parts = split(a.task, a.held_out, numbers["pool_rate"] > 0)
        result = trial(argparse.Namespace(**vars(a) | numbers | {"epsilon": epsilon, "seed": seed}), parts)
        print(json.dumps(result), flush=True)
        if a.keep:
            before = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
            RESULTS.write_text(json.dumps([*before, result], indent=1) + "\n")


if __name__ == "__main__":
    main()

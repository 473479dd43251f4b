"""Accuracy of `sordino.finetune` with its defaults against a frozen head that has the whole budget.

    python -m bench.finetune --task r8 --epsilon 3 8 --seeds 3 --keep      on the test set, into results/finetune.json
    python -m bench.finetune --task adult --epsilon 3 8 --seeds 3 --keep   the head of the plan on a table
    python -m bench.finetune --table                                       the table of docs/how_to/finetune.md

Both rows of a seed have the same encoder, vectors and ε. The frozen head is the plan with `can_adapt=False`. A table has no
encoder: its rows are what the head is trained on, so both are the same plan, and the recipe `adult` is its baseline.
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

import torch
from torch import Tensor

import sordino as sd
from sordino.app.data import cache, minilm
from sordino.app.data.files import files_folder
from sordino.app.data.friends import load_friends
from sordino.app.data.labelled_texts import load_texts
from sordino.finetuning.finetune_texts import score_texts, train_plan
from sordino.finetuning.frozen_texts import FrozenTexts, find_directions, read_texts
from sordino.finetuning.plan import make_plan
from sordino.kernels.processor import processor_name
from sordino.lots.privacy_units import Unit

DELTA = 1e-5
LENGTHS = {"r8": 128, "20news": 128, "friends": 32}
"""Tokens of a text that are read; lines of Friends are short."""
RESULTS = Path(__file__).parent / "results" / "finetune.json"
TASKS = ("r8", "20news", "friends", "adult")


def load_parts(task: str) -> tuple[tuple[list[str], list[int]], tuple[list[str], list[int]], int]:
    """Returns training texts and labels, test texts and labels, and the number of classes."""
    if task == "friends":
        train, test = load_friends()
        return (train.texts, train.labels), (test.texts, test.labels), 3
    found = load_texts(task)
    return (found.train, found.train_labels), (found.test, found.test_labels), len(found.classes)


@cache_in_memory
def load_encoder() -> tuple[Any, Any]:
    """Returns MiniLM and its tokenizer."""
    import transformers

    return minilm.build_classifier(1).encoder.eval(), transformers.AutoTokenizer.from_pretrained(files_folder("minilm"))


def read_kept(texts: list[str], length: int) -> FrozenTexts:
    """Returns what the frozen encoder makes of texts, from the cache if it is there."""
    name = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:24]
    path = cache.cache_folder() / "features" / f"finetune-{length}-{name}.pt"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        read = read_texts(*load_encoder(), texts, length=length, with_last_layer=True)
        torch.save((read.vectors, read.columns), path)
    vectors, columns = torch.load(path, mmap=True)
    return FrozenTexts(vectors, columns)


@cache_in_memory
def load_directions() -> dict[str, Tensor]:
    """Returns the fixed directions A of the adapters, which are public."""
    return find_directions(*load_encoder(), 4, 48)


def run_texts(task: str, epsilon: float, *, frozen: bool) -> dict[str, Any]:
    """Fine-tunes once, with fresh lots and noise, and returns the result on the test set."""
    (texts, labels), (test_texts, test_labels), classes = load_parts(task)
    read, test = (read_kept(part, LENGTHS[task]) for part in (texts, test_texts))
    directions = load_directions()
    began = time.process_time()
    plan = make_plan(
        len(texts), classes=classes, width=minilm.WIDTH, epsilon=epsilon, delta=DELTA, can_adapt=not frozen
    )
    tuned = train_plan(
        plan,
        *load_encoder(),
        read,
        torch.tensor(labels),
        directions,
        classes=tuple(range(classes)),
        length=LENGTHS[task],
        # Lines of a television series are equal by accident: "Yes." is no copy. This is declared, and the claim says so.
        unit=Unit(torch.arange(len(texts)), 1, "text") if task == "friends" else None,
        divisor_records=int(f"{float(f'{len(texts):.1g}'):.0f}"),  # round: not N
    )
    correct = score_texts(tuned.model, test).argmax(1) == torch.tensor(test_labels)
    return _result(task, epsilon, "frozen head" if frozen else "default", float(correct.float().mean()), tuned, began)


def run_adult(epsilon: float) -> dict[str, Any]:
    """Trains the head of a plan on the rows of Adult and returns the result on the test set."""
    from sordino.app.data.adult import load_adult

    train, test, _ = load_adult()
    x, y = train.tensors
    began = time.process_time()
    plan = make_plan(len(x), classes=2, width=x.shape[1], epsilon=epsilon, delta=DELTA, can_adapt=False)
    tuned = train_plan(
        plan, torch.nn.Identity(), None, FrozenTexts(x.float()), y, {}, classes=(0, 1), divisor_records=30_000
    )
    correct = score_texts(tuned.model, FrozenTexts(test.tensors[0].float())).argmax(1) == test.tensors[1]
    return _result("adult", epsilon, "default", float(correct.float().mean()), tuned, began)


def _result(task: str, epsilon: float, mode: str, share: float, tuned: Any, began: float) -> dict[str, Any]:
    """Returns one run as a row of the results."""
    claim = tuned.claim
    return {
        "task": task,
        "epsilon": epsilon,
        "mode": mode,
        "accuracy": round(100 * share, 2),
        "trained": max(phase.trained for phase in tuned.plan.phases.values()),
        "rank": tuned.plan.rank,
        "claimed": round(claim.epsilon, 4) if isinstance(claim, sd.Guarantee) else claim.reason,
        "signal_to_noise": {name: round(value, 2) for name, value in tuned.signal_to_noise.items()},
        "cpu_seconds": round(time.process_time() - began),
        "processor": processor_name(),
    }


def table() -> str:
    """Returns mean and spread of the kept runs as a Markdown table."""
    rows: dict[tuple[str, str], dict[float, list[dict[str, Any]]]] = {}
    for one in json.loads(RESULTS.read_text()):
        rows.setdefault((one["task"], one["mode"]), {}).setdefault(one["epsilon"], []).append(one)
    epsilons = sorted({epsilon for row in rows.values() for epsilon in row})
    lines = ["| task | | " + " | ".join(f"ε = {e:g}" for e in epsilons) + " | runs | CPU-s a run |"]
    lines.append("|---" * (len(epsilons) + 4) + "|")
    for (task, mode), row in sorted(rows.items(), key=lambda pair: (TASKS.index(pair[0][0]), pair[0][1] == "default")):
        runs = [one for some in row.values() for one in some]
        cells = [_cell([one["accuracy"] for one in row.get(epsilon, [])]) for epsilon in epsilons]
        counts = "/".join(str(len(row.get(epsilon, []))) for epsilon in epsilons)
        lines.append(
            f"| {task} | {mode} | " + " | ".join(cells) + f" | {counts} | {max(r['cpu_seconds'] for r in runs)} |"
        )
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread}"


def main() -> None:
    """Parses the arguments, makes the runs, and keeps or prints their results."""
    p = argparse.ArgumentParser(allow_abbrev=False)
    p.add_argument("--task", choices=TASKS, default="r8")
    p.add_argument("--mode", choices=("both", "frozen", "default"), default="both")
    p.add_argument("--epsilon", type=float, nargs="+", default=[8.0])
    p.add_argument("--seeds", type=int, default=1, help="how many runs; lots and noise are fresh in every one")
    p.add_argument("--keep", action="store_true")
    p.add_argument("--table", action="store_true")
    a = p.parse_args()
    if a.table:
        print(table())
        return
    for epsilon in (epsilon for epsilon in a.epsilon for _ in range(a.seeds)):
        for frozen in [mode for mode in (True, False) if a.mode in ("both", "frozen" if mode else "default")]:
            if a.task == "adult" and frozen:
                continue
            result = run_adult(epsilon) if a.task == "adult" else run_texts(a.task, epsilon, frozen=frozen)
            print(json.dumps(result), flush=True)
            if a.keep:
                before = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
                RESULTS.write_text(json.dumps([*before, result], indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Accuracy of `sordino.finetune` with its defaults against a frozen head that has the whole budget.

    python -m bench.finetune --task r8 --epsilon 3 8 --seeds 3 --keep      on the test set, into results/finetune.json
    python -m bench.finetune --task adult --epsilon 3 8 --seeds 3 --keep   a table, by `sordino train --data`
    python -m bench.finetune --table                                       the table of docs/how_to/finetune.md

Both rows of a seed have the same encoder, vectors and ε. The frozen head is the plan with `can_adapt=False`. A table has no
encoder: it is trained by `sordino train --data`, and its baseline is the recipe `adult`, a logistic regression on features
that were made for Adult. Lots and noise come from the operating system: no run has a seed. A first run of Adult at ε = 3,
before the results were kept, had 85.46 with the recipe.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import tempfile
import time
from functools import cache as cache_in_memory
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sordino as sd
from sordino.app.data import adult, cache, minilm
from sordino.app.data.files import files_folder
from sordino.app.data.friends import load_friends
from sordino.app.data.labelled_texts import load_texts
from sordino.app.runs.declared_file import OwnFile
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
    """Returns the fixed directions A of the adapters, which are public, from the cache if they are there."""
    path = cache.cache_folder() / "features" / "finetune-directions-4-48.pt"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(find_directions(*load_encoder(), 4, 48), path)
    directions: dict[str, Tensor] = torch.load(path)
    return directions


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


def write_adult(folder: Path) -> OwnFile:
    """Writes Adult as two CSV files and returns what is publicly known of their columns, as its documentation says it."""
    place = files_folder("adult")
    schema = adult.read_schema(place / "adult.names")
    for source, target in (("adult.data", "train.csv"), ("adult.test", "test.csv")):
        # The test file begins with a comment, its labels end with a full stop, and both files end with empty lines.
        lines = [
            line for line in (place / source).read_text().splitlines() if line.strip() and not line.startswith("|")
        ]
        rows = [[cell.strip() for cell in line.rstrip(".").split(",")] for line in lines]
        text = "\n".join(",".join(row) for row in [[*schema, "income"], *rows])
        (folder / target).write_text(f"{text}\n")
    return OwnFile(
        path=str(folder / "train.csv"),
        test=str(folder / "test.csv"),
        target="income",
        classes=("<=50K", ">50K"),
        bounds={name: (low, high) for name, (low, high) in adult.BOUNDS.items()},
        categories={name: (*values, "*") for name, values in schema.items() if values},
    )


def run_adult(epsilon: float, *, frozen: bool) -> dict[str, Any]:
    """Trains on Adult once: as a file by the defaults of `sordino train --data`, or by the recipe for logistic regression
    on features that were made for Adult. Returns the result on the test set.
    """
    began = time.process_time()
    with tempfile.TemporaryDirectory() as name:
        folder, quiet = Path(name), {"progress": False, "expected_batch": 1000.0, "delta": DELTA, "epsilon": epsilon}
        if frozen:
            history = sd.fit("adult", out=folder / "run", **quiet)
        else:
            history = sd.fit("linear", write_adult(folder), out=folder / "run", **quiet)
        trained = sum(p.numel() for p in history.model.parameters())
    return {
        "task": "adult",
        "epsilon": epsilon,
        "mode": "logistic recipe" if frozen else "default",
        "accuracy": round(100 * (history.test_accuracy or 0.0), 2),
        "trained": trained,
        "claimed": round(history.claim.epsilon, 4) if isinstance(history.claim, sd.Guarantee) else history.claim.reason,
        "cpu_seconds": round(time.process_time() - began),
        "processor": processor_name(),
    }


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
        "adapters_lead": None if tuned.adapters_lead is None else round(tuned.adapters_lead, 4),
        "adapters_kept": tuned.model.vectors is not None,
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
            run = run_adult if a.task == "adult" else partial(run_texts, a.task)
            result = run(epsilon, frozen=frozen)
            print(json.dumps(result), flush=True)
            if a.keep:
                before = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
                RESULTS.write_text(json.dumps([*before, result], indent=1) + "\n")


if __name__ == "__main__":
    main()

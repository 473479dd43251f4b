"""Accuracy with correlated noise against DP-SGD at the same ε, on texts, digits and a stream.

    python -m bench.correlated_accuracy [--task r8-head …] [--lots 100] [--epochs 2 4 8] [--epsilon 3] [--stream]
    python -m bench.correlated_accuracy --table            the table of docs/how_to/correlated_noise.md

Every row has two methods, which see lots of the same expected size for the same number of steps, with SGD and momentum and
a rate that falls to 0:

    DP-SGD       independent noise, Poisson draws; in a stream, a fixed order
    correlated   Banded noise, CyclicPoisson draws with as many groups as bands; in a stream, a fixed order

Bands are fitted to momentum and schedule, and their number is the one with the smallest error of the parameters by the
formula; both follow from public numbers. The learning rate of each method is the best of RATES on a fifth of the training
data that is held out, by one run of each. The test set is used only for the accuracies that are written, of three seeds, to
bench/results/correlated_accuracy.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import re
import statistics
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import sordino as sd
from sordino.matrix_factorization.strategies import error_in, sensitivity_of
from sordino.matrix_factorization.workloads import Workload

RESULTS = Path(__file__).parent / "results" / "correlated_accuracy.json"
DELTA, MOMENTUM, SEEDS = 1e-5, 0.9, 3
BANDS = (2, 4, 8, 16, 32, 64)
RATES = {
    "r8-lora": (0.02, 0.06, 0.2),
    "20news-lora": (0.02, 0.06, 0.2),
    "r8-head": (0.02, 0.06, 0.2, 0.6),
    "20news-head": (0.02, 0.06, 0.2, 0.6),
    "20news": (1.0, 3.0, 10.0, 30.0),
    "mnist": (0.05, 0.15, 0.5, 1.5),
}
COLUMNS = 4096
"""Columns that words are hashed to."""


@dataclass(frozen=True)
class Data:
    """Columns and labels to train on and to test, and the model at its beginning."""

    train: tuple[Tensor, ...]
    test: tuple[Tensor, ...]
    create_model: Callable[[], nn.Module]


def create_linear(width: int, classes: int) -> nn.Module:
    """Returns a linear model that begins at zero."""
    model = nn.Linear(width, classes)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def hash_words(texts: list[str]) -> Tensor:
    """Returns the square roots of counts of words, hashed to columns, each text scaled to length 1."""
    made = torch.zeros(len(texts), COLUMNS)
    for row, text in zip(made, texts, strict=True):
        words = re.findall(r"[a-z]{2,}", text.lower())
        row.index_add_(
            0, torch.tensor([zlib.crc32(w.encode()) % COLUMNS for w in words] or [0]), torch.ones(len(words) or 1)
        )
    return nn.functional.normalize(made.sqrt(), dim=1)


@cache
def load(task: str) -> Data:
    """Returns the data and the model of a task."""
    if task == "mnist":
        from sordino.app.data import load as load_images

        found = load_images("mnist")
        columns = [(part.images.float().flatten(1) / 28, part.labels) for part in (found.train, found.test)]
        return Data(columns[0], columns[1], lambda: create_linear(784, 10))
    from sordino.app.data.labelled_texts import load_texts

    texts = load_texts(task.split("-")[0])
    labels = torch.tensor(texts.train_labels), torch.tensor(texts.test_labels)
    classes = len(texts.classes)
    if task == "20news":
        hashed = hash_words(texts.train), hash_words(texts.test)
        return Data((hashed[0], labels[0]), (hashed[1], labels[1]), lambda: create_linear(COLUMNS, classes))
    from bench.finetune import LENGTHS, load_directions, load_encoder, read_kept

    name = task.split("-")[0]
    train, test = (read_kept(part, LENGTHS[name]) for part in (texts.train, texts.test))
    if task.endswith("head"):
        width = train.vectors.shape[1]
        return Data((train.vectors, labels[0]), (test.vectors, labels[1]), lambda: create_linear(width, classes))
    from sordino.finetuning.frozen_texts import find_adaptable_layer
    from sordino.finetuning.last_layer import AdaptedVectors
    from sordino.finetuning.plan import ADAPTED, ADAPTER_LEARNING_RATES, DIRECTION_SCALE

    layer, width = find_adaptable_layer(load_encoder()[0]), train.vectors.shape[1]
    assert layer is not None, "MiniLM has BERT's layers"
    scaled = {name: DIRECTION_SCALE * load_directions()[name] for name in ADAPTED}

    def create_adapted() -> nn.Module:
        """Returns the last layer with adapters of rank 4 and a head, of which adapters and head are trained."""
        model = HeadOnVectors(AdaptedVectors(layer, width, scaled).eval(), create_linear(width, classes))
        for name, p in model.named_parameters():
            p.requires_grad_(any(part in name for part in ADAPTER_LEARNING_RATES))
        return model

    return Data((*train.columns, labels[0]), (*test.columns, labels[1]), create_adapted)


class HeadOnVectors(nn.Module):
    """A linear head on what the adapted last layer makes of a text."""

    def __init__(self, vectors: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.vectors, self.head = vectors, head

    def forward(self, *columns: Tensor) -> Tensor:
        """Returns the scores of a batch."""
        scores: Tensor = self.head(self.vectors(*columns))
        return scores


def loss(model: nn.Module, *batch: Tensor) -> Tensor:
    """Returns the cross-entropy of each record."""
    return nn.functional.cross_entropy(model(*batch[:-1]), batch[-1], reduction="none")


@dataclass(frozen=True)
class Method:
    """A noise and the draws that go with it, and the RMSE of the parameters that it leaves by the formula."""

    noise: Any
    sampler: Any
    error: float


def create_workload(steps: int) -> Workload:
    """Returns what SGD with momentum and a rate that falls to 0 makes of the noise."""
    return Workload(steps, momentum=MOMENTUM, learning_rates=tuple(1 - k / steps for k in range(steps)))


def calibrate_method(
    make_noise: Callable[[float], Any], strategy: Any, sampler: Any, steps: int, epsilon: float, n: int
) -> Method:
    """Returns a method with the noise that ε asks for."""
    query = lambda sigma: sd.NoisySum(sd.Flat(1.0), make_noise(sigma))  # noqa: E731
    sigma = sd.calibrate(query, sampler, steps, epsilon=epsilon, delta=DELTA, dataset_size=n)
    error = error_in(strategy, create_workload(steps)).root_mean_square / sensitivity_of(strategy, steps)
    return Method(make_noise(sigma), sampler, sigma * error)


@cache
def create_methods(lots: int, epochs: int, epsilon: float, n: int, *, is_stream: bool) -> dict[str, Method]:
    """Returns DP-SGD and correlated noise with the number of bands that has the smallest error.

    Random draws have the same price for any number of records, so tasks share them; give n = 1 there.
    """
    steps = lots * epochs
    fixed, poisson = sd.FixedOrder(math.ceil(n / lots)), sd.Poisson(1 / lots)
    plain = calibrate_method(sd.Gaussian, sd.Banded(1), fixed if is_stream else poisson, steps, epsilon, n)

    def create_correlated(strategy: Any) -> Method:
        """Returns correlated noise at ε, drawn as the strategy's number of bands needs it."""
        draws = fixed if is_stream else sd.CyclicPoisson(strategy.bands / lots, strategy.bands)
        return calibrate_method(lambda sigma: sd.Correlated(sigma, strategy), strategy, draws, steps, epsilon, n)

    # The error at each number of bands follows from public numbers, so the best one is known before training.
    tried = [create_correlated(fit_bands(bands, steps)) for bands in BANDS if bands <= lots]
    return {"DP-SGD": plain, "correlated": min(tried, key=lambda method: method.error)}


@cache
def fit_bands(bands: int, steps: int) -> sd.Banded:
    """Returns bands that are fitted to SGD with momentum and a rate that falls to 0."""
    return sd.Banded.for_workload(bands, create_workload(steps))


def train(data: Data, rows: Tensor, method: Method, steps: int, lots: int, rate: float, seed: int) -> nn.Module:
    """Returns a model that was trained on some rows of the training data."""
    # The records of the run before may be gigabytes, and cycles keep them until they are collected.
    gc.collect()
    torch.manual_seed(seed)
    model = data.create_model()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=rate, momentum=MOMENTUM)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 - k / steps)
    private = sd.Private(model, loss, sd.NoisySum(sd.Flat(1.0), method.noise))
    records = torch.utils.data.TensorDataset(*(column[rows] for column in data.train))
    expected = float(f"{len(rows) / lots:.1g}")
    for lot in private.draws(records, method.sampler, steps, expected_batch=expected, physical_batch=128):
        private.backward(lot)
        optimizer.step()
        schedule.step()
    return model


@torch.no_grad()
def measure_accuracy(model: nn.Module, columns: tuple[Tensor, ...]) -> float:
    """Returns the percentage of records that are classified rightly."""
    right = [
        (model(*batch[:-1]).argmax(1) == batch[-1]).float()
        for batch in zip(*(column.split(256) for column in columns), strict=True)
    ]
    return round(100 * float(torch.cat(right).mean()), 2)


def compare(task: str, lots: int, epochs: int, epsilon: float, *, is_stream: bool) -> dict[str, Any]:
    """Returns accuracies of both methods on the test set, with the learning rates that were best on held-out data."""
    began, data = time.process_time(), load(task)
    steps, n = lots * epochs, len(data.train[-1])
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    most, held_out = order[: n * 4 // 5], order[n * 4 // 5 :]
    methods = create_methods(lots, epochs, epsilon, n if is_stream else 1, is_stream=is_stream)
    row: dict[str, Any] = {"task": task, "epochs": epochs, "epsilon": epsilon, "stream": is_stream, "lots": lots}
    row["error_over_dp_sgd"] = round(methods["correlated"].error / methods["DP-SGD"].error, 3)
    row["bands"] = methods["correlated"].noise.strategy.bands
    left_out = tuple(column[held_out] for column in data.train)
    # The held-out runs see fewer records, so their fixed order has smaller batches.
    tried_lots = {"DP-SGD": methods["DP-SGD"], "correlated": methods["correlated"]}
    if is_stream:
        smaller = sd.FixedOrder(math.ceil(len(most) / lots))
        tried_lots = {name: Method(method.noise, smaller, method.error) for name, method in methods.items()}
    for name, method in methods.items():
        by_rate = {
            rate: measure_accuracy(train(data, most, tried_lots[name], steps, lots, rate, 100), left_out)
            for rate in RATES[task]
        }
        best = max(by_rate, key=lambda rate: by_rate[rate])
        found = [
            measure_accuracy(train(data, order, method, steps, lots, best, seed), data.test) for seed in range(SEEDS)
        ]
        row[name] = {
            "sigma": round(method.noise.multiplier, 3),
            "rate": best,
            "held_out": by_rate,
            "accuracies": found,
            "mean": round(statistics.mean(found), 2),
            "spread": round(statistics.stdev(found), 2),
        }
    return row | {"cpu_seconds": round(time.process_time() - began)}


NAMES = {
    "20news": "20 Newsgroups, words",
    "20news-head": "20 Newsgroups, head on MiniLM",
    "20news-lora": "20 Newsgroups, LoRA of rank 4",
    "r8-head": "R8, head on MiniLM",
    "r8-lora": "R8, LoRA of rank 4",
    "mnist": "MNIST, linear",
}


def write_table(rows: list[dict[str, Any]]) -> str:
    """Returns the rows as a Markdown table, in the order of task, epochs, lot and ε."""
    head = "| task | epochs | lot | ε | bands | error over DP-SGD's | DP-SGD | correlated | gain |\n|" + "---|" * 9
    order = list(NAMES)
    lines = []
    for row in sorted(
        rows, key=lambda r: (order.index(r["task"]), not r["stream"], r["epochs"], -r["lots"], r["epsilon"])
    ):
        # A gain is bold where it is more than both spreads together.
        plain, ours = row["DP-SGD"], row["correlated"]
        gain = ours["mean"] - plain["mean"]
        shown = f"**{gain:+.1f}**" if abs(gain) > plain["spread"] + ours["spread"] else f"{gain:+.1f}"
        epochs = "1, stream" if row["stream"] else row["epochs"]
        lines.append(
            f"| {NAMES[row['task']]} | {epochs} | 1/{row['lots']} | {row['epsilon']:g} | {row['bands']} | "
            f"{row['error_over_dp_sgd']:.2f} | {plain['mean']:.1f} ± {plain['spread']:.1f} | "
            f"{ours['mean']:.1f} ± {ours['spread']:.1f} | {shown} |"
        )
    return "\n".join([head, *lines])


def main() -> None:
    """Compares the methods at every setting and writes the rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", nargs="+", default=["r8-head"], choices=[*RATES])
    parser.add_argument("--epochs", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--lots", nargs="+", type=int, default=[100], help="lots in an epoch")
    parser.add_argument("--epsilon", nargs="+", type=float, default=[3.0])
    parser.add_argument("--stream", action="store_true", help="one pass in a fixed order")
    parser.add_argument("--table", action="store_true", help="print the kept rows as Markdown, and run nothing")
    a = parser.parse_args()
    if a.table:
        print(write_table(json.loads(RESULTS.read_text())))  # noqa: T201
        return
    torch.set_num_threads(1)
    for task, lots, epsilon, epochs in product(a.task, a.lots, a.epsilon, [1] if a.stream else a.epochs):
        row = compare(task, lots, epochs, epsilon, is_stream=a.stream)
        print(json.dumps(row), flush=True)  # noqa: T201
        # A row replaces that of the same setting.
        rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
        same = ("task", "lots", "epochs", "epsilon", "stream")
        rows = [old for old in rows if any(old[key] != row[key] for key in same)]
        RESULTS.write_text(json.dumps([*rows, row], indent=1) + "\n")


if __name__ == "__main__":
    main()

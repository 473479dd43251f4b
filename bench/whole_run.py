"""The price of whole runs, from `Private(…)` to the printed claim, over plain training.

`bench.step` times a step of a run that goes on for ever. A fine-tuning run has 30 to 1,000 lots, and there the work around
the steps counts: the probe of the loss, what the first batch teaches, the neighbour tests and the claim. This script trains
six models for 30, 100, 300 and 1,000 lots and reports

- the ratio of the processor time of the whole private run to that of plain training on the same lots,
- where the private run spent its time, by purpose,
- how many forward passes it made, over how many records, by purpose.

The two engines take turns of a few lots within one process, so that whatever else the machine does hits both of them. Every
run has a process of its own, because some work is done once per process. Which lots are tested, and by which questions, is
drawn by the run's key, so each repetition has another seed and the table has the medians. Results are added to the file
after every run, and runs that are in the file already are skipped: the script can be stopped and started again.

    python -m bench.whole_run [--only NAME,NAME] [--lots 30,100] [--repeats 1] [--opacus] [--out FILE]

Writes bench/results/whole_run.json.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import sordino as sd
from bench.engines import BOUND, MULTIPLIER, RATE
from bench.models import Problem, classification, language
from bench.real_models import Scores
from bench.step import processor
from sordino.nn import LanguageModel, LSTMClassifier, cifar_net, mnist_cnn, mnist_net
from sordino.nn.sequences import Size

RESULT = Path(__file__).parent / "results" / "whole_run.json"
LOTS = (30, 100, 300, 1000)
_POPULATION = 16
"""The dataset has so many times the records of a lot."""
_TURN = 5
"""Lots that one engine trains before the other takes its turn."""
_VOCABULARY = 1000
_DELTA = 1e-5


def small_bert() -> nn.Module:
    """Returns a BERT classifier with two layers of width 128, with dropout, as it is fine-tuned."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import BertConfig, BertForSequenceClassification
    config = BertConfig(
        vocab_size=_VOCABULARY,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        max_position_embeddings=64,
        num_labels=10,
        attn_implementation="sdpa",
    )
    return Scores(BertForSequenceClassification(config))


def padded_ids(count: int) -> Tensor:
    """Returns token ids of `count` texts of 16 to 64 tokens; 0 is padding."""
    ids = torch.randint(1, _VOCABULARY, (count, 64))
    ids[torch.arange(64) >= torch.randint(16, 65, (count, 1))] = 0
    return ids


def _token_ids(count: int) -> Tensor:
    return torch.randint(0, _VOCABULARY, (count, 64))


MODELS = (
    Problem("MLP", mnist_net, lambda b: torch.randn(b, 784), (256,)),
    Problem("MNIST CNN", mnist_cnn, lambda b: torch.randn(b, 1, 28, 28), (64,), images=True),
    Problem("CIFAR net", cifar_net, lambda b: torch.randn(b, 3, 32, 32), (64,), images=True),
    Problem("small BERT", small_bert, padded_ids, (64,)),
    Problem(
        "GPT-like",
        lambda: LanguageModel(Size(vocabulary=_VOCABULARY, positions=64, width=128, heads=4, blocks=2)),
        _token_ids,
        (64,),
        _token_ids,
        language,
    ),
    Problem("LSTM", LSTMClassifier, lambda b: torch.randint(0, 100, (b, 50)), (64,), loss=classification),
)
"""Six models with the lots they are trained on; the GPT and the BERT are small, so that 1,000 lots take minutes."""


@dataclass
class Purposes:
    """Attributes processor time, forward passes and records to the purpose that is served at the moment."""

    seconds: Counter[str] = field(default_factory=Counter)
    passes: Counter[str] = field(default_factory=Counter)
    records: Counter[str] = field(default_factory=Counter)
    _stack: list[str] = field(default_factory=lambda: ["training"])
    _since: float = 0.0

    def start(self) -> None:
        """Starts the clock; time until `stop` is attributed."""
        self._since = time.process_time()

    def stop(self) -> None:
        """Attributes the time since the last switch to the current purpose."""
        now = time.process_time()
        self.seconds[self._stack[-1]] += now - self._since
        self._since = now

    @contextlib.contextmanager
    def attribute_to(self, purpose: str) -> Iterator[None]:
        """Attributes time and passes to `purpose` while it is open."""
        self.stop()
        self._stack.append(purpose)
        try:
            yield
        finally:
            self.stop()
            self._stack.pop()

    def count_losses(self, loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Returns `loss` such that each of its calls is counted as a forward pass."""

        def counted(model: nn.Module, *batch: Tensor) -> Tensor:
            self.passes[self._stack[-1]] += 1
            self.records[self._stack[-1]] += len(batch[0])
            return loss(model, *batch)

        # A neighbour test puts back what a user's functions keep, and would take the counts back with it.
        counted.__module__ = "torch"
        return counted

    def attribute(self, owner: Any, name: str, purpose: str) -> None:
        """Replaces `owner.name` by the same function, whose time and passes go to `purpose`."""
        original = getattr(owner, name)

        @wraps(original)
        def attributed(*args: Any, **keywords: Any) -> Any:
            with self.attribute_to(purpose):
                return original(*args, **keywords)

        setattr(owner, name, attributed)


def attribute_all(purposes: Purposes) -> None:
    """Attributes the library's work beside training. This process is used for one run, so nothing is put back."""
    from sordino.lots import first_records
    from sordino.per_sample import loss_probe
    from sordino.per_sample.captured_backend import Captured
    from sordino.per_sample.first_batch import learn_model, memory_format
    from sordino.per_sample.formulas.formula_timing import Stopwatch
    from sordino.runtime_checks import lot_pass, test_runner

    purposes.attribute(loss_probe, "probe_loss", "probing the loss")
    purposes.attribute(first_records, "activation_bytes", "choosing the batch size")
    purposes.attribute(Captured, "held_bytes", "choosing the batch size")
    purposes.attribute(learn_model, "find_sample_layouts", "first batch: layouts")
    purposes.attribute(learn_model, "verify_model", "first batch: verifying")
    purposes.attribute(memory_format, "channels_last_is_faster", "first batch: timing formulas")
    purposes.attribute(memory_format, "accepts_channels_last", "first batch: timing formulas")
    purposes.attribute(Stopwatch, "choose_fastest", "first batch: timing formulas")
    for name in ("before_backward", "after_pass", "before_claim"):
        purposes.attribute(test_runner.NeighbourTestRunner, name, "neighbour tests")
    purposes.attribute(lot_pass.OwnPass, "_remember", "neighbour tests")


@contextlib.contextmanager
def on_the_clock(purposes: Purposes) -> Iterator[None]:
    """Counts processor time for the private run while it is open."""
    purposes.start()
    try:
        yield
    finally:
        purposes.stop()


class PlainTraining:
    """Plain PyTorch training in one memory format, timed."""

    def __init__(self, problem: Problem, model: nn.Module, columns: tuple[Tensor, ...], *, last: bool) -> None:
        self.model, self.problem, self.seconds = copy.deepcopy(model), problem, 0.0
        x, y = columns
        if last:
            self.model = self.model.to(memory_format=torch.channels_last)
            x = x.contiguous(memory_format=torch.channels_last)
        self.columns = (x, y)
        self.optimizer = torch.optim.SGD(self.model.parameters(), RATE)

    def step(self, indices: Tensor) -> None:
        """Trains on one lot."""
        x, y = (column[indices] for column in self.columns)
        self.optimizer.zero_grad()
        self.problem.loss(self.model(x), y).mean().backward()
        self.optimizer.step()

    def train_timed(self, lots: list[Tensor]) -> None:
        """Trains on these lots, on the clock."""
        start = time.process_time()
        for indices in lots:
            self.step(indices)
        self.seconds += time.process_time() - start


def opacus_training(problem: Problem, model: nn.Module, columns: tuple[Tensor, ...], b: int) -> PlainTraining:
    """Returns training by Opacus with its hooks, as a loop over the same lots; its accountant is not on the clock."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    from bench.engines import _opacus_model

    made = PlainTraining(problem, _opacus_model(model), columns, last=False)
    start = time.process_time()
    made.model = GradSampleModule(made.model)
    made.optimizer = DPOptimizer(
        torch.optim.SGD(made.model.parameters(), RATE),
        noise_multiplier=MULTIPLIER,
        max_grad_norm=BOUND,
        expected_batch_size=b,
    )
    made.seconds = time.process_time() - start
    return made


def measure(problem: Problem, lots: int, *, seed: int = 0, with_opacus: bool = False) -> dict[str, Any]:
    """Trains one model privately and plainly on the same lots, by turns, and returns a row of the table."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    b = problem.batches[-1]
    n = _POPULATION * b
    model, columns = problem.model(), (problem.inputs(n), problem.targets(n))
    purposes = Purposes()
    attribute_all(purposes)
    others = {"plain": PlainTraining(problem, model, columns, last=False)}
    if problem.images:
        others["plain, channels last"] = PlainTraining(problem, model, columns, last=True)
    if with_opacus:
        others["opacus hooks"] = opacus_training(problem, model, columns, b)
    # Imports are not part of a run, and names of the package are imported when they are first used.
    assert all((sd.Private, sd.NoisySum, sd.Flat, sd.Gaussian, sd.Poisson, sd.Guarantee)), "imported"
    # The first pass of a process loads the libraries behind torch's operations; no engine is charged for that.
    warm = PlainTraining(problem, model, columns, last=False)
    for _ in range(3):
        warm.step(torch.arange(b))

    loss = purposes.count_losses(lambda m, x, y: problem.loss(m(x), y))
    pending: list[Tensor] = []
    with on_the_clock(purposes):
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        query = sd.NoisySum(sd.Flat(BOUND), sd.Gaussian(MULTIPLIER))
        private = sd.Private(model, loss, query, seed=seed)
        with purposes.attribute_to("before the first lot, other"):
            draws = private.draws(TensorDataset(*columns), sd.Poisson(1 / _POPULATION), steps=lots, expected_batch=b)
    for turn in range(0, lots, _TURN):
        with on_the_clock(purposes):
            for _ in range(min(_TURN, lots - turn)):
                lot = next(draws)
                assert private._last_records is not None, "a lot was drawn"
                pending.append(torch.from_numpy(private._last_records))
                private.backward(lot)
                optimizer.step()
        for name, other in list(others.items()):
            try:
                with private.public("plain training beside it"):  # the tripwire sees every optimizer
                    other.train_timed(pending)
            except RuntimeError:
                if not name.startswith("opacus"):
                    raise
                del others[name]  # Opacus cannot train this model
        pending.clear()
    with on_the_clock(purposes):
        for _ in draws:  # the loop ends, and the last lot may be tested
            raise AssertionError("every lot was drawn")
        with purposes.attribute_to("claim"):
            claim = private.claim(_DELTA)
            assert isinstance(claim, sd.Guarantee), claim
            str(claim)

    plain = min(other.seconds for name, other in others.items() if name.startswith("plain"))
    whole = sum(purposes.seconds.values())
    return {
        "model": problem.name,
        "lot": b,
        "lots": lots,
        "seed": seed,
        "ratio": round(whole / plain, 3),
        "training ratio": round(purposes.seconds["training"] / plain, 3),
        "private seconds": round(whole, 3),
        "other seconds": {name: round(other.seconds, 3) for name, other in others.items()},
        "share of plain training": {k: round(v / plain, 4) for k, v in purposes.seconds.most_common()},
        "forward passes": dict(purposes.passes),
        "records in them": dict(purposes.records),
        "lots tested": private._checks.count_lots().tested,
    }


def measure_in_a_process(name: str, lots: int, *, seed: int, with_opacus: bool) -> dict[str, Any]:
    """Runs `measure` in a process of its own and returns the row."""
    command = [sys.executable, "-m", "bench.whole_run", "--one", name, "--lots", str(lots), "--seed", str(seed)]
    command += ["--opacus"] if with_opacus else []
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the median ratios as Markdown, one line for each model and one column for each number of lots."""
    lots = sorted({row["lots"] for row in rows})
    lines = ["| model (lot) | " + " | ".join(f"{k:,} lots" for k in lots) + " |", "|---" * (1 + len(lots)) + "|"]
    for name in dict.fromkeys((row["model"], row["lot"]) for row in rows):
        cells = []
        for k in lots:
            found = [row for row in rows if (row["model"], row["lot"], row["lots"]) == (*name, k)]
            cells.append(f"{statistics.median(row['ratio'] for row in found):.2f}" if found else "—")
        lines.append(f"| {name[0]} ({name[1]}) | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures what is missing in the file, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of models, separated by commas")
    parser.add_argument("--lots", default=",".join(map(str, LOTS)), help="lengths of runs, separated by commas")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--opacus", action="store_true", help="Opacus beside plain training, if it is installed")
    parser.add_argument("--seed", type=int, default=0, help="of the one run that --one makes")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--one", default="", help="measure this model here, and print the row")
    options = parser.parse_args()
    lengths = [int(k) for k in options.lots.split(",")]
    if options.one:
        problem = next(each for each in MODELS if each.name == options.one)
        print(json.dumps(measure(problem, lengths[0], seed=options.seed, with_opacus=options.opacus)))  # noqa: T201
        return
    empty = {"processor": processor(), "torch": torch.__version__, "rows": []}
    result = json.loads(options.out.read_text()) if options.out.exists() else empty
    rows = result["rows"]
    for repeat in range(options.repeats):
        for lots in lengths:
            for problem in MODELS:
                done = sum((row["model"], row["lots"]) == (problem.name, lots) for row in rows)
                if done > repeat or (options.only and problem.name not in options.only.split(",")):
                    continue
                rows.append(measure_in_a_process(problem.name, lots, seed=repeat, with_opacus=options.opacus))
                print(problem.name, lots, rows[-1]["ratio"], flush=True)  # noqa: T201
                options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(table(rows))  # noqa: T201


if __name__ == "__main__":
    main()

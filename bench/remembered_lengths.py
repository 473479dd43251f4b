"""How much of the exact order of sorted lots is kept where lengths are remembered between steps.

The thesis' SortedDPSGD on CIFAR-10 (recipe `thesis-cifar`: 50,000 records, lots of 200, σ = 1.1) takes the lengths of
25,000 records before a step on average. `Sorted.top_k(200, remeasured=m)` takes those of m lots' worth. Here every length
is known, and both are compared at the same model:

    collect   trains the recipe, cheaply ranked up to the 176th step of an epoch. For 18 steps from there the lots are the
              exact ones, and the lengths of all 15,000 records that are left, by stretch of the network, are kept in the
              cache. Two CPU minutes for such a window, and half a second for each step before it.
    replay    lets each way to choose who is measured go through the window. It begins with all lengths of its first step.
              From then on it knows what it measured and nothing else. What counts is the share of the exact lot that is
              in its lot, and the mean length of its lot over that of the exact one.
    price     times the pass that takes lengths beside as many multiplications in one matrix product

    python -m bench.remembered_lengths collect --rate 0.1 --bound 5 --epochs 0 1
    python -m bench.remembered_lengths replay
    python -m bench.remembered_lengths price

Ways:
    as they were     a quarter of the measured are the stalest, the others the longest by their remembered lengths
    predicted        as `remembered_lengths.py` has it
    predicted, total the same, where only the whole length is remembered and not its stretches

`to be sure` counts how many records would have to be measured before a step, so that no other can be in the exact lot if
none grows more in a step than the fastest that was measured in it: the exact order by a bound.

Writes bench/results/remembered_lengths.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sordino_lab import result_store
from sordino_lab.experiment import ExperimentSize
from sordino_lab.thesis_plans import plan_cifar
from sordino_lab.workbench import Workbench

from sordino.app.runs.job import Job, assemble_job
from sordino.kernels.processor import processor_name
from sordino.ledger.ledger import Ledger
from sordino.lots.record_lengths import gradient_lengths
from sordino.rng.streams import Rng
from sordino.sampling import Records
from sordino.sampling.record_access import indistinguishable_records
from sordino.sampling.remembered_lengths import (
    RememberedLengths,
    lengths_of,
    measure_everyone,
    measure_likeliest,
)
from sordino.sampling.sampler import Draw, mark_unproven
from sordino.sampling.sorted import Longest

RESULTS = Path(__file__).parent / "results" / "remembered_lengths.json"
LOT, LOTS_IN_AN_EPOCH = 200, 250
BEGINS, STEPS = 175, 18
"""The place of a window in its epoch, and its steps."""
BUDGETS = (400, 600, 1000, 2000, 3000)
RECORD_PRODUCTS = 27e6
"""Multiplications of a record's pass forward and backward, each with an addition."""


def windows_folder() -> Path:
    """Returns where the windows are kept."""
    return result_store.cache_folder() / "remembered_lengths"


def thesis_job(rate: float, bound: float) -> Job:
    """Returns the thesis' training on CIFAR-10, ready to begin."""
    bench = Workbench(ExperimentSize.FULL, result_store.cache_folder())
    plan = plan_cifar(bench, "sorted", rate, bound)
    return assemble_job(plan.settings(ExperimentSize.FULL, 0), lambda text: None)


@dataclass(frozen=True)
class CollectingSampler:
    """Draws cheaply ranked lots up to a window and the exact ones inside it, where it keeps all lengths."""

    windows: tuple[int, ...]
    """The first step of each."""
    name: str

    @property
    def size_is_public(self) -> bool:
        """Yes: lots have one size."""
        return True

    def expected_size(self, n: int) -> float:
        """Returns the size of a lot."""
        return float(LOT)

    def draws(self, n: int, rng: Rng, start: int) -> Iterator[Draw]:
        """Yields draws of records that are all alike, for a dry run."""
        return self.draws_from(indistinguishable_records(n), rng, start, None)

    def draws_from(self, records: Records, rng: Rng, start: int, memory: Any) -> Iterator[Draw]:
        """Yields the lots, and writes a window to the cache when its last lot was drawn."""
        n, random = len(records), np.random.default_rng(1)
        left, last, k = np.zeros(n, dtype=bool), np.full(n, np.inf, dtype=np.float32), start
        kept: list[NDArray[np.float32]] = []
        begun_with = np.arange(0)
        while True:
            if not left.any():
                left[:] = True
            rows = np.flatnonzero(left)
            begin = next((one for one in self.windows if one <= k < one + STEPS), None)
            if begin is None:
                # 250 that were longest when last measured, and 150 at random.
                longest = rows[np.argsort(-last[rows], kind="stable")[:250]]
                some = np.union1d(longest, rows[random.permutation(len(rows))[:150]]) if len(rows) > 400 else rows
                last[some] = records.lengths(some)
            else:
                some = rows
                begun_with = rows if k == begin else begun_with
                squares = records.squared_lengths(rows)
                last[rows] = lengths_of(squares)
                # Records that are used up have no length.
                step = np.full((len(begun_with), squares.shape[1]), np.nan, dtype=np.float32)
                step[np.isin(begun_with, rows)] = squares
                kept.append(step)
                if k == begin + STEPS - 1:
                    labels = records.labels(begun_with, None)
                    np.savez(windows_folder() / f"{self.name}, step {begin}.npz", squares=np.stack(kept), labels=labels)
                    kept.clear()
            lot = some[np.argsort(-last[some])[:LOT]]
            left[lot] = False
            yield Draw(np.sort(lot), mark_unproven, memory=lambda: None)
            k += 1


def collect(rate: float, bound: float, epochs: list[int]) -> None:
    """Trains up to the last window and keeps the lengths of every window in the cache."""
    windows_folder().mkdir(parents=True, exist_ok=True)
    begins = tuple(epoch * LOTS_IN_AN_EPOCH + BEGINS for epoch in sorted(epochs))
    job = thesis_job(rate, bound)
    private, problem = job.create_private(0, Ledger(), None), job.problem
    sampler = CollectingSampler(begins, f"lr {rate:g}, C = {bound:g}")
    for lot in private.draws(job.data.train, sampler, begins[-1] + STEPS, physical_batch=job.physical_batch):
        for group in problem.optimizer.param_groups:
            group["lr"] = problem.learning_rate(lot.step)
        private.backward(lot)
        problem.optimizer.step()


class RecordedLengths(Records):
    """The records of a window: they are asked as in training, and answer with what was recorded for the step `now`."""

    def __init__(self, squares: NDArray[np.float32]) -> None:
        super().__init__(
            squares.shape[1],
            lambda rows: lengths_of(squares[self.now, rows]),
            lambda rows, label: rows,
            lambda rows: squares[self.now, rows],
        )
        self.now = 0


def choose_longest(lengths: NDArray[np.float32], rows: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Returns the positions of the longest."""
    return Longest()(lengths, lambda: rows, size, Rng.from_seed(0))


def measure_as_they_were(
    records: Records, before: RememberedLengths, rows: NDArray[np.int64], budget: int, lot: int
) -> tuple[NDArray[np.int64], RememberedLengths]:
    """Measures the stalest quarter of the budget, and for the rest those whose remembered lengths are longest."""
    squares, measured_at = before.squares.copy(), before.measured_at.copy()
    stale = rows[np.argsort(measured_at[rows], kind="stable")[: budget // 4]]
    others = np.setdiff1d(rows, stale)
    longest = others[choose_longest(lengths_of(squares[others]), others, budget - len(stale))]
    some = np.union1d(stale, longest)
    squares[some], measured_at[some] = records.squared_lengths(some), lot
    return some, RememberedLengths(squares, measured_at)


Way = Callable[[Records, RememberedLengths, NDArray[np.int64], int, int], tuple[NDArray[np.int64], RememberedLengths]]


def replay_way(squares: NDArray[np.float32], way: Way, budget: int) -> dict[str, float]:
    """Returns how close the lots of one way come to the exact ones, on average over a window and in its worst step."""
    records = RecordedLengths(np.nan_to_num(squares, nan=0.0, posinf=0.0))
    remembered = measure_everyone(records, np.arange(len(records)), 0)
    shares, ratios, needed = [], [], []
    for k in range(1, len(squares)):
        records.now = k
        rows = np.flatnonzero(~np.isnan(squares[k, :, 0]))
        lengths, old = records.lengths(np.arange(len(records))), lengths_of(remembered.squares)
        some, remembered = way(records, remembered, rows, budget, k)
        exact = rows[choose_longest(lengths[rows], rows, LOT)]
        lot = some[choose_longest(lengths[some], some, LOT)]
        shares.append(float(np.isin(exact, lot).mean()))
        ratios.append(float(lengths[lot].mean() / lengths[exact].mean()))
        # The largest growth of what was measured bounds that of the others, and so who may be among the longest.
        growth = float(np.max(lengths[some] / np.maximum(old[some], 1e-6)))
        needed.append(int((old[rows] * growth >= lengths[lot].min()).sum()))
    return {
        "share of the exact lots": round(statistics.fmean(shares), 4),
        "in the worst step": round(min(shares), 4),
        "mean length over the exact": round(statistics.fmean(ratios), 4),
        "mean length in the worst step": round(min(ratios), 4),
        "to be sure": round(statistics.fmean(needed)),
    }


def replay() -> dict[str, Any]:
    """Returns the table of all windows that are kept."""
    found: dict[str, Any] = {}
    for path in sorted(windows_folder().glob("*.npz")):
        with np.load(path) as window:
            squares, labels = window["squares"], window["labels"].astype(np.int64)

        def predicted(
            records: Records,
            before: RememberedLengths,
            rows: NDArray[np.int64],
            budget: int,
            lot: int,
            labels: NDArray[np.int64] = labels,
        ) -> tuple[NDArray[np.int64], RememberedLengths]:
            rng = Rng.from_seed(lot)
            return measure_likeliest(records, before, rows, labels[rows], budget, lot, choose_longest, rng)

        ways: dict[str, tuple[Way, NDArray[np.float32]]] = {
            "as they were": (measure_as_they_were, squares),
            "predicted": (predicted, squares),
            "predicted, total": (predicted, squares.sum(axis=2, keepdims=True)),
        }
        found[path.stem] = {
            "records left": int(squares.shape[1]),
            **{
                name: {str(budget): replay_way(of, way, budget) for budget in BUDGETS}
                for name, (way, of) in ways.items()
            },
        }
    return found


def price(rounds: int = 7) -> dict[str, float]:
    """Returns CPU milliseconds for a record: of the pass that takes lengths, of torch's own passes, and of as many
    multiplications in one large matrix product. They take turns, and the median counts.
    """
    job = thesis_job(0.1, 5.0)
    x, y = (column[:600] for column in job.data.train.tensors)
    model, loss_fn, backend = job.problem.model, job.problem.loss_fn, job.create_backend()
    plain = thesis_job(0.1, 5.0).problem.model
    matrix = torch.randn(512, 512)

    def take_lengths() -> None:
        gradient_lengths(backend.per_sample(model, loss_fn, (x[i : i + 60], y[i : i + 60])) for i in range(0, 600, 60))

    def forward() -> None:
        with torch.no_grad():
            for i in range(0, 600, 60):
                loss_fn(plain, x[i : i + 60], y[i : i + 60])

    def both_passes() -> None:
        for i in range(0, 600, 60):
            loss_fn(plain, x[i : i + 60], y[i : i + 60]).sum().backward()

    def multiply() -> None:
        for _ in range(round(600 * RECORD_PRODUCTS / 512**3)):
            matrix @ matrix

    ways = {"lengths": take_lengths, "torch, forward": forward, "torch, both": both_passes, "one product": multiply}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            begun = time.process_time()
            way()
            times[name].append((time.process_time() - begun) / 600 * 1e3)
    # The first round compiles and warms up.
    return {name: round(statistics.median(some[1:]), 3) for name, some in times.items()}


def main() -> None:
    """Collects a window, or replays all of them, or measures the price."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["collect", "replay", "price"])
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--bound", type=float, default=5.0)
    parser.add_argument("--epochs", type=int, nargs="+", default=[0])
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "collect":
        collect(given.rate, given.bound, given.epochs)
        return
    kept = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    kept["processor"] = processor_name()
    kept.update({"windows": replay()} if given.what == "replay" else {"CPU ms for a record": price()})
    RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(RESULTS.read_text("utf-8"))  # noqa: T201


if __name__ == "__main__":
    main()

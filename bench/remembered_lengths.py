"""How much of the exact order of sorted lots is kept where lengths are remembered between steps.

The thesis' SortedDPSGD on CIFAR-10 (recipe `thesis-cifar`: 50,000 records, lots of 200, σ = 1.1) takes the lengths of
25,000 records before a step on average. `Sorted.top_k(200, remeasured=m)` takes those of m lots' worth. Here every length
is known, and both are compared at the same model:

    collect   trains the recipe, cheaply ranked up to the 176th step of an epoch. For 18 steps from there the lots are the
              exact ones, and the lengths of all 15,000 records that are left are kept in the cache. Two or three CPU
              minutes for such a window, and half a second for each step before it.
    replay    lets each way to choose who is measured go through the window. It begins with all lengths of its first step.
              From then on it knows what it measured and nothing else. What counts is the share of the exact lot that is
              in its lot, and the mean length of its lot over that of the exact one.
    follow    trains the recipe from its first step with `Sorted.top_k(200, remeasured=10)`. Before some lots of the first
              epoch all lengths are taken too, and the lot is compared with the exact one: by then most lengths have been
              predicted for as many steps.
    price     times the pass that takes lengths beside as many multiplications in one matrix product

    python -m bench.remembered_lengths collect --rate 0.1 --bound 5 --epochs 0 1
    python -m bench.remembered_lengths replay
    python -m bench.remembered_lengths follow --rate 0.1 --bound 5 --steps 50 110 --remeasured 12
    python -m bench.remembered_lengths price

Ways:
    as they were     a quarter of the measured are the stalest, the others the longest by their remembered lengths
    by class         predicted as `sordino/sampling/remembered_lengths.py` has it, without summaries of the records
    predicted        the same with them: what `remeasured=` does

A replay begins with all lengths known, which flatters it: what `follow` finds in training is what counts.

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
from sordino.lots.record_lengths import gradient_lengths, summarise_batch
from sordino.rng.streams import Rng
from sordino.sampling import Records
from sordino.sampling.record_access import Summaries, indistinguishable_records
from sordino.sampling.remembered_lengths import RecordFeatures, RememberedLengths, measure_everyone, measure_likeliest
from sordino.sampling.sampler import Draw, mark_unproven
from sordino.sampling.sorted import Longest, Sorted

RESULTS = Path(__file__).parent / "results" / "remembered_lengths.json"
LOT, LOTS_IN_AN_EPOCH = 200, 250
BEGINS, STEPS = 175, 18
"""The place of a window in its epoch, and its steps."""
BUDGETS = (400, 600, 1000, 2000, 2400, 3000)
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
                last[rows] = records.lengths(rows)
                # Records that are used up have no length.
                kept.append(np.where(left[begun_with], last[begun_with], np.float32(np.nan)))
                if k == begin + STEPS - 1:
                    labels = records.labels(begun_with, None)
                    path = windows_folder() / f"{self.name}, step {begin}.npz"
                    np.savez(path, L=np.stack(kept), rows=begun_with, labels=labels)
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


@dataclass(frozen=True)
class FollowedSampler:
    """Draws the lots of a sampler, and before some of them finds out what the exact lot would be."""

    sampler: Sorted
    steps: tuple[int, ...]
    """Numbers of the lots that are compared."""
    found: dict[str, dict[str, float]]

    @property
    def size_is_public(self) -> bool:
        """Yes: lots have one size."""
        return True

    def expected_size(self, n: int) -> float:
        """Returns the size of a lot."""
        return self.sampler.expected_size(n)

    def draws(self, n: int, rng: Rng, start: int) -> Iterator[Draw]:
        """Yields draws of records that are all alike, for a dry run."""
        return self.sampler.draws(n, rng, start)

    def draws_from(self, records: Records, rng: Rng, start: int, memory: Any) -> Iterator[Draw]:
        """Yields the sampler's own lots."""
        left = np.ones(len(records), dtype=bool)
        for k, draw in enumerate(self.sampler.draws_from(records, rng, start, memory)):
            if k in self.steps:
                rows = np.flatnonzero(left)
                lengths = np.zeros(len(records), dtype=np.float32)
                lengths[rows] = records.lengths(rows)
                exact = rows[choose_longest(lengths[rows], rows, LOT)]
                self.found[str(k)] = {
                    "records left": len(rows),
                    "share of the exact lot": round(float(np.isin(exact, draw.indices).mean()), 4),
                    "mean length over the exact": round(float(lengths[draw.indices].mean() / lengths[exact].mean()), 4),
                }
                print(self.found, flush=True)  # noqa: T201
            left[draw.indices] = False
            yield draw


def follow(rate: float, bound: float, steps: list[int], remeasured: int) -> dict[str, Any]:
    """Returns how close some lots of a training come to the exact ones."""
    job = thesis_job(rate, bound)
    private, problem = job.create_private(0, Ledger(), None), job.problem
    found: dict[str, dict[str, float]] = {}
    sampler = FollowedSampler(Sorted.top_k(LOT, remeasured=remeasured), tuple(steps), found)
    for lot in private.draws(job.data.train, sampler, max(steps) + 1, physical_batch=job.physical_batch):
        for group in problem.optimizer.param_groups:
            group["lr"] = problem.learning_rate(lot.step)
        private.backward(lot)
        problem.optimizer.step()
    return {"remeasured": remeasured, **found}


class RecordedLengths(Records):
    """The records of a window: they are asked as in training, and answer with what was recorded for the step `now`."""

    def __init__(self, lengths: NDArray[np.float32]) -> None:
        super().__init__(lengths.shape[1], lambda rows: lengths[self.now, rows], lambda rows, label: rows)
        self.now = 0


def choose_longest(lengths: NDArray[np.float32], rows: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Returns the positions of the longest."""
    return Longest()(lengths, lambda: rows, size, Rng.from_seed(0))


Way = Callable[
    [Records, RememberedLengths, NDArray[np.int64], int, int],
    tuple[NDArray[np.int64], NDArray[np.float32], RememberedLengths],
]


def measure_as_they_were(
    records: Records, before: RememberedLengths, rows: NDArray[np.int64], budget: int, lot: int
) -> tuple[NDArray[np.int64], NDArray[np.float32], RememberedLengths]:
    """Measures the stalest quarter of the budget, and for the rest those whose remembered lengths are longest."""
    logs, measured_at = before.logs.copy(), before.measured_at.copy()
    stale = rows[np.argsort(measured_at[rows], kind="stable")[: budget // 4]]
    others = np.setdiff1d(rows, stale)
    some = np.union1d(stale, others[choose_longest(logs[others], others, budget - len(stale))])
    lengths = records.lengths(some)
    logs[some], measured_at[some] = np.log(np.maximum(lengths, 1e-6)), lot
    return some, lengths, RememberedLengths(logs, measured_at)


def predicted_way(features: RecordFeatures) -> Way:
    """Returns the way that measures the likeliest by a prediction from these features."""

    def way(
        records: Records, before: RememberedLengths, rows: NDArray[np.int64], budget: int, lot: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], RememberedLengths]:
        return measure_likeliest(records, before, rows, features, budget, lot, choose_longest, Rng.from_seed(lot))

    return way


def replay_way(recorded: NDArray[np.float32], way: Way, budget: int) -> dict[str, float]:
    """Returns how close the lots of one way come to the exact ones, on average over a window and in its worst step."""
    records = RecordedLengths(np.nan_to_num(recorded, nan=0.0, posinf=0.0))
    everyone = np.arange(len(records))
    _, remembered = measure_everyone(records, everyone, 0)
    shares, ratios, needed = [], [], []
    for k in range(1, len(recorded)):
        records.now = k
        rows = np.flatnonzero(~np.isnan(recorded[k]))
        every, old = records.lengths(everyone), np.exp(remembered.logs)
        some, lengths, remembered = way(records, remembered, rows, budget, k)
        exact = rows[choose_longest(every[rows], rows, LOT)]
        lot = some[choose_longest(lengths, some, LOT)]
        shares.append(float(np.isin(exact, lot).mean()))
        ratios.append(float(every[lot].mean() / every[exact].mean()))
        # The largest growth of what was measured bounds that of the others, and so who may be among the longest.
        growth = float(np.max(lengths / np.maximum(old[some], 1e-6)))
        needed.append(int((old[rows] * growth >= every[lot].min()).sum()))
    return {
        "share of the exact lots": round(statistics.fmean(shares), 4),
        "in the worst step": round(min(shares), 4),
        "mean length over the exact": round(statistics.fmean(ratios), 4),
        "mean length in the worst step": round(min(ratios), 4),
        "to be sure": round(statistics.fmean(needed)),
    }


def replay() -> dict[str, Any]:
    """Returns the table of all windows that are kept."""
    images = thesis_job(0.1, 5.0).data.train.tensors[0]
    found: dict[str, Any] = {}
    for path in sorted(windows_folder().glob("*.npz")):
        with np.load(path) as window:
            recorded, rows, labels = window["L"], window["rows"], window["labels"].astype(np.int64)
        few, many = summarise_batch((images[torch.from_numpy(rows)], torch.from_numpy(labels)))
        nothing = np.zeros((len(rows), 0), dtype=np.float32)
        ways = {
            "as they were": measure_as_they_were,
            "by class": predicted_way(RecordFeatures(labels, Summaries(nothing, nothing))),
            "predicted": predicted_way(RecordFeatures(labels, Summaries(few.numpy(), many.numpy()))),
        }
        found[path.stem] = {
            "records left": int(recorded.shape[1]),
            **{
                name: {str(budget): replay_way(recorded, way, budget) for budget in BUDGETS}
                for name, way in ways.items()
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
    parser.add_argument("what", choices=["collect", "replay", "follow", "price"])
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--bound", type=float, default=5.0)
    parser.add_argument("--epochs", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[60, 120])
    parser.add_argument("--remeasured", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "collect":
        collect(given.rate, given.bound, given.epochs)
        return
    name = f"lr {given.rate:g}, C = {given.bound:g}"
    found = {
        "replay": lambda: {"windows": replay()},
        "follow": lambda: {f"followed, {name}": follow(given.rate, given.bound, given.steps, given.remeasured)},
        "price": lambda: {"CPU ms for a record": price()},
    }[given.what]()
    # Another part may have ended meanwhile.
    kept = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    kept.update({"processor": processor_name(), **found})
    RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(RESULTS.read_text("utf-8"))  # noqa: T201


if __name__ == "__main__":
    main()

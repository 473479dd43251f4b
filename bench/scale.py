"""What many ranks cost: measured on up to three, fitted, and counted on thousands of fake ones.

    python -m bench.scale            # result in bench/results/scale.json

Measured: the processor's seconds, in one rank, of a lot of a network of 870,000 parameters on 1, 2 and 3 processes of
this machine (gloo), the model on every rank and divided by fully_shard, beside plain training of the same network under
DistributedDataParallel; what adding up on the grid
costs one process; and the seconds of the two collectives. The fake group has no other ranks: its collectives do nothing,
and what they are asked to send is counted. What larger machines would take is in `scale_model.py`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import sordino as sd
from sordino.distributed import agreement, shared_lot
from sordino.distributed.process_group import Ranks
from sordino.kernels.processor import processor_name

RESULT = Path(__file__).parent / "results" / "scale.json"
RECORDS, INPUTS, HIDDEN = 4096, 784, 1100
LOT, LOTS = 192, 14
MANY = 4096
ROUNDS = 3


def network(hidden: int = HIDDEN) -> nn.Module:
    """Returns a network of about a million parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def losses(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Returns one loss for each record."""
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def records() -> torch.utils.data.TensorDataset:
    """Returns generated records."""
    given = torch.Generator().manual_seed(1)
    return torch.utils.data.TensorDataset(
        torch.randn(RECORDS, INPUTS, generator=given), torch.randint(10, (RECORDS,), generator=given)
    )


def private_lots(mesh: Ranks | None, *, divided: bool = False) -> list[float]:
    """Returns the processor seconds of each lot except the first few; with `divided`, by fully_shard."""
    model, found = network(), []
    if divided:
        fully_shard(model)
    run = sd.Private(model, losses, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), seed=0, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with patch(
        "sordino.runtime_checks.test_runner.NeighbourTestRunner.before_backward", lambda *_, **__: None
    ):  # not what is measured here
        began = time.process_time()
        for lot in run.draws(records(), sd.Poisson(LOT / RECORDS), LOTS, expected_batch=LOT, physical_batch=32):
            run.backward(lot)
            optimizer.step()
            began, now = time.process_time(), began
            found.append(began - now)
    return found[4:]


def plain_lots() -> list[float]:
    """Returns the processor seconds of plain training by DistributedDataParallel, with batches of one size."""
    model, found, data = network(), [], records()
    size = dist.get_world_size() if dist.is_initialized() else 1
    wrapped = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for k in range(LOTS):
        began = time.process_time()
        rows = torch.randint(RECORDS, (LOT // size,), generator=torch.Generator().manual_seed(k))
        x, y = (column[rows] for column in data.tensors)
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(x), y).backward()
        optimizer.step()
        found.append(time.process_time() - began)
    return found[4:]


def collectives(ranks: Ranks, sizes: tuple[int, ...] = (1 << 10, 1 << 16, 1 << 20)) -> dict[str, list[float]]:
    """Returns the seconds of the two collectives of a lot, for several numbers of coordinates."""
    found: dict[str, list[float]] = {"reduce_scatter": [], "all_gather": []}
    for size in sizes:
        whole = torch.zeros(size // ranks.size * ranks.size, dtype=torch.int64)
        own = torch.zeros(len(whole) // ranks.size)
        found["reduce_scatter"].append(_seconds(partial(ranks.reduce_scatter, whole)))
        found["all_gather"].append(_seconds(partial(ranks.all_gather, own)))
    return found


def _seconds(work: Callable[[], Any]) -> float:
    """Returns the median wall time of some work."""
    taken = []
    for _ in range(9):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return median(taken)


def _rank(rank: int, size: int, store: str, made: Any) -> None:
    """Measures all kinds in turn on one rank; the first rank returns the result through the queue."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    ranks = Ranks(dist.group.WORLD)
    found: dict[str, list[float]] = {"private": [], "plain": [], "fully_sharded": []}
    for _ in range(ROUNDS):  # in turn, so that other work on the machine falls on all of them
        found["private"] += private_lots(ranks)
        found["plain"] += plain_lots()
        found["fully_sharded"] += private_lots(None, divided=True)
    result: dict[str, Any] = {**found, "collectives": collectives(ranks)}
    if rank == 0:
        made.put(result)
    dist.barrier()
    dist.destroy_process_group()


def measure_processes(size: int, folder: Path) -> dict[str, Any]:
    """Returns what `size` processes measured."""
    context = multiprocessing.get_context("spawn")
    made = context.Queue()
    store = folder / f"store-{size}-{time.monotonic_ns()}"
    processes = [context.Process(target=_rank, args=(rank, size, str(store), made)) for rank in range(size)]
    for process in processes:
        process.start()
    found = dict(made.get(timeout=600))
    for process in processes:
        process.join()
    store.unlink(missing_ok=True)
    return {
        "ranks": size,
        "private_cpu_ms": round(1e3 * median(found["private"]), 2),
        "fully_sharded_cpu_ms": round(1e3 * median(found["fully_sharded"]), 2),
        "plain_ddp_cpu_ms": round(1e3 * median(found["plain"]), 2),
        "collectives_ms": {name: [round(1e3 * s, 3) for s in each] for name, each in found["collectives"].items()},
    }


class Counted(Ranks):
    """Counts what each collective is asked to send and receive."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)
        self.asked: list[tuple[str, int]] = []

    def sum_(self, values: torch.Tensor) -> torch.Tensor:
        """Counts one all-reduce."""
        self.asked.append(("all_reduce", values.nbytes))
        return super().sum_(values)

    def reduce_scatter(self, values: torch.Tensor) -> torch.Tensor:
        """Counts one reduce-scatter."""
        self.asked.append(("reduce_scatter", values.nbytes))
        return super().reduce_scatter(values)

    def all_gather(self, own: torch.Tensor) -> torch.Tensor:
        """Counts one all-gather; absent ranks are taken to say what this one says."""
        self.asked.append(("all_gather", own.nbytes * self.size))
        whole = super().all_gather(own)
        return whole if self.size == 1 else whole.view(self.size, -1).copy_(own).view(-1)


@contextmanager
def fake_group(size: int) -> Iterator[Counted]:
    """Creates a process group of `size` ranks, of which this process is the only one that exists."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        yield Counted(dist.group.WORLD)
    finally:
        dist.destroy_process_group()


def count_collectives(
    size: int = MANY, hidden: int = 64, *, divided: bool = False, layered: bool = False
) -> dict[str, Any]:
    """Returns the collectives and bytes of one lot on `size` ranks, without their agreement."""
    alone = (
        patch.object(shared_lot, "_raise_unless_agreed", lambda *_: None),
        patch.object(agreement, "is_unanimous", lambda *_: True),
    )
    with fake_group(size) as ranks, alone[0], alone[1]:
        model = network(hidden)
        if divided:
            fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
        rows = [-(-p.shape[0] // size) * size * (p.numel() // p.shape[0]) for p in model.parameters()]
        engine = sd.per_sample.Captured(sd.per_sample.PerformanceOptions(measure=False, layer_by_layer=layered))
        query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))
        run = sd.Private(model, losses, query, seed=0, mesh=ranks, backend=engine)
        small = torch.utils.data.Subset(records(), range(256))
        # What a lot sends is counted without the tests of the first lots.
        checks = ("test_runner.NeighbourTestRunner", "reading_check.ReadingCheck")
        without_tests = [
            patch(f"sordino.runtime_checks.{each}.before_backward", lambda *_, **__: None) for each in checks
        ]
        with without_tests[0], without_tests[1]:
            lot = next(run.draws(small, sd.Poisson(0.5), 1, expected_batch=128, physical_batch=8))
            ranks.asked.clear()
            run.backward(lot)
        coordinates = sum(p.numel() for p in model.parameters())
        return {"ranks": size, "coordinates": coordinates, "of_even_rows": rows, "asked": list(ranks.asked)}


def imbalance(ranks: int, each: int, trials: int = 400) -> dict[str, float]:
    """Returns the largest share of a lot over the mean share.

    It compares one draw that is divided evenly with ranks that draw for themselves.
    """
    rng = np.random.default_rng(0)
    one = np.ceil(rng.poisson(ranks * each, trials) / ranks) / each
    own = rng.poisson(each, (trials, ranks)).max(axis=1) / each
    return {"one_draw": round(float(one.mean()), 3), "a_draw_each": round(float(own.mean()), 3)}


def one_process() -> dict[str, float]:
    """Measures a single process."""
    found: dict[str, list[float]] = {"without_ranks_cpu_ms": [], "group_of_one_cpu_ms": [], "plain_cpu_ms": []}
    for _ in range(ROUNDS):
        found["without_ranks_cpu_ms"] += private_lots(None)
        found["group_of_one_cpu_ms"] += private_lots(Ranks())
        found["plain_cpu_ms"] += plain_lots()
    return {name: round(1e3 * median(each), 2) for name, each in found.items()}


def main() -> None:
    """Measures, counts, predicts and writes the file."""
    torch.set_num_threads(1)
    folder = Path(os.environ.get("TMPDIR", "/tmp"))
    alone = one_process()
    result: dict[str, Any] = {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "what": f"linear layers of {INPUTS}-{HIDDEN}-10, Poisson lots of {LOT}, chunks of 32, one thread a rank, gloo",
        "one_process": alone,
        "measured": [measure_processes(size, folder) for size in (1, 2, 3)],
        "counted": count_collectives(),
        "counted_fully_sharded": count_collectives(64, divided=True),
        "counted_layer_by_layer": count_collectives(64, divided=True, layered=True),
        "imbalance": {
            f"{ranks} ranks of {each}": imbalance(ranks, each) for ranks, each in ((8, 32), (1024, 8), (4096, 8))
        },
    }
    ratio = alone["without_ranks_cpu_ms"] / alone["plain_cpu_ms"]
    result["private_over_plain"] = {"one process": round(ratio, 2)} | {
        f"{each['ranks']} ranks": round(each["private_cpu_ms"] / each["plain_ddp_cpu_ms"], 2)
        for each in result["measured"]
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))  # noqa: T201


if __name__ == "__main__":
    main()

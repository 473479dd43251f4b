"""The price of gathering a sharded model layer by layer instead of as a whole.

    python -m bench.layer_by_layer            # result in bench/results/layer_by_layer.json

Eight linear layers of 384 × 384, lots of 192, two and three processes of this machine (gloo), chunks of 32 and 96
records. Memory is what tensors that were made during a lot took at most, activations too, as torch's dispatcher sees
them, in bytes for each parameter; buffers that are kept from lot to lot are not in it. Time is that of one rank's
processor, in turn for both kinds. Neighbour tests are left out.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import sordino as sd
from bench.scale import losses
from sordino.kernels.processor import processor_name
from tests.distributed.layered_jobs import Alive

RESULT = Path(__file__).parent / "results" / "layer_by_layer.json"
WIDTH, LAYERS, RECORDS, LOT, LOTS = 384, 8, 2048, 192, 8
LEFT_OUT = 2  # the first lots, in which the engine learns
ROUNDS = 3


def measure_lots(layered: bool, chunk: int) -> tuple[list[float], float]:
    """Returns the processor seconds of each lot, and the most memory of one in bytes a parameter."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    model = nn.Sequential(*blocks, nn.Linear(WIDTH, 10))
    for layer in (*blocks, model):
        fully_shard(layer)
    x, y = torch.randn(RECORDS, WIDTH), torch.randint(10, (RECORDS,))
    engine = sd.per_sample.Captured(sd.per_sample.PerformanceOptions(measure=False, layer_by_layer=layered))
    private = sd.Private(model, losses, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), seed=0, backend=engine)
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.01), torch.utils.data.TensorDataset(x, y)
    taken, most = [], 0.0
    draws = private.draws(data, sd.Poisson(LOT / RECORDS), LOTS + 1, expected_batch=LOT, physical_batch=chunk)
    with patch("sordino.runtime_checks.test_runner.Guard.before_backward", lambda *_, **__: None):
        for number, lot in enumerate(draws):
            if number == LOTS:
                with Alive() as alive:
                    private.backward(lot)
                most = alive.most / sum(p.numel() for p in model.parameters())
                break
            began = time.process_time()
            private.backward(lot)
            optimizer.step()
            taken.append(time.process_time() - began)
    draws.close()
    return taken[LEFT_OUT:], most


def _rank(rank: int, size: int, store: str, made: Any) -> None:
    """Measures both kinds in turn on one rank; the first rank returns the result through the queue."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    found: dict[str, Any] = {}
    for chunk in (32, 96):
        kinds: dict[bool, list[float]] = {False: [], True: []}
        memory: dict[bool, float] = {}
        for _ in range(ROUNDS):  # in turn, so that other work on the machine falls on both
            for layered, seconds in kinds.items():
                more, memory[layered] = measure_lots(layered, chunk)
                seconds += more
        found[f"chunks of {chunk}"] = {
            name: {"cpu_ms": round(1e3 * median(kinds[layered]), 1), "bytes_a_parameter": round(memory[layered], 1)}
            for name, layered in (("made whole", False), ("layer by layer", True))
        }
    if rank == 0:
        made.put(found)
    dist.barrier()
    dist.destroy_process_group()


def measure_processes(size: int) -> dict[str, Any]:
    """Returns what the first of `size` processes measured."""
    context = multiprocessing.get_context("spawn")
    made = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        given = (size, str(Path(folder) / "store"), made)
        processes = [context.Process(target=_rank, args=(rank, *given)) for rank in range(size)]
        for process in processes:
            process.start()
        found = dict(made.get(timeout=600))
        for process in processes:
            process.join()
    return found


def main() -> None:
    """Measures and writes the file."""
    result = {
        "processor": processor_name(),
        "what": f"{LAYERS} linear layers of {WIDTH}, each by fully_shard, lots of {LOT}, one thread a rank, two busy cores",
        **{f"{size} ranks": measure_processes(size) for size in (2, 3)},
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))  # noqa: T201


if __name__ == "__main__":
    main()

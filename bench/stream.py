"""Trains in one pass over a stream of 1,000,000 records in 100 shard files, and measures memory while it goes.

    python -m bench.stream                 # result in bench/results/stream.json
    python -m bench.stream --shards 10     # a tenth of it, printed only

Each shard is a NumPy file of 10,000 records. The resident memory of the process is read after every lot, from the first lot
on: it must not grow with the number of shards that were read. Every shard must be opened once.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import sordino as sd

RESULT = Path(__file__).parent / "results" / "stream.json"
SHARDS, RECORDS, FEATURES, LOT = 100, 10_000, 32, 5_000
PAGE = resource.getpagesize()


def write_shards(folder: Path, shards: int) -> list[Path]:
    """Writes the shard files: rows of numbers, whose class is the sign of their first number."""
    paths = []
    for k in range(shards):
        rows = np.random.default_rng(k).normal(size=(RECORDS, FEATURES)).astype(np.float32)
        paths.append(folder / f"part-{k:03d}.npy")
        np.save(paths[-1], rows)
    return paths


def load_shard(path: Path) -> TensorDataset:
    """Reads the records of one shard file."""
    x = torch.from_numpy(np.load(path))
    return TensorDataset(x, (x[:, 0] > 0).long())


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Returns one loss per record."""
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def resident_megabytes() -> float:
    """Returns the memory of this process that is in use now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6


def measure(shards: int) -> dict[str, Any]:
    """Trains in one pass over so many shards and returns memory after every lot, openings, accuracy and claim."""
    with tempfile.TemporaryDirectory() as folder:
        paths = write_shards(Path(folder), shards)
        data = sd.Shards(paths, [RECORDS] * shards, load_shard)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 2))
        private = sd.Private(model, losses, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(2.0)))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        memory: list[float] = []
        begun = time.process_time()
        for lot in private.draws(data, sd.FixedOrder(LOT), len(data) // LOT, expected_batch=LOT):
            private.backward(lot)
            optimizer.step()
            memory.append(round(resident_megabytes(), 1))
        seconds = time.process_time() - begun
        claim = private.claim(delta=1e-6)
    x = torch.randn(10_000, FEATURES, generator=torch.Generator().manual_seed(-1))
    tenth = max(1, len(memory) // 10)
    assert isinstance(claim, sd.Guarantee), claim
    return {
        "records": len(data),
        "shards": shards,
        "times_opened": data.times_opened,
        "lots": len(memory),
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "held_out_accuracy": float((model(x).argmax(1) == (x[:, 0] > 0)).float().mean()),
        "data_megabytes": round(len(data) * FEATURES * 4 / 1e6, 1),
        "memory_megabytes_after_a_tenth": memory[tenth - 1],
        "memory_megabytes_at_the_end": memory[-1],
        "most_megabytes": max(memory),
        "cpu_seconds": round(seconds, 1),
        "memory_megabytes_after_every_lot": memory,
    }


def main() -> None:
    """Measures and, at full size, writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=SHARDS)
    shards = parser.parse_args().shards
    result = measure(shards)
    shown = {name: value for name, value in result.items() if not isinstance(value, list)}
    print(json.dumps(shown, indent=1))  # noqa: T201
    if shards == SHARDS:
        RESULT.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()

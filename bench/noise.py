"""The price of noise: nanoseconds of CPU time per value added to existing sums, on one thread.

    python -m bench.noise [--values N,N]

The compiled kernel, the numpy code that gives the same bits, torch's own generator, and the key stream alone. Methods take
turns in one process; the figure is the best of the rounds, since other work on the machine only ever adds time. Writes
bench/results/noise.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

from sordino.rng import normals
from sordino.rng.keystream import KeyStream, describe_status, noise_kernel
from sordino.rng.streams import Rng

RESULTS = Path(__file__).parent / "results"


def methods(n: int) -> dict[str, Callable[[], object]]:
    """Returns the ways to add n normal values to a vector; the key stream alone only makes 4 n bytes."""
    total, rng, buffer = torch.zeros(n), Rng(bytes(32)), bytearray(4 * min(n, normals.BLOCK))
    numbers, stream = total.numpy(), KeyStream(bytes(32), 0)

    def by_numpy() -> None:
        for k, block in enumerate(normals.normal_blocks(stream, n, 1.0)):
            numbers[k * normals.BLOCK :][: len(block)] += block

    def key_stream() -> None:
        for _ in range(0, n, normals.BLOCK):
            stream.fill(buffer)

    found: dict[str, Callable[[], object]] = {
        "numpy, same bits": by_numpy,
        "torch.normal": lambda: total.add_(torch.normal(0.0, 1.0, (n,))),
        "key stream of cryptography": key_stream,
    }
    if noise_kernel() is not None:
        found["compiled kernel"] = lambda: rng.add_normal_([total], 1.0)
    return found


def main() -> None:
    """Measures, writes the file and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", default="262144,11010048", help="how many, separated by commas")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, object] = {"noise": describe_status(), "torch": torch.__version__, "rounds": options.rounds}
    for n in map(int, options.values.split(",")):
        times: dict[str, list[float]] = {}
        chosen = methods(n)
        for _ in range(options.rounds):
            for name, method in chosen.items():
                start = time.process_time()
                method()
                times.setdefault(name, []).append(time.process_time() - start)
        result[f"ns per value, {n:,} values"] = {name: round(1e9 * min(t) / n, 2) for name, t in times.items()}
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(result, indent=1)
    (RESULTS / "noise.json").write_text(text + "\n")
    print(text)  # noqa: T201


if __name__ == "__main__":
    main()

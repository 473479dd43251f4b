"""GFLOP/s of the compiled products and 3×3 convolutions beside torch's and the direct kernel's.

    python -m bench.kernels [--out FILE]

Operations are counted as those of the direct sum. CPU time on one thread, the best of interleaved runs in a loop of
their own; within a training step caches are colder. Writes bench/results/kernels_KIND.json, KIND being that of the
processor, or the name given.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.step import RESULTS, kind
from sordino.kernels import convolution as direct_rows
from sordino.kernels import winograd, winograd_rows
from sordino.kernels.affine import load_affines
from sordino.kernels.processor import processor_name
from sordino.kernels.product import load_products
from sordino.per_sample.formulas.convolution_geometry import Geometry
from sordino.per_sample.formulas.gradient_part import square_sum

CONVOLUTIONS = ((16, 64, 32), (64, 64, 32), (128, 128, 16), (256, 256, 8), (128, 128, 4))
"""Input and output channels, and the side of the image."""
MAPS = ((256, 768), (256, 256), (256, 1024), (1024, 256), (256, 1000))
"""Inputs and outputs of the GPT-like model's layers, on half a lot of 8 samples with 128 positions."""
_ROUNDS, _SAMPLES, _POSITIONS = 9, 32, 128
_SAME = Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)
Ways = dict[str, Callable[[], object]]


def fastest(ways: Ways, operations: float) -> dict[str, float]:
    """Returns the GFLOP/s of each way, by its best run."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(_ROUNDS):
        for name, run in ways.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - start)
    return {name: round(operations / seconds / 1e9, 1) for name, seconds in best.items()}


def convolution(inputs: int, outputs: int, side: int) -> dict[str, Any]:
    """Measures all passes of one convolution, channels last."""
    direct, passes, gradients = direct_rows.load_gradients(), winograd.load_passes(), winograd_rows.load_gradients()
    if direct is None or passes is None or gradients is None:
        raise SystemExit("the kernels are not compiled: python sordino/kernels/build.py")

    def last(*shape: int) -> Tensor:
        return torch.randn(shape).contiguous(memory_format=torch.channels_last)

    x, w, g = last(_SAMPLES, inputs, side, side), last(outputs, inputs, 3, 3), last(_SAMPLES, outputs, side, side)
    weights, rows = torch.rand(_SAMPLES), torch.zeros(_SAMPLES, outputs, 9, inputs)
    options = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1, (True, False, False))
    back = partial(torch.ops.aten.convolution_backward, g, x, w, None, *options)
    passed: dict[str, Ways] = {
        "forward": {
            "torch": lambda: torch.conv2d(x, w, padding=1),
            "winograd": lambda: passes.forward(x, w, None, _SAME),
        },
        "input gradient": {"torch": back, "winograd": lambda: passes.backward(x.shape, g, w, _SAME)},
        "rows": {
            "direct": lambda: direct.measure_rows(x, g, _SAME, rows),
            "winograd": lambda: gradients.measure_rows(x, g, _SAME, rows),
        },
        "norms": {
            "direct": lambda: direct.measure_rows(x, g, _SAME, None),
            "winograd": lambda: gradients.measure_rows(x, g, _SAME, None),
        },
        "weighted sum": {
            "direct": lambda: direct.weighted_sum(x, g, _SAME, weights),
            "winograd": lambda: gradients.weighted_sum(x, g, _SAME, weights),
        },
    }
    operations = 2.0 * 9 * inputs * outputs * side**2 * _SAMPLES
    return {name: fastest(ways, operations) for name, ways in passed.items()}


def linear(inputs: int, outputs: int) -> dict[str, Any]:
    """Measures both passes and the rows of one linear layer."""
    maps, made = load_affines(), load_products()
    if maps is None or made is None:
        raise SystemExit("the kernels are not compiled, or the processor has no AVX2")
    a, g = torch.randn(8, _POSITIONS, inputs), torch.randn(8, _POSITIONS, outputs)
    x, y, w = a.flatten(0, 1), g.flatten(0, 1), torch.randn(outputs, inputs)
    room = torch.zeros(8, outputs, inputs)
    passed: dict[str, Ways] = {
        "forward": {"torch": lambda: torch.mm(x, w.t()), "compiled": lambda: maps(x, w.t())},
        "input gradient": {"torch": lambda: torch.mm(y, w), "compiled": lambda: maps(y, w)},
        "rows and norms": {
            "torch": lambda: square_sum(torch.bmm(g.transpose(1, 2), a, out=room)),
            "compiled": lambda: made.compute_rows(g, a, room, 1),
        },
    }
    return {name: fastest(ways, 2.0 * x.numel() * outputs) for name, ways in passed.items()}


def main() -> None:
    """Measures, writes the file and prints the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", default=f"kernels_{kind()}.json")
    out = RESULTS / parser.parse_args().out
    torch.set_num_threads(1)
    result = {
        "convolutions, channels in, out, side": {str(shape): convolution(*shape) for shape in CONVOLUTIONS},
        "linear maps, in, out": {str(shape): linear(*shape) for shape in MAPS},
    }
    out.write_text(json.dumps({"processor": processor_name(), **result}, indent=1) + "\n")
    for group, rows in result.items():
        print(group)  # noqa: T201
        for shape, row in rows.items():
            said = (f"{name} " + " → ".join(f"{v:.0f}" for v in ways.values()) for name, ways in row.items())
            print(f"  {shape}: " + ", ".join(said))  # noqa: T201


if __name__ == "__main__":
    with torch.no_grad():
        main()

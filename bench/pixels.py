"""Finds how the thesis scaled pixels, of which it says nothing, by its DP-SGD with three scales.

    python -m bench.pixels                                       # MNIST
    python -m bench.pixels --cifar "usual mean and deviation"    # one scale of CIFAR-10: half an hour
    python -m bench.pixels --cifar "deviation of the pixels" --bound 1

MNIST: the row of its table 4.1 at learning rate 0.01 (C = 1, σ = 1.1, 30 epochs in lots of 250) ends at 70.37 % and a
loss of 0.93: here at its own size. Then learning rate 1 with random and sorted lots, at the middle size. The runs are
those of the lab, seed 0, kept in its cache.

CIFAR-10: the row of its table A.1 at learning rate 0.1 (C = 5, σ = 1.1, 30 epochs in lots of 200) ends at 50.95 % and a
loss of 1.62, and that of its table 5.1 (C = 1) at 35.8 % and 1.81, here at their own size. Its network is that of an
example of Opacus, which subtracts the usual mean and divides by a deviation, of images and not of pixels. At C = 5 the mean
over the three channels stands for them.

Writes bench/results/pixels.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from sordino_lab import result_store
from sordino_lab.experiment import ExperimentSize
from sordino_lab.thesis_plans import plan_cifar, plan_mnist
from sordino_lab.training_store import train
from sordino_lab.workbench import Workbench

from sordino.kernels.processor import processor_name

RESULTS = Path(__file__).parent / "results" / "pixels.json"
SCALES = {"[0, 1]": (0.0, 1.0), "[−1, 1]": (0.5, 0.5), "usual mean and deviation": (0.1307, 0.3081)}
CIFAR_SCALES = {**SCALES, "usual mean and deviation": (0.4734, 0.2009)}
BY_CHANNEL = {
    "usual mean and deviation": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "deviation of the pixels": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}
CIFAR_PUBLISHED = {5.0: {"accuracy": 50.95, "loss": 1.62}, 1.0: {"accuracy": 35.8, "loss": 1.81}}
"""By clip bound, at learning rate 0.1."""


def final_result(size: ExperimentSize, way: str, rate: float, scale: str) -> dict[str, float]:
    """Returns where a run ends."""
    bench = Workbench(size, result_store.cache_folder())
    centre, deviation = SCALES[scale]
    plan = plan_mnist(bench, way, rate, 1.0, pixel_mean=centre, pixel_deviation=deviation)
    last = train(plan.settings(size, 0), bench.cache).rows[-1]
    return {"accuracy": round(100 * last["test_accuracy"], 2), "loss": round(last["test_loss"], 3)}


def final_cifar_result(scale: str, bound: float) -> dict[str, float]:
    """Returns where the thesis' DP-SGD on CIFAR-10 ends at learning rate 0.1, at its own size."""
    bench = Workbench(ExperimentSize.FULL, result_store.cache_folder())
    scales = CIFAR_SCALES if bound == 5.0 and scale in CIFAR_SCALES else {**CIFAR_SCALES, **BY_CHANNEL}
    centre, deviation = scales[scale]
    plan = plan_cifar(bench, "DP-SGD", 0.1, bound, pixel_mean=centre, pixel_deviation=deviation)
    last = train(plan.settings(ExperimentSize.FULL, 0), bench.cache).rows[-1]
    return {"accuracy": round(100 * last["test_accuracy"], 2), "loss": round(last["test_loss"], 3)}


def main() -> None:
    """Makes the runs that are not kept, and writes all results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cifar",
        choices=list(dict.fromkeys([*CIFAR_SCALES, *BY_CHANNEL])),
        help="run one scale of CIFAR-10 and leave the rest as it is",
    )
    parser.add_argument("--bound", type=float, choices=list(CIFAR_PUBLISHED), default=5.0, help="of CIFAR-10 [5]")
    given = parser.parse_args()
    torch.set_num_threads(1)
    before: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if given.cifar:
        found = final_cifar_result(given.cifar, given.bound)
        before = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}  # another scale may have ended meanwhile
        name = f"CIFAR-10, DP-SGD, lr 0.1, C = {given.bound:g}"
        row = before.setdefault(name, {"published": CIFAR_PUBLISHED[given.bound]})
        row[given.cifar] = found
        RESULTS.write_text(json.dumps(before, indent=1, ensure_ascii=False) + "\n")
        return
    kept = {
        "processor": processor_name(),
        "DP-SGD, lr 0.01": {
            "published": {"accuracy": 70.37, "loss": 0.93},
            **{scale: final_result(ExperimentSize.FULL, "DP-SGD", 0.01, scale) for scale in SCALES},
        },
        "lr 1, reduced": {
            "size": "20,000 records, 15 epochs, seed 0",
            **{
                scale: {way: final_result(ExperimentSize.MIDDLE, way, 1.0, scale) for way in ("DP-SGD", "sorted")}
                for scale in list(SCALES)[:2]
            },
        },
    }
    RESULTS.write_text(json.dumps(before | kept, indent=1, ensure_ascii=False) + "\n")
    print(RESULTS.read_text())  # noqa: T201


if __name__ == "__main__":
    main()

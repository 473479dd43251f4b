"""Correlated noise: its error against DP-SGD's at the same ε, its error in real runs against the formula, time and memory.

    python -m bench.correlated                       errors
    python -m bench.correlated --costs [--steps 60]  time and memory of a step with 1 M and 20 M parameters

Writes bench/results/correlated.json. Times are processor time of one thread, taken in turn with DP-SGD's.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import sordino as sd
from bench.memory import resident
from bench.step import processor
from sordino.accounting import PLD
from sordino.accounting import calibrate as find_multiplier
from sordino.events import Correlated, CyclicPoisson, Event, Gaussian, Poisson, Repeat
from sordino.matrix_factorization.strategies import error_in, sensitivity_of
from sordino.matrix_factorization.workloads import Workload
from sordino.rng.phase_noise import PhaseNoise
from sordino.rng.streams import Rng

SETTINGS = (
    *((4, 500, 1.0), (4, 500, 3.0), (4, 500, 8.0), (40, 500, 1.0), (40, 500, 3.0), (40, 500, 8.0)),
    *((4, 50, 3.0), (40, 50, 1.0), (40, 50, 3.0), (40, 50, 8.0)),
)
"""Epochs, lots in an epoch, and ε."""
BANDS = (2, 4, 8, 16, 32, 64, 128)
RESULTS = Path(__file__).parent / "results" / "correlated.json"


def ratio_to_independent_noise(epsilon: float, epochs: int, strategy: sd.Banded, lots: int = 500) -> float:
    """Returns the RMSE of the parameters' sum with banded noise over DP-SGD's, both at (ε, 1e-6).

    DP-SGD draws lots of 1 / `lots` of the records by Poisson sampling. Banded noise draws lots of the same expected size by
    cyclic Poisson sampling with as many groups as bands.
    """
    steps, bands = epochs * lots, strategy.bands

    def make_independent(sigma: float) -> Event:
        return Repeat(Poisson(1 / lots, Gaussian(sigma)), steps)

    def make_banded(sigma: float) -> Event:
        return CyclicPoisson(bands / lots, bands, steps, Correlated(sigma, strategy.describe()))

    independent = (
        find_multiplier(make_independent, PLD(), epsilon, 1e-6)
        * error_in(sd.Banded(1), Workload(steps)).root_mean_square
    )
    per_sigma = error_in(strategy, Workload(steps)).root_mean_square / sensitivity_of(strategy, steps)
    return find_multiplier(make_banded, PLD(), epsilon, 1e-6) * per_sigma / independent


def compare_errors() -> list[dict[str, float]]:
    """Returns the best ratio to DP-SGD's error over numbers of bands, with square-root and with optimised bands."""
    rows = []
    for epochs, lots, epsilon in SETTINGS:
        row: dict[str, float] = {"epochs": epochs, "lots": lots, "epsilon": epsilon}
        for name, create in (("square_root", sd.Banded), ("optimised", sd.Banded.for_workload)):
            workload = () if create is sd.Banded else (Workload(epochs * lots),)
            found = {
                bands: ratio_to_independent_noise(epsilon, epochs, create(bands, *workload), lots)
                for bands in BANDS
                if bands <= lots
            }
            best = min(found, key=lambda bands: found[bands])
            row |= {f"{name}_bands": best, name: round(found[best], 3)}
        rows.append(row)
    return rows


_AHEAD = 40
"""Lots that are left out before the first step that is timed: more than any strategy here keeps rows."""


def silent_loss(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Returns losses whose gradients are zero, so that a run releases noise alone."""
    losses: torch.Tensor = 0.0 * model(x).sum(dim=1)
    return losses


def measure_error(strategy: Any, steps: int = 100, width: int = 2000) -> dict[str, float]:
    """Returns the RMSE of the sum of all releases in a run of noise alone, and what the formula says."""
    model = torch.nn.Linear(width, 1, bias=False)
    private = sd.Private(model, silent_loss, sd.NoisySum(sd.Flat(1.0), sd.Correlated(1.0, strategy)))
    data = torch.utils.data.TensorDataset(torch.randn(steps, width))
    total, squares = torch.zeros(width, dtype=torch.float64), 0.0
    for lot in private.draws(data, sd.FixedOrder(1), steps=steps, expected_batch=1.0):
        private.backward(lot)
        assert model.weight.grad is not None
        total += model.weight.grad.double().flatten()
        squares += float((total**2).mean())
    formula = error_in(strategy, Workload(steps)).root_mean_square / sensitivity_of(strategy, steps)
    return {"measured": math.sqrt(squares / steps), "formula": formula}


def create_step(noise: Any, parameters: int, steps: int) -> Callable[[], float]:
    """Returns a function that makes one step with 256 records on a network of about so many parameters, and returns the
    processor time that it took.
    """
    hidden = max(1, parameters // 794)
    model = torch.nn.Sequential(torch.nn.Linear(784, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10))
    data = torch.utils.data.TensorDataset(torch.randn(4096, 784), torch.randint(0, 10, (4096,)))

    def loss(m: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(m(x), y, reduction="none")

    private = sd.Private(model, loss, sd.NoisySum(sd.Flat(1.0), noise))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    lots = iter(private.draws(data, sd.FixedOrder(256), steps=steps + _AHEAD, expected_batch=256.0, physical_batch=256))
    # Lots that are left out advance the noise: the first step that is made touches all rows that will be kept.
    for _ in range(_AHEAD):
        next(lots)

    def make_step() -> float:
        lot = next(lots)
        begun = time.process_time()
        private.backward(lot)
        optimizer.step()
        return time.process_time() - begun

    return make_step


def time_over_plain(noise: Any, parameters: int, steps: int) -> dict[str, float]:
    """Returns the median processor time of a step over DP-SGD's, both in turn in one process, and of their own.

    The first half of the steps is not counted: caches, choices of formulas and the first rows of the noise.
    """
    plain, correlated = (create_step(each, parameters, steps) for each in (sd.Gaussian(1.0), noise))
    pairs = [(plain(), correlated()) for _ in range(steps)][steps // 2 :]
    medians = [statistics.median(times) for times in zip(*pairs, strict=True)]
    return {
        "plain_milliseconds": round(1e3 * medians[0], 2),
        "milliseconds": round(1e3 * medians[1], 2),
        "over_plain": round(medians[1] / medians[0], 3),
    }


def measure_memory(noise: Any, parameters: int) -> float:
    """Returns by how many megabytes the process grew when so many steps were made that all rows are in use."""
    sums, rng = torch.ones(parameters), Rng.from_seed(0)
    rng.phase = PhaseNoise(Rng.from_seed(1), 1000)
    gc.collect()
    before = resident()
    for step in (0, _AHEAD):
        rng.phase.draw_step(step)
        noise.add_({"": sums}, 1.0, rng)
    return round((resident() - before) / 1e6, 1)


def measure_costs(parameters: int, steps: int) -> dict[str, Any]:
    """Returns time over DP-SGD's and memory of each strategy with 16 bands, with what it keeps by default and less."""
    buffered = sd.Buffered.for_steps(3, 1000)
    noises = {
        "Banded(16)": sd.Correlated(1.0, sd.Banded(16)),
        "InverseBanded(16)": sd.Correlated(1.0, sd.InverseBanded(16)),
        "InverseBanded(16), 4 vectors kept": sd.Correlated(1.0, sd.InverseBanded(16), kept_vectors=4),
        "InverseBanded(16), nothing kept": sd.Correlated(1.0, sd.InverseBanded(16), kept_vectors=0),
        f"Buffered of {len(buffered.decays)}": sd.Correlated(1.0, buffered),
    }
    found = {}
    for name, noise in noises.items():
        found[name] = {**time_over_plain(noise, parameters, steps), "megabytes": measure_memory(noise, parameters)}
        gc.collect()
    return found


def main() -> None:
    """Prints errors, and with `--costs` writes the time and memory of a step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--costs", action="store_true")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    written = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if options.costs:
        torch.set_num_threads(1)
        written["costs"] = {
            "processor": processor(),
            "1,000,000 parameters": measure_costs(1_000_000, options.steps),
            "20,000,000 parameters": measure_costs(20_000_000, max(8, options.steps // 5)),
        }
    else:
        written["rmse_over_dp_sgd"] = compare_errors()
        written["noise_only_runs"] = {
            str(strategy): measure_error(strategy)
            for strategy in (sd.Banded(1), sd.Banded(16), sd.InverseBanded(16), sd.Buffered.for_steps(3, 100))
        }
    RESULTS.write_text(json.dumps(written, indent=1) + "\n")
    print(json.dumps(written, indent=1))  # noqa: T201


if __name__ == "__main__":
    main()

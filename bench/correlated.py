"""Correlated noise: its error against DP-SGD's at the same ε, its error in real runs against the formula, time and memory.

    python -m bench.correlated [--parameters 1000000] [--steps 30] [--timing]

Prints JSON. Timing is made in one process with torch's own number of threads.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import Any

import torch

import sordino as sd
from sordino.accounting import PLD
from sordino.accounting import calibrate as find_multiplier
from sordino.events import Correlated, CyclicPoisson, Event, Gaussian, Poisson, Repeat
from sordino.matrix_factorization.strategies import error_in, sensitivity_of
from sordino.matrix_factorization.workloads import Workload


def ratio_to_independent_noise(epsilon: float, epochs: int, bands: int, lots: int = 500) -> float:
    """Returns the RMSE of the parameters' sum with banded noise over DP-SGD's, both at (ε, 1e-6)."""
    steps, strategy = epochs * lots, sd.Banded(bands)

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


def silent_loss(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Returns losses whose gradients are zero, so that a run releases noise alone."""
    return 0.0 * model(x).sum(dim=1)


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


def time_steps(noise: Any, sampler: Any, parameters: int, steps: int) -> float:
    """Returns the median seconds of a step with 256 records on a network of about so many parameters."""
    hidden = max(1, parameters // 794)
    model = torch.nn.Sequential(torch.nn.Linear(784, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10))
    data = torch.utils.data.TensorDataset(torch.randn(4096, 784), torch.randint(0, 10, (4096,)))

    def loss(m: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(m(x), y, reduction="none")

    private = sd.Private(model, loss, sd.NoisySum(sd.Flat(1.0), noise))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seconds = []
    for lot in private.draws(data, sampler, steps=steps, expected_batch=256.0, physical_batch=256):
        begun = time.perf_counter()
        private.backward(lot)
        optimizer.step()
        seconds.append(time.perf_counter() - begun)
    return sorted(seconds[steps // 2 :])[len(seconds[steps // 2 :]) // 2]


def main() -> None:
    """Prints errors, and with `--timing` the time of a step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--timing", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {
        "rmse_over_dp_sgd": {
            f"epsilon {epsilon:g}, {epochs} epochs": {
                bands: round(ratio_to_independent_noise(epsilon, epochs, bands), 3) for bands in (8, 32, 128, 500)
            }
            for epsilon, epochs in ((1.0, 4), (3.0, 4), (8.0, 4), (3.0, 40))
        },
        "noise_only_runs": {
            str(strategy): measure_error(strategy)
            for strategy in (sd.Banded(1), sd.Banded(16), sd.InverseBanded(16), sd.Buffered.for_steps(3, 100))
        },
    }
    if options.timing:
        fixed = sd.FixedOrder(256)
        plain = time_steps(sd.Gaussian(1.0), fixed, options.parameters, options.steps)
        found["seconds_per_step"] = {"Gaussian": plain}
        for strategy in (sd.Banded(16), sd.InverseBanded(16), sd.Buffered.for_steps(3, 1000)):
            taken = time_steps(sd.Correlated(1.0, strategy), fixed, options.parameters, options.steps)
            found["seconds_per_step"][str(strategy)] = taken
            found.setdefault("over_plain", {})[str(strategy)] = taken / plain
        found["kept_megabytes"] = {
            "Banded(16)": 15 * 4 * options.parameters / 1e6,
            "InverseBanded(16)": 0.0,
            "Buffered of 3": 3 * 4 * options.parameters / 1e6,
        }
    print(json.dumps(found, indent=1))  # noqa: T201


if __name__ == "__main__":
    main()

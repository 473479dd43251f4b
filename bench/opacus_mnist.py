"""The three settings of Opacus's MNIST example, trained by Opacus itself on this machine.

    python -m bench.opacus_mnist --setting 3 --seeds 0 1 2

Model, rate, σ, bound, learning rate, epochs, scaling of pixels and initial weights are those of the recipe
`mnist-opacus-N` with the same seed, so that its row in bench/results/accuracy.json stands beside; draws and noise are
Opacus's own. Results are kept in bench/results/opacus_mnist.json.
"""

from __future__ import annotations

import json
import statistics
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import tyro
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from sordino.app import data
from sordino.app.runs import build, find, prepare

RESULTS = Path(__file__).parent / "results" / "opacus_mnist.json"


@dataclass(frozen=True)
class Command:
    """Train a setting with Opacus."""

    setting: int = 3
    seeds: tuple[int, ...] = field(default=(0, 1, 2))

    def run(self) -> None:
        """Measures, keeps and prints the results."""
        for seed in self.seeds:
            begun = time.process_time()
            accuracy = train_with_opacus(self.setting, seed)
            rows = read_results()
            row = rows.setdefault(f"mnist-opacus-{self.setting}", {"opacus": _version(), "runs": {}})
            row["runs"][str(seed)] = {"accuracy": accuracy, "cpu_seconds": round(time.process_time() - begun, 1)}
            RESULTS.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")
        for name, row in read_results().items():
            found = [100 * run["accuracy"] for run in row["runs"].values()]
            spread = f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
            print(f"{name}: {statistics.mean(found):.2f}{spread} % over {len(found)} seeds")  # noqa: T201


def train_with_opacus(setting: int, seed: int) -> float:
    """Returns the test accuracy after the setting's epochs."""
    from opacus import PrivacyEngine  # type: ignore[import-not-found, unused-ignore]

    recipe = find(f"mnist-opacus-{setting}")
    prepared = prepare(recipe, data.load("mnist"))
    model = build(recipe, prepared, seed).model
    torch.manual_seed(seed)
    loader = DataLoader(prepared.train, batch_size=round(recipe.rate * len(prepared.train)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), recipe.learning_rate),
            data_loader=loader,
            noise_multiplier=recipe.noise_multiplier,
            max_grad_norm=recipe.bound,
        )
        left = recipe.steps
        while left:
            for x, y in loader:
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
                left -= 1
                if not left:
                    break
    model.eval()
    x, y = prepared.test.tensors
    with torch.no_grad():
        right = [(model(x[i : i + 1000]).argmax(1) == y[i : i + 1000]).sum() for i in range(0, len(x), 1000)]
    return float(sum(right)) / len(x)


def read_results() -> dict[str, Any]:
    """Returns what was measured so far."""
    return dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {}


def _version() -> str:
    from importlib.metadata import version

    return version("opacus")


if __name__ == "__main__":
    tyro.cli(Command, description=__doc__).run()

"""Chooses settings of abadi-mnist on held-out images, by a fast stand-in in plain torch.

    python -m bench.stand_in --epsilon 2 --epochs 80 --learning-rate 3 --pca 5
    python -m bench.stand_in --table

The network is the paper's: a private PCA to 60 directions, 1,000 hidden units. Its two layers are written out by hand, so
that a trial costs half of what a run of the library does; the noise is calibrated by the library, the PCA counted. The last
10,000 training images take the place of the test set, which is not read, and the others are trained on. Nothing here is
private, and nothing is released: what comes of it are the numbers of a plan, and the lab measures that. Results are kept in
bench/results/stand_in.json, a row per trial.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import tyro
from torch import Tensor, nn

from bench.held_out import split_held_out
from sordino.app.runs import find, noise_multiplier

RESULTS = Path(__file__).parent / "results" / "stand_in.json"
RECIPE = "abadi-mnist"


@dataclass(frozen=True)
class Command:
    """Try one setting on held-out images, or print what was tried."""

    epsilon: float = 2.0
    rate: float = 0.02
    epochs: int = 40
    learning_rate: float = 4.0
    """At the beginning; it falls to 0 linearly."""
    bound: float = 1.0
    pca: float = 5.0
    """Noise multiplier of the PCA."""
    pixel_mean: float = 0.0
    pixel_deviation: float = 1.0
    seed: int = 1000
    table: bool = False
    """Print the table and run nothing."""

    def run(self) -> None:
        """Measures, or prints the table."""
        rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
        if not self.table:
            rows.append(self._tried())
            RESULTS.write_text("[\n " + ",\n ".join(json.dumps(row) for row in rows) + "\n]\n")
        fields = [name for name in rows[0] if name != "seconds"]
        lines = [" | ".join(fields), "|".join("---" for _ in fields)]
        lines += [
            " | ".join(f"{row[name]:g}" for name in fields) for row in sorted(rows, key=lambda row: row["epsilon"])
        ]
        print("\n".join(f"| {line} |" for line in lines))  # noqa: T201

    def _tried(self) -> dict[str, float]:
        """Trains the stand-in with one setting and returns its held-out accuracy."""
        begun = time.process_time()
        steps = round(self.epochs / self.rate)
        recipe = find(RECIPE).but(
            epsilon=self.epsilon,
            rate=self.rate,
            steps=steps,
            pca=self.pca,
            pixel_mean=self.pixel_mean,
            pixel_deviation=self.pixel_deviation,
        )
        sigma = noise_multiplier(recipe)
        data = split_held_out(recipe, None, lambda _: None)
        torch.manual_seed(self.seed)
        basis = _directions(data.train.tensors[0].flatten(1), self.pca)
        train, test = (one.tensors[0].flatten(1) @ basis for one in (data.train, data.test))
        model = nn.Sequential(nn.Linear(60, 1000), nn.ReLU(), nn.Linear(1000, 10)).requires_grad_(False)
        for step in range(steps):
            lot = torch.rand(len(train)) < self.rate
            sums = _clipped(model, train[lot], data.train.tensors[1][lot], self.bound)
            for p, total in zip(model.parameters(), sums, strict=True):
                noisy = total + sigma * self.bound * torch.randn_like(total)
                p -= self.learning_rate * (1 - step / steps) * noisy / (self.rate * len(train))
        right = (model(test).argmax(1) == data.test.tensors[1]).float().mean()
        row = {name: value for name, value in asdict(self).items() if name != "table"}
        spent = round(time.process_time() - begun, 1)
        return {**row, "sigma": round(sigma, 3), "accuracy": round(100 * float(right), 2), "seconds": spent}


def _directions(x: Tensor, multiplier: float) -> Tensor:
    """Returns the 60 largest directions of the noisy sum of outer products, records at length 1."""
    unit = x / x.norm(dim=1, keepdim=True)
    noise = multiplier * torch.randn(x.shape[1], x.shape[1])
    noise = noise.triu() + noise.triu(1).T
    found: Tensor = torch.linalg.eigh((unit.T @ unit + noise).double())[1][:, -60:]
    return found.float()


def _clipped(model: nn.Sequential, x: Tensor, y: Tensor, bound: float) -> tuple[Tensor, ...]:
    """Returns the sums of the records' gradients, each clipped to `bound`.

    The gradients of two linear layers are outer products.
    """
    first, _, last = model
    hidden = torch.relu(first(x))
    out = torch.softmax(last(hidden), 1) - nn.functional.one_hot(y, 10)
    inner = (out @ last.weight) * (hidden > 0)
    squares = out.square().sum(1) * (hidden.square().sum(1) + 1) + inner.square().sum(1) * (x.square().sum(1) + 1)
    weight = (bound / squares.sqrt()).clamp(max=1)[:, None]
    inner, out = inner * weight, out * weight
    return inner.T @ x, inner.sum(0), out.T @ hidden, out.sum(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    tyro.cli(Command, description=__doc__).run()

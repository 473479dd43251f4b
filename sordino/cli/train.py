"""`sordino train`: a small generated problem, trained privately, with ε ticking and the claim at the end."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import sordino as sd
from sordino import validate
from sordino.claims import rounded_up

TICKS = 10
"""Times that ε and the accuracy are shown in a run."""


@dataclass(frozen=True)
class Command:
    """Train a small network on a generated spiral, privately."""

    records: int = 4000
    """Private records to generate."""
    rate: float = 0.05
    """Poisson rate: the chance of each record to be in a lot."""
    bound: float = 1.0
    """Clip bound on each record's gradient."""
    multiplier: float = 1.5
    """Noise multiplier; 0 trains without noise, and without a guarantee."""
    steps: int = 600
    """Lots to draw."""
    learning_rate: float = 0.02
    """Adam's."""
    delta: float = 1e-5
    """The δ of the claim."""
    seed: int | None = None
    """For tests only: the claim then does not cover it."""
    json: bool = False
    """End with one JSON object instead of words."""

    def run(self) -> int:
        """Train, evaluate, claim."""
        train, test = spiral(validate.count("records", self.records)), spiral(2000, seed=1)
        torch.manual_seed(0)  # the initial weights are public
        model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
        query = sd.NoisySum(sd.Flat(self.bound), sd.Gaussian(self.multiplier))
        private = sd.Private(model, cross_entropy, query, seed=self.seed)
        optimizer = torch.optim.Adam(model.parameters(), lr=validate.positive("learning_rate", self.learning_rate))
        lots = private.draws(train, sd.Poisson(self.rate), self.steps, expected_batch=self.rate * self.records)
        private.claim(self.delta)  # refuse a δ that cannot be before training, not after
        start = time.perf_counter()
        for _ in _shown(self, lots, private, model, test):
            optimizer.step()
        seconds = time.perf_counter() - start
        accuracy, claim = evaluate(model, test), private.claim(self.delta)
        if self.json:
            print(json.dumps({"test_accuracy": accuracy, "claim": _plain(claim), "seconds": seconds}))
        else:
            print(f"\ntest accuracy {accuracy:.1%} after {private.steps} lots in {seconds:.1f} s\n\n{claim}")
        return 0


def spiral(n: int, *, classes: int = 3, seed: int = 0) -> TensorDataset:
    """Three arms of a spiral with some noise."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(classes, (n,), generator=generator)
    radius = torch.rand(n, generator=generator).sqrt()
    angle = 2 * math.pi * (label / classes + 0.6 * radius) + 0.15 * torch.randn(n, generator=generator)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1) * 2, label)


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """One loss per record."""
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def evaluate(model: nn.Module, test: TensorDataset) -> float:
    """The share of public test records classified rightly."""
    x, y = test.tensors
    with torch.no_grad():
        return float((model(x).argmax(dim=1) == y).float().mean())


def _shown(
    command: Command, lots: Iterator[sd.Lot], private: sd.Private, model: nn.Module, test: TensorDataset
) -> Iterator[None]:
    """Go through the lots, and now and then say how it goes: a bar on a terminal, lines elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=command.json)
    bar = Progress(
        TextColumn("lot"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[said]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    every, live = max(1, command.steps // TICKS), sd.accounting.Live()
    with bar:
        task = bar.add_task("", total=command.steps, said="")
        for lot in lots:
            private.backward(lot)
            yield
            bar.advance(task)
            if private.steps % every == 0:
                said = f"{_spent(private.claim(command.delta, accountant=live))}  test accuracy {evaluate(model, test):.1%}"
                bar.update(task, said=said)
                if not console.is_terminal and not command.json:
                    print(f"lot {private.steps:>5}/{command.steps}  {said}", flush=True)


def _spent(claim: sd.Claim) -> str:
    return f"ε {rounded_up(claim.epsilon)}" if isinstance(claim, sd.Guarantee) else "no guarantee"


def _plain(claim: sd.Claim) -> dict[str, Any]:
    if isinstance(claim, sd.NoGuarantee):
        return asdict(claim)
    return {
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "relation": str(claim.relation),
        "accountant": claim.accountant,
        "event": claim.event.to_json(),
        "not_covered": list(claim.not_covered),
    }

"""Model inversion before and after DP: it finds a class's average; a planted record leaves no trace with DP.

source     002, Relation with our project, lines 187–193
setting    gradient ascent on the input for each class, on a network trained with and without DP
reduced    2,000 records, logistic regression, one seed
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from sordino.app import data
from sordino.app.report.panels import Field, Panel
from sordino.clipping.flat import Flat
from sordino.ledger.claims import Guarantee
from sordino.nn import logistic_regression
from sordino.private import Private
from sordino.queries.noisy_sum import NoisySum
from sordino.release.noise import Gaussian
from sordino.sampling.poisson import Poisson
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench

Picture = NDArray[np.float64]
CLASS, DELTA = 3, 1e-5


def loss_fn(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy per record."""
    return F.cross_entropy(model(x), y, reduction="none")


def trained(x: Tensor, y: Tensor, noise: float, steps: int) -> tuple[nn.Module, float | None]:
    """Logistic regression, with DP where there is noise."""
    torch.manual_seed(0)
    model = logistic_regression(tuple(x.shape[1:]), 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ask = NoisySum(Flat(1.0 if noise else float("inf")), Gaussian(noise))
    private = Private(model, loss_fn, ask, seed=0)
    for lot in private.draws(TensorDataset(x, y), Poisson(0.1), steps):
        private.backward(lot)
        optimizer.step()
    said = private.claim(DELTA)
    return model, said.epsilon if isinstance(said, Guarantee) else None


def inverted(model: nn.Module, shape: tuple[int, ...]) -> Picture:
    """The input that the network takes for the class with the most confidence, small steps from grey."""
    guess = torch.full((1, *shape), 0.5, requires_grad=True)
    for _ in range(100):
        loss = F.cross_entropy(model(guess), torch.tensor([CLASS])) + 0.02 * guess.square().sum()
        (slope,) = torch.autograd.grad(loss, guess)
        with torch.no_grad():
            guess -= 0.5 * slope
            guess.clamp_(0, 1)
    return np.asarray(guess.detach().numpy()[0, 0])


def alike(one: Picture, other: Picture) -> float:
    """Correlation of two pictures."""
    return float(np.corrcoef(one.ravel(), other.ravel())[0, 1])


def run(bench: Workbench) -> Outcome:
    """Two networks with a planted record of noise in the class, inverted; beside the class's average and the record."""
    records, steps = bench.pick(200, 2_000, 20_000, 60_000), bench.pick(4, 150, 300, 600)
    loaded = data.digits(train=records, test=10) if bench.size.value == "tiny" else data.load("mnist")
    x, y = (tensor[:records] for tensor in loaded.train.scaled().tensors)
    planted = (torch.rand(x.shape[1:], generator=torch.Generator().manual_seed(9)) > 0.8).float() * 1.0
    x, y = torch.cat([x, planted[None]]), torch.cat([y, torch.tensor([CLASS])])
    pictures: dict[str, Picture] = {
        "average of the class": np.asarray(x[:-1][y[:-1] == CLASS].mean(0)[0].numpy()),
        "planted record of the class": np.asarray(planted[0].numpy()),
    }
    plain, _ = trained(x, y, 0.0, steps)
    private, epsilon = trained(x, y, 2.0, steps)
    pictures["inverted, no privacy"] = inverted(plain, tuple(x.shape[1:]))
    pictures[f"inverted, ε = {epsilon or 0:.1f}"] = inverted(private, tuple(x.shape[1:]))
    side = range(x.shape[-1])
    average, record, before, after = pictures.values()
    return Outcome(
        [
            Panel(name, "pixel", "pixel", field=Field(side, side, [row.tolist() for row in picture], image=True))
            for name, picture in pictures.items()
        ],
        findings=[
            Finding(
                "model inversion reconstructs an average representation of each class",
                "002:191",
                bench.judged(alike(before, average) > 0.3),
                f"correlation with the class's average {alike(before, average):.2f} without privacy and "
                f"{alike(after, average):.2f} with DP",
            ),
            Finding(
                "DP in its canonical form cannot protect from model inversion",
                "002:191",
                bench.judged(alike(after, average) > 0.3),
                "the average is still found, and DP does not promise otherwise: it is not about a record",
            ),
            Finding(
                "similar approaches can break DP (a question there)",
                "002:193",
                bench.judged(abs(alike(after, record)) > 0.2),
                f"a record planted in the class correlates {alike(before, record):.2f} with what is found without "
                f"privacy and {alike(after, record):.2f} with DP",
            ),
        ],
        notes=[
            "What DP bounds is how well a single record can be reconstructed, or its presence told: see "
            "tradeoff-curves."
        ],
        numbers={"epsilon": epsilon},
    )


EXPERIMENT = Experiment(
    id="model-inversion",
    source="002",
    figure="Relation with our project",
    lines="187–193",
    title="Model inversion, and whether it breaks DP",
    shows="inversion finds an average of a class with and without DP; it says nothing of a record, so DP is not broken",
    setting="gradient ascent on the input for each class, on a network trained with and without DP",
    reduced="2,000 records, logistic regression, one seed",
    middle="20,000 records, logistic regression, one seed",
    nouns=("Private", "Flat"),
    terms="",
    seconds=15,
    run=run,
)

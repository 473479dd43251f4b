"""Are the outliers of one epoch those of the next? Overlap of the longest tenth between epochs.

source     001, outlook e), lines 835
setting    which records have the longest gradients, from epoch to epoch
reduced    3,000 records, 10 epochs of logistic regression
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from sordino.app import data
from sordino.app.report.panels import Panel, Series
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench


def run(bench: Workbench) -> Outcome:
    """Sorted and random lots, plain SGD; a softmax layer has its gradient lengths in closed form."""
    records, epochs, size = bench.pick(300, 3_000, 20_000, 60_000), bench.pick(3, 10, 20, 30), 100
    loaded = data.digits(train=records, test=10) if bench.size.value == "tiny" else data.load("mnist")
    x = loaded.train.scaled().tensors[0][:records].flatten(1)
    y = loaded.train.scaled().tensors[1][:records]
    lines, overlap = [], {}
    for k, (name, method, ranked) in enumerate((("sorted lots", "sorted", True), ("random lots", "sgd", False))):
        rng = np.random.default_rng(0)
        weight, bias = torch.zeros(10, x.shape[1]), torch.zeros(10)
        tops = []
        for _ in range(epochs):
            left = np.arange(records)
            lengths = _lengths(x, y, weight, bias)
            tops.append(set(np.argsort(-lengths)[: records // 10].tolist()))
            while len(left):
                order = np.argsort(-_lengths(x[left], y[left], weight, bias)) if ranked else rng.permutation(len(left))
                lot, left = left[order[:size]], left[order[size:]]
                residual = F.softmax(x[lot] @ weight.T + bias, 1) - F.one_hot(y[lot], 10)
                weight -= 0.05 * residual.T @ x[lot] / len(lot)
                bias -= 0.05 * residual.mean(0)
        shared = [100 * len(a & b) / max(1, len(a)) for a, b in pairwise(tops)]
        overlap[name] = float(np.mean(shared))
        lines.append(Series(name, range(2, epochs + 1), shared, method=method, variant=k, hollow="no noise"))
    lines.append(Series("by chance", [2, epochs], [10, 10], method="theory", variant=3))
    return Outcome(
        [
            Panel(
                "longest tenth of the gradients, from epoch to epoch",
                "epoch",
                "shared with the epoch before, %",
                lines,
                ylim=(0, 100),
            )
        ],
        findings=[
            Finding(
                "if records keep their place in the order, it need be made less often",
                "001:835",
                bench.judged(overlap["sorted lots"] > 30),
                f"{overlap['sorted lots']:.0f} % of the longest tenth were there an epoch before, with random lots "
                f"{overlap['random lots']:.0f} %; 10 % by chance",
            )
        ],
        notes=["Ranking less often is `refresh=k`; it costs less time and is not private either."],
    )


def _lengths(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> NDArray[np.float64]:
    """‖p − e_y‖ · √(‖x‖² + 1)."""
    residual = F.softmax(x @ weight.T + bias, 1) - F.one_hot(y, 10)
    return np.asarray((residual.norm(dim=1) * torch.sqrt(x.square().sum(1) + 1)).numpy())


EXPERIMENT = Experiment(
    id="outlook-outliers",
    source="001",
    figure="outlook e)",
    lines="835",
    title="Outlook: do outliers persist?",
    shows="the records with the longest gradients of one epoch are mostly those of the next",
    setting="which records have the longest gradients, from epoch to epoch",
    reduced="3,000 records, 10 epochs of logistic regression",
    middle="20,000 records, 20 epochs of logistic regression",
    nouns=("record_lengths",),
    terms="Ausreißer",
    seconds=6,
    run=run,
)

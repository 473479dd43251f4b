"""A scenario as a command to type and as code to copy; both give the ε that the page shows."""

from __future__ import annotations

from sordino.app.planner.scenario import Scenario

_TRAINED = {
    "mnist": "mnist-opacus-2",
    "fashion-mnist": "mnist-opacus-2 --dataset fashion-mnist",
    "cifar10": "mnist-opacus-2 --dataset cifar10 --model cifar-net",
}
"""Recipes that release the noisy sums of their steps and nothing else, as the page assumes."""


def format_command(scenario: Scenario, multiplier: float) -> str:
    """Returns a scenario as a command line to copy: training if the data set is known, accounting otherwise.

    >>> format_command(Scenario(1000, 50, 1, 1e-5, multiplier=1.1), 1.1)
    'sordino account --rate 0.05 --multiplier 1.1 --steps 20 --delta 1e-05'
    """
    run = f"--rate {scenario.rate!r} --multiplier {multiplier!r} --steps {scenario.lots}"
    if scenario.bands > 1:  # recipes have independent noise
        return f"sordino account {run} --sampling cyclic-poisson --bands {scenario.bands} --delta {scenario.delta!r}"
    if scenario.task is not None:
        # With a target ε the command calibrates the noise itself, so ε is written, not the noise that follows from it.
        noise = f"--noise-multiplier {multiplier!r}" if scenario.epsilon is None else f"--epsilon {scenario.epsilon!r}"
        run = f"{_TRAINED[scenario.task]} --rate {scenario.rate!r} --steps {scenario.lots}"
        return f"sordino train {run} {noise} --delta {scenario.delta!r}"
    return f"sordino account {run} --delta {scenario.delta!r}"


def format_code(scenario: Scenario, multiplier: float) -> str:
    """Returns a scenario as code to copy: the training loop around the reader's own model, loss, optimizer and data."""
    size = f"{scenario.dataset_size:_}" if scenario.dataset_size >= 10_000 else str(scenario.dataset_size)
    batch = f"{scenario.batch:.12g}"
    noise, sampler = f"sd.Gaussian({multiplier!r})", f"sd.Poisson({batch} / {size})"
    if scenario.bands > 1:
        noise = f"sd.Correlated({multiplier!r}, sd.Banded({scenario.bands}))"
        sampler = f"sd.CyclicPoisson({scenario.bands} * {batch} / {size}, groups={scenario.bands})"
    return f"""\
import sordino as sd

# model, optimizer, dataset, loss_fn(model, *batch) with one loss per record: yours
# Flat(1.0): the clip bound, free to choose; it does not change the claim
query = sd.NoisySum(sd.Flat(1.0), {noise})
private = sd.Private(model, loss_fn, query)
lots = private.draws(
    dataset, {sampler}, steps={scenario.lots}, expected_batch={batch}
)
for lot in lots:
    private.backward(lot)
    optimizer.step()
print(private.claim(delta={scenario.delta!r}))
"""

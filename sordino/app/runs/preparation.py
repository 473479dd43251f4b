"""Carries out what a run releases before its first step: bounds, moments, principal directions.

**Privacy:** each is one release on all records, charged to the run's ledger, and fits a layer of the model, which is fixed
from then on (`before.py` has the events). Each sees the records as they reach its layer.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

from sordino.app.runs import project, standardise
from sordino.app.runs.job import Job
from sordino.ledger.ledger import Ledger
from sordino.release.noise import Gaussian
from sordino.rng.streams import Rng
from sordino.statistics import Ranged, Ranges, ask


def carry_out_preparation(job: Job, model: nn.Module, ledger: Ledger, rng: Rng) -> None:
    """Carries out every preparation that the recipe asks for, in the order in which the layers apply."""
    recipe, train = job.settings.recipe, job.data.prepared.train
    if recipe.ranges is not None:
        find_ranges(model, train, recipe.ranges, ledger, rng.child("ranges"))
    if recipe.normalise is not None:
        standardise(model, train, recipe.normalise, ledger, rng)
    if recipe.pca is not None:
        assert isinstance(model, nn.Sequential)  # as `build` makes it
        project(model, train, recipe.pca, ledger, rng.child("pca"))


def find_ranges(model: nn.Module, train: TensorDataset, multiplier: float, ledger: Ledger, rng: Rng) -> None:
    """Fits the model's `Ranged` layer, which is its first, on the private records and charges the ledger."""
    layer = next(module for module in model.modules() if isinstance(module, Ranged))
    bounds = ask(Ranges(len(layer.low), Gaussian(multiplier)), train, ledger=ledger, rng=rng)
    with torch.no_grad():
        layer.low.copy_(bounds[0])
        layer.high.copy_(bounds[1])

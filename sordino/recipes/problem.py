"""A recipe's model, loss, optimizer and learning rate, made and ready to be trained.

**Privacy:** the initial weights come from a public seed; nothing here has seen a record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sordino import schedules, validate
from sordino.nn import MODELS
from sordino.recipes.features import MAPS
from sordino.recipes.prepared import Prepared
from sordino.recipes.recipe import Recipe
from sordino.recipes.standard import Standardise
from sordino.schedules import Schedule


@dataclass(frozen=True, eq=False)
class Problem:
    """What a training loop needs besides the data and the query."""

    model: nn.Module
    loss_fn: Callable[[nn.Module, Tensor, Tensor], Tensor]
    optimizer: torch.optim.Optimizer
    learning_rate: Schedule
    """Of the step, counted from 0; set it on the optimizer's groups before each step."""


def build(recipe: Recipe, prepared: Prepared, seed: int) -> Problem:
    """The run's parts; torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(validate.count("seed", seed, least=0))
        if recipe.model not in MODELS:
            raise ValueError(f"model={recipe.model!r}: there is {', '.join(MODELS)}")
        model = MODELS[recipe.model](prepared.shape, prepared.classes)
    if recipe.features in MAPS or recipe.normalise is not None:
        typical = MAPS[recipe.features].typical if recipe.features in MAPS else (1.0,)
        model = nn.Sequential(Standardise(prepared.shape[0], typical), model)
    return Problem(model, cross_entropy, _optimizer(recipe, model), _schedule(recipe))


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """One loss per record."""
    return F.cross_entropy(model(x), y, reduction="none")


def _optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    parameters, lr = model.parameters(), recipe.learning_rate
    if recipe.optimizer == "sgd":
        if recipe.weight_decay:
            raise ValueError(
                f"weight_decay={recipe.weight_decay}: decoupled decay is AdamW's; with SGD use `penalty`, which decays "
                "inside the clip"
            )
        return torch.optim.SGD(parameters, lr=lr, momentum=recipe.momentum)
    betas = (recipe.momentum or 0.9, 0.999)
    if recipe.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=lr, betas=betas)
    return torch.optim.AdamW(parameters, lr=lr, betas=betas, weight_decay=recipe.weight_decay)


def _schedule(recipe: Recipe) -> Schedule:
    if recipe.schedule == "constant":
        return schedules.Constant(recipe.learning_rate)
    falling = schedules.Linear if recipe.schedule == "linear" else schedules.Cosine
    return falling(recipe.learning_rate, 0.0, recipe.steps)

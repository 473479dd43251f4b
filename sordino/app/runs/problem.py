"""Builds a recipe's model, loss, optimizer and learning-rate schedule.

**Privacy:** the initial weights come from a public seed; nothing here has seen a record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sordino import nn as networks
from sordino import schedules, validate
from sordino.app.data.minilm import build_lora_classifier
from sordino.app.runs import own_model
from sordino.app.runs.features import MAPS
from sordino.app.runs.loss_names import loss_by_name
from sordino.app.runs.prepared import Prepared
from sordino.app.runs.principal import unfitted_projection
from sordino.app.runs.recipe import Recipe
from sordino.clipping.clipping_rule import Stateless
from sordino.nn import OF_WIDTHS
from sordino.optim import AdamCorrected, noise_scale
from sordino.queries.microbatches import Microbatches
from sordino.queries.noisy_sum import NoisySum
from sordino.queries.optimistic_lookahead import OptimisticLookahead
from sordino.schedules import Schedule
from sordino.statistics import Normalise, Ranged

_ONE_NOISE = (NoisySum, Microbatches, OptimisticLookahead)

MODELS = {**networks.MODELS, "minilm-lora": build_lora_classifier}
"""Models by name: those of the library, and MiniLM, whose files are fetched."""


@dataclass(frozen=True, eq=False)
class Problem:
    """What a training loop needs besides the data and the query."""

    model: nn.Module
    loss_fn: Callable[[nn.Module, Tensor, Tensor], Tensor]
    optimizer: torch.optim.Optimizer
    learning_rate: Schedule
    """Of the step, counted from 0; set it on the optimizer's groups before each step."""
    classifies: bool = True
    """Whether there is an accuracy."""


def build(recipe: Recipe, prepared: Prepared, seed: int) -> Problem:
    """Builds model, loss, optimizer and schedule; torch's global generator is left as it was."""
    # Layers that a private preparation fits later stand in front of the model, empty until then.
    shape = prepared.shape if recipe.pca is None else torch.Size([recipe.components])
    preparation_layers: list[nn.Module] = [Ranged(prepared.unbounded)] if prepared.unbounded else []
    if recipe.features in MAPS or recipe.normalise is not None:
        typical = MAPS[recipe.features].typical_sizes if recipe.features in MAPS else (1.0,)
        preparation_layers.append(Normalise(prepared.shape[0], typical))
    if recipe.pca is not None:
        preparation_layers.append(unfitted_projection(prepared.shape.numel(), recipe.components))
    # The initial weights are a function of a public seed.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(validate.count("seed", seed, least=0))
        model = _build_model(recipe, shape, prepared.classes) if prepared.network is None else prepared.network
    model = nn.Sequential(*preparation_layers, model) if preparation_layers else model
    loss = loss_by_name(recipe.loss, prepared.train.tensors[1])
    return Problem(
        model, loss.losses_of, _build_optimizer(recipe, model), learning_rate_schedule(recipe), loss.classifies
    )


def _build_model(recipe: Recipe, shape: torch.Size, classes: int) -> nn.Module:
    """Builds the network by name, or by a function in the user's own file."""
    if own_model.FILE_MARK in recipe.model:
        return own_model.build_from_file(recipe.model, shape, classes)
    if recipe.model not in MODELS:
        raise ValueError(f"model={recipe.model!r}: there is {', '.join(MODELS)}, or FILE.py:FUNCTION")
    if recipe.widths is None:
        return MODELS[recipe.model](shape, classes)
    if recipe.model not in OF_WIDTHS:
        raise ValueError(f"widths={recipe.widths}: {recipe.model} has its own; need one of {', '.join(OF_WIDTHS)}")
    return OF_WIDTHS[recipe.model](shape, classes, recipe.widths)


def _build_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """Returns the optimizer by name; each handles weight decay in the way of its authors."""
    parameters, lr, decay = model.parameters(), recipe.learning_rate, recipe.weight_decay
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=recipe.momentum, weight_decay=decay)
    if recipe.optimizer == "adagrad":
        if recipe.momentum:
            raise ValueError(f"momentum={recipe.momentum:g}: AdaGrad has none; leave it out, or use sgd or adam")
        return torch.optim.Adagrad(parameters, lr=lr, weight_decay=decay)
    betas = (recipe.momentum or 0.9, 0.999)
    if recipe.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=lr, betas=betas, weight_decay=decay)
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, betas=betas, weight_decay=decay)
    assert recipe.optimizer == "adam-corrected"  # a recipe has one of the five
    return AdamCorrected(parameters, lr, noise=_raise_unknown_noise, betas=betas, weight_decay=decay)


def set_noise_scale(optimizer: torch.optim.Optimizer, query: object, expected_batch: float) -> None:
    """Gives an optimizer that corrects for the noise its scale, which is public; does nothing for other optimizers."""
    if not isinstance(optimizer, AdamCorrected):
        return
    # A weigher with a state may change its bound from step to step, and the noise with it.
    if not isinstance(query, _ONE_NOISE) or not isinstance(query.weigher, Stateless):
        raise ValueError(
            f"optimizer='adam-corrected': needs noise of one scale throughout, which {query!r} does not add; use 'adam'"
        )
    try:
        optimizer.noise = schedules.Constant(noise_scale(query, expected_batch))
    except TypeError as error:
        raise ValueError(f"optimizer='adam-corrected': {error}") from error


def _raise_unknown_noise(step: int) -> float:
    """Raises, because the noise scale was never given."""
    raise RuntimeError("AdamCorrected was not told the noise: call tell_noise(optimizer, query, expected_batch) first")


def learning_rate_schedule(recipe: Recipe) -> Schedule:
    """Returns the learning rate as a public function of the step.

    >>> from sordino.app.runs import find
    >>> recipe = find("mnist").but(learning_rate=1.0, schedule="linear", schedule_steps=4, final_rate=0.5)
    >>> rate = learning_rate_schedule(recipe)
    >>> [rate(step) for step in range(6)]
    [1.0, 0.875, 0.75, 0.625, 0.5, 0.5]
    """
    made = _step_schedule(recipe)
    return made if recipe.schedule_per == "step" else schedules.Held(made, max(1, round(1 / recipe.rate)))


def _step_schedule(recipe: Recipe) -> Schedule:
    """Returns the schedule of the learning rate, step by step."""
    top, end = recipe.learning_rate, recipe.final_rate
    steps = recipe.schedule_steps or recipe.steps
    if recipe.schedule == "rise-and-fall":
        return schedules.RiseAndFall(end, top, end, recipe.warm_up or max(1, steps // 2), steps)
    made: Schedule = schedules.Constant(top)
    if recipe.schedule != "constant":
        falling = schedules.Linear if recipe.schedule == "linear" else schedules.Cosine
        made = falling(top, end, steps)
    return schedules.Warmup(recipe.warm_up, made) if recipe.warm_up else made

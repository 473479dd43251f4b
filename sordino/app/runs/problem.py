"""Builds a recipe's model, loss, optimizer and learning-rate schedule.

A model is one of `sordino.nn` by name, or comes from a file of the user's own (own_code.py).

A loss gives one number per record, never a mean:

    cross-entropy    of classes
    tokens           mean cross-entropy of the tokens of a text, those with target −100 left out; of language models
    squared          ½‖f(x) − y‖², of numbers
    absolute         Σ|f(x) − y|, of numbers; its gradient has a kink
    hill, valley     functions of the two numbers f(x) alone, for the model `point`, whose f(x) is θ − x: landscapes to look
                     at paths in. hill has one between the start, 0, and its minimum, near (4, 0); valley is twenty times
                     as steep across as along, with its minimum at (4, 1)

**Privacy:** the initial weights come from a public seed; nothing here has seen a record, and no loss looks at
two at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sordino import nn as networks
from sordino import schedules, validate
from sordino.app.data.minilm import build_lora_classifier
from sordino.app.data.pretrained_weights import build_efficientnet_end
from sordino.app.runs.encoded_records import Prepared
from sordino.app.runs.features import MAPS
from sordino.app.runs.own_code import build_own_model, names_own_code
from sordino.app.runs.preparation import ClassWeights, unfitted_projection
from sordino.app.runs.recipe import BALANCED, Recipe
from sordino.app.runs.run_device import device_of
from sordino.app.suggestions import refuse_unknown_name
from sordino.clipping.clipping_rule import Stateless
from sordino.nn import OF_WIDTHS
from sordino.optim import AdamCorrected, noise_scale
from sordino.queries.microbatches import Microbatches
from sordino.queries.noisy_sum import NoisySum
from sordino.queries.optimistic_lookahead import OptimisticLookahead
from sordino.schedules import Schedule
from sordino.statistics import Normalise, Ranged


@dataclass(frozen=True)
class NamedLoss:
    """A loss that recipes refer to by its name."""

    losses_of: Callable[[nn.Module, Tensor, Tensor], Tensor]
    """`losses_of(model, x, y)` gives one loss per record, shape (B,)."""
    classifies: bool
    """Whether y are classes: then there is an accuracy too."""
    is_of_tokens: bool = False
    """Whether y are the tokens of a text, (B, tokens): then there is a perplexity."""


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Returns the cross-entropy of each record, shape (B,)."""
    return F.cross_entropy(model(x), y, reduction="none")


def token_cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Returns the loss that a recipe's problem names `tokens`: the mean cross-entropy of each record's tokens, shape (B,).

    A record without tokens has 0.
    """
    # Every record is divided by the number of its own tokens, so no record sees another.
    losses = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none")  # 0 where the target is -100
    counted = (y != _IGNORED_TOKEN).sum(1)
    return losses.sum(1) / counted.clamp(min=1)


def squared_error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Returns ½‖f(x) − y‖² of each record."""
    error: Tensor = model(x) - y
    return 0.5 * error.square().flatten(1).sum(1)


def absolute_error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Returns Σ|f(x) − y| of each record."""
    error: Tensor = model(x) - y
    return error.abs().flatten(1).sum(1)


def hill_landscape(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Returns the loss of a recipe's landscape problem: a shallow bowl around (4, 0) with a hill at (2, 0.2), evaluated
    at f(x).

    >>> import torch
    >>> at = torch.tensor([[0.0, 0.0], [2.0, 0.2], [4.0, 0.0]])
    >>> [round(value, 2) for value in hill_landscape(nn.Identity(), at, at).tolist()]
    [1.66, 1.8, 0.06]
    """
    at: Tensor = model(x)
    bowl = 0.1 * ((at[:, 0] - 4).square() + at[:, 1].square())
    return bowl + 1.4 * (-((at[:, 0] - 2).square() + (at[:, 1] - 0.2).square()) / (2 * 0.8**2)).exp()


def valley_landscape(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Returns ½((u − 4)² + 20 (v − 1)²) at (u, v) = f(x)."""
    at: Tensor = model(x)
    return 0.5 * ((at[:, 0] - 4).square() + 20 * (at[:, 1] - 1).square())


_IGNORED_TOKEN = -100

LOSSES: Mapping[str, NamedLoss] = {
    "cross-entropy": NamedLoss(cross_entropy, classifies=True),
    "tokens": NamedLoss(token_cross_entropy, classifies=False, is_of_tokens=True),
    "squared": NamedLoss(squared_error, classifies=False),
    "absolute": NamedLoss(absolute_error, classifies=False),
    "hill": NamedLoss(hill_landscape, classifies=False),
    "valley": NamedLoss(valley_landscape, classifies=False),
}


def loss_by_name(name: str, targets: Tensor) -> NamedLoss:
    """Returns the loss that a recipe's problem names and refuses one that does not fit the targets."""
    # The name must be known, and the loss must fit the kind of targets.
    refuse_unknown_name(f"loss={name!r}", name, LOSSES)
    loss = LOSSES[name]
    tokens = not targets.is_floating_point() and targets.dim() > 1
    classes = not targets.is_floating_point() and not tokens
    if (loss.classifies, loss.is_of_tokens) != (classes, tokens):
        kind = "tokens" if tokens else "classes" if classes else "numbers"
        fitting = (name for name, one in LOSSES.items() if (one.classifies, one.is_of_tokens) == (classes, tokens))
        fit = ", ".join(fitting)
        raise ValueError(f"loss={name!r}: these records have {kind}; need one of {fit}")
    return loss


_ONE_NOISE = (NoisySum, Microbatches, OptimisticLookahead)

MODELS = {
    **networks.MODELS,
    "minilm-lora": build_lora_classifier,
    "efficientnet-end": build_efficientnet_end,
}
"""Models by name: those of the library, and MiniLM and the end of EfficientNet-Lite0, whose files are fetched."""


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


def build(recipe: Recipe, prepared: Prepared, seed: int, device: torch.device | None = None) -> Problem:
    """Builds a recipe's problem: model, loss, optimizer and schedule; torch's global generator is left as it was.

    The initial weights are drawn on the CPU, so that they are the same wherever the run computes.
    """
    model = build_network(recipe, prepared.shape, prepared.classes, prepared.encoder.unbounded, prepared.network, seed)
    if device is not None:
        model.to(device)  # before the optimizer is made, whose state follows the parameters
    loss = loss_by_name(recipe.loss, prepared.train.tensors[1])
    if recipe.class_weights is not None:
        loss = _weight_classes(loss, recipe.class_weights, model, prepared)
    return Problem(
        model, loss.losses_of, _build_optimizer(recipe, model), learning_rate_schedule(recipe), loss.classifies
    )


def _weight_classes(loss: NamedLoss, given: str, model: nn.Module, prepared: Prepared) -> NamedLoss:
    """Returns the loss of a problem with each record's value multiplied by the weight of its class."""
    if not loss.classifies:
        raise ValueError(f"class_weights={given!r}: these records have numbers and no classes; leave it out")
    if given == BALANCED:  # fitted before the first step, in place
        weights = next(module for module in model.modules() if isinstance(module, ClassWeights)).weights
    else:
        names = prepared.encoder.classes or tuple(str(number) for number in range(prepared.classes))
        weights = _parse_class_weights(given, names).to(device_of(model))
    # Weights are looked up by each record's own class, so no record sees another.
    unweighted = loss.losses_of

    def weighted_losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return unweighted(model, x, y) * weights[y]

    return NamedLoss(weighted_losses, classifies=True)


def _parse_class_weights(text: str, names: Sequence[str]) -> Tensor:
    """Returns the weight of every class in a problem's loss from a text such as no=1,yes=20; a class that is not named
    has weight 1.

    The largest weight is scaled to 1. Clipping comes after the weight, so a weight above 1 would be undone by it: the
    other classes become lighter instead.

    >>> _parse_class_weights("yes=20", ("no", "yes")).tolist()
    [0.05000000074505806, 1.0]
    """
    # Classes that are not named have weight 1 before all of them are scaled.
    weights = torch.ones(len(names))
    for part in text.split(","):
        name, equals, number = part.rpartition("=")
        if not equals or name.strip() not in names:
            raise ValueError(f"class_weights {part!r}: need CLASS=WEIGHT of {', '.join(names)}; or {BALANCED}")
        try:
            weights[list(names).index(name.strip())] = validate.positive(f"class_weights {name}", float(number))
        except ValueError as error:
            raise ValueError(f"class_weights {part!r}: need a positive weight ({error})") from None
    return weights / weights.max()


def build_network(
    recipe: Recipe, shape: torch.Size, outputs: int, unbounded: int, own_network: nn.Module | None, seed: int
) -> nn.Module:
    """Builds a problem's network for records of a shape, with the layers in front of it that private preparations fit.

    `unbounded` is how many numbers of a record come first whose bounds are to be found; `own_network` is a user's
    own model.
    """
    # Layers that a private preparation fits later stand in front of the model, empty until then.
    inner_shape = shape if recipe.pca is None else torch.Size([recipe.components])
    preparation_layers: list[nn.Module] = [Ranged(unbounded)] if unbounded else []
    if recipe.histogram is not None:
        preparation_layers.append(ClassWeights(outputs))
    if recipe.features in MAPS or recipe.normalise is not None:
        typical = MAPS[recipe.features].typical_sizes if recipe.features in MAPS else (1.0,)
        preparation_layers.append(Normalise(shape[0], typical))
    if recipe.pca is not None:
        preparation_layers.append(unfitted_projection(shape.numel(), recipe.components))
    # The initial weights are a function of a public seed.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(validate.count("seed", seed, least=0))
        model = _build_model(recipe, inner_shape, outputs) if own_network is None else own_network
    return nn.Sequential(*preparation_layers, model) if preparation_layers else model


def _build_model(recipe: Recipe, shape: torch.Size, classes: int) -> nn.Module:
    """Builds a problem's network by the recipe's name for it, or by a function in the user's own file."""
    # A user's own function is asked first; its name contains a file, so it can be no name of the list.
    if names_own_code(recipe.model):
        return build_own_model(recipe.model, shape, classes)
    refuse_unknown_name(f"model={recipe.model!r}", recipe.model, MODELS, ", or FILE.py:FUNCTION")
    # Without widths every network has those it was published with.
    if recipe.widths is None:
        return MODELS[recipe.model](shape, classes)
    if recipe.model not in OF_WIDTHS:
        raise ValueError(f"widths={recipe.widths}: {recipe.model} has its own; need one of {', '.join(OF_WIDTHS)}")
    return OF_WIDTHS[recipe.model](shape, classes, recipe.widths)


def _build_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """Returns the optimizer of a recipe's problem by its name; each handles weight decay in the way of its authors."""
    # Each optimizer treats decay as its authors do; none of them sees a record.
    parameters, lr, decay = model.parameters(), recipe.learning_rate, recipe.weight_decay
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=recipe.momentum, weight_decay=decay)
    if recipe.optimizer == "adagrad":
        if recipe.momentum:
            raise ValueError(f"momentum={recipe.momentum:g}: AdaGrad has none; leave it out, or use sgd or adam")
        return torch.optim.Adagrad(parameters, lr=lr, weight_decay=decay)
    # Momentum, where it is given, is Adam's first moment.
    betas = (recipe.momentum or 0.9, 0.999)
    if recipe.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=lr, betas=betas, weight_decay=decay)
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, betas=betas, weight_decay=decay)
    assert recipe.optimizer == "adam-corrected"  # a recipe has one of the five
    return AdamCorrected(parameters, lr, noise=_raise_unknown_noise, betas=betas, weight_decay=decay)


def set_noise_scale(optimizer: torch.optim.Optimizer, query: object, expected_batch: float) -> None:
    """Gives a problem's optimizer the public scale of the noise if it corrects for noise; does nothing for other
    optimizers.
    """
    if not isinstance(optimizer, AdamCorrected):
        return
    # A clipping rule with a state may change its bound from step to step, and the noise with it.
    if not isinstance(query, _ONE_NOISE) or not isinstance(query.clipping, Stateless):
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
    """Returns the learning rate of a recipe's problem as a public function of the step.

    >>> from sordino.app.runs import find
    >>> recipe = find("mnist").but(learning_rate=1.0, schedule="linear", schedule_steps=4, final_rate=0.5)
    >>> rate = learning_rate_schedule(recipe)
    >>> [rate(step) for step in range(6)]
    [1.0, 0.875, 0.75, 0.625, 0.5, 0.5]
    """
    made = _step_schedule(recipe)
    return made if recipe.schedule_per == "step" else schedules.Held(made, max(1, round(1 / recipe.rate)))


def _step_schedule(recipe: Recipe) -> Schedule:
    """Returns the learning-rate schedule of a recipe's problem, step by step."""
    top, end = recipe.learning_rate, recipe.final_rate
    # The shape between the two rates, and the warm-up in front of it.
    steps = recipe.schedule_steps or recipe.steps
    if recipe.schedule == "rise-and-fall":
        return schedules.RiseAndFall(end, top, end, recipe.warm_up or max(1, steps // 2), steps)
    made: Schedule = schedules.Constant(top)
    if recipe.schedule != "constant":
        falling = schedules.Linear if recipe.schedule == "linear" else schedules.Cosine
        made = falling(top, end, steps)
    return schedules.Warmup(recipe.warm_up, made) if recipe.warm_up else made

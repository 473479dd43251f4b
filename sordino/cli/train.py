"""`sordino train RECIPE`: train privately by a recipe, with ε ticking, and leave a run directory with the claim."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

import tyro

from sordino.cli.outcome import finish, guarded
from sordino.runs.fit import carry_out
from sordino.runs.settings import read, settle
from sordino.runs.view import watching

_OWN = ("config", "parameter", "budget_stop", "out", "json", "recipe")


@dataclass(frozen=True)
class Command:
    """Train by a recipe; any of its fields can be given by flag or in a TOML file."""

    recipe: Annotated[str | None, tyro.conf.Positional] = None
    """A name that `sordino recipes` lists; may be left out when --config names it."""
    config: str | None = None
    """A TOML file of fields, such as the config.toml of another run; flags win over it."""
    epsilon: float | None = None
    """Privacy budget: the noise is calibrated so that the whole run keeps to it."""
    noise_multiplier: float | None = None
    """The noise itself, instead of epsilon."""
    delta: float | None = None
    """The δ of the claim."""
    budget_stop: bool = False
    """With both --epsilon and --noise-multiplier: stop before ε is exceeded."""
    non_private: bool = False
    """The baseline: no bound, no noise, no guarantee."""
    method: str | None = None
    """The private gradient: `sordino recipes --methods` lists them."""
    parameter: tuple[str, ...] = ()
    """Parameters of the method, as in threshold=2.0."""
    sampler: str | None = None
    """poisson, balls-in-bins, shuffle, fixed-size or full; the method's own if not given."""
    steps: int | None = None
    """Lots to draw."""
    rate: float | None = None
    """Chance of each record to be in a lot."""
    bound: float | None = None
    """Clip bound on each record's gradient."""
    learning_rate: float | None = None
    """Of the optimizer."""
    optimizer: str | None = None
    """sgd, adam, adamw or adam-corrected."""
    momentum: float | None = None
    """SGD's; Adam's first moment."""
    weight_decay: float | None = None
    """Decoupled, after the noise."""
    penalty: float | None = None
    """L2 penalty inside each record's gradient."""
    schedule: str | None = None
    """Of the learning rate: constant, linear or cosine."""
    ema: float | None = None
    """Decay of the average of the weights."""
    dataset: str | None = None
    """Of `sordino data list`, or digits or spiral."""
    features: str | None = None
    """Frozen feature map."""
    pixel_mean: float | None = None
    """Without a feature map: pixels in [0, 1] are centred at this."""
    pixel_deviation: float | None = None
    """Without a feature map: centred pixels are divided by this."""
    normalise: float | None = None
    """Noise multiplier of the private normalisation of features."""
    pca: float | None = None
    """Noise multiplier of a private PCA before the model."""
    components: int | None = None
    """Principal directions of it."""
    model: str | None = None
    """A model of sordino.nn."""
    name: str | None = None
    """Of a recipe of your own."""
    tuned: str | None = None
    """How its fields were found."""
    records: int | None = None
    """Train on the first so many records only."""
    evaluate_every: int | None = None
    """Steps between evaluations."""
    checkpoint_every: int | None = None
    """Steps between checkpoints."""
    physical_batch: int | None = None
    """Records processed at once."""
    init_seed: int | None = None
    """Of the initial weights, which are public."""
    show_private: bool = False
    """Show the training loss, marked; the claim then does not cover it."""
    trace: bool = False
    """Keep the network of every evaluation, for `sordino compare`."""
    report: bool = True
    """Write report.html and PRIVACY.md at the end."""
    seed: int | None = None
    """For tests only: the claim then does not cover it."""
    out: str | None = None
    """The run directory, new or empty; otherwise one in `runs`."""
    json: bool = False
    """End with one JSON object on the last line."""

    def run(self) -> int:
        """Train, evaluate, claim."""
        config = None if self.config is None else read(self.config)
        flags = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in _OWN and getattr(self, field.name) != field.default
        }
        given: dict[str, Any] = {} if config is None else dict(config.fields)
        for name, other in (("epsilon", "noise_multiplier"), ("noise_multiplier", "epsilon")):
            if name in flags:
                given.pop(other, None)  # a flag for one takes the place of the other in a file
        given.update(flags)
        parameters: dict[str, Any] = {} if config is None else dict(config.parameters)
        parameters.update(_parsed(self.parameter))
        settings = settle(self.recipe, given, parameters, budget_stop=self.budget_stop)
        view = watching(quiet=self.json)
        return guarded("train", lambda: finish(carry_out(settings, self.out, view), as_json=self.json))


def _parsed(parameters: tuple[str, ...]) -> dict[str, float]:
    result = {}
    for text in parameters:
        name, equals, value = text.partition("=")
        try:
            result[name] = float(value)
        except ValueError:
            equals = ""
        if not equals or not name:
            raise ValueError(f"parameter {text!r}: need name=number, as in threshold=2.0")
    return result

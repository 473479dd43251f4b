"""Computes what a run will cost, and the noise or number of steps at which it fits a target ε.

    event = Gaussian(normalise) ∘ Gaussian(pca) ∘ Poisson(rate, Gaussian(σ))^steps         of a recipe's plain DP-SGD

Other methods and samplers bring the event of a dry run of their own query, which may depend on the number of records and on
the model: they are asked for with the prepared data. Calibration wants the event at some twenty noise multipliers, and a
dry run of many steps takes a while. So the event is taken at two, the numbers in it that grew in proportion are the
noise, and the search runs on that form; its answer is then checked by an event at the multiplier found.

**Privacy:** everything that touches the data is in the one event: what is released before the first step reads every
record once, without amplification. The multiplier returned was itself accounted for by a real event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sordino.app.runs.before import preparation_events
from sordino.app.runs.method_words import is_plain_dpsgd
from sordino.app.runs.prepared import Prepared
from sordino.app.runs.problem import build
from sordino.app.runs.recipe import PLAIN, Recipe
from sordino.app.runs.run_parts import RunParts
from sordino.events import Event, Gaussian, compose
from sordino.events.training import training_event
from sordino.queries.target_epsilon import calibrate_noise
from sordino.registry import PARTS


def event(
    recipe: Recipe,
    multiplier: float,
    prepared: Prepared | None = None,
    *,
    parameters: Mapping[str, float] | None = None,
) -> Event:
    """Returns the event of everything that a run releases, at this noise multiplier of its steps.

    Plain DP-SGD needs the recipe alone. What another method's steps cost may depend on the data's size and on the model:
    give it the data as `prepare` makes it. `parameters` are those of its words.

    Args:
        recipe: a run before it is run.
        multiplier: noise of its steps.
        prepared: its data, where the method needs it.
        parameters: of its words.

    Returns:
        The event.

    Privacy:
        Nothing is released: a dry run.

    Examples:
        >>> from sordino.app.runs import find
        >>> type(event(find("mnist"), 2.0)).__name__
        'Together'

    """
    return _event_by_noise(recipe, prepared, parameters)(multiplier)


def noise_multiplier(
    recipe: Recipe,
    prepared: Prepared | None = None,
    *,
    parameters: Mapping[str, float] | None = None,
) -> float:
    """Returns the recipe's own multiplier, or the smallest at which the whole run is (ε, δ)-DP by PLD.

    >>> from sordino.app.runs import find, noise_multiplier
    >>> noise_multiplier(find("mnist", epsilon=1.0)) > noise_multiplier(find("mnist", epsilon=3.0))
    True
    """
    if recipe.noise_multiplier is not None:
        return recipe.noise_multiplier
    assert recipe.epsilon is not None  # a recipe has one of the two
    return calibrate_noise(_event_by_noise(recipe, prepared, parameters), recipe.epsilon, recipe.delta)


def _event_by_noise(
    recipe: Recipe, prepared: Prepared | None, parameters: Mapping[str, float] | None
) -> Callable[[float], Event]:
    """Returns the event of a run as a function of its noise multiplier."""
    # With the data at hand, the event comes from a dry run of the method's own query and sampler.
    if prepared is not None:
        records = prepared.drawn
        return RunParts(recipe, build(recipe, prepared, seed=0), records, parameters or {}).event
    # Without data only plain DP-SGD has a known event; everything else is refused rather than guessed.
    unknown_without_data = [f"parameters={dict(parameters)!r}"] if parameters else []
    if not is_plain_dpsgd(recipe):
        given_words = {name: getattr(recipe, name) for name in ("method", *PARTS)}
        unknown_without_data += [f"{name}={word!r}" for name, word in given_words.items() if word not in (None, PLAIN)]
    if unknown_without_data:
        raise ValueError(
            f"{', '.join(unknown_without_data)}: what its steps cost depends on the number of records "
            "and on the model; give the data, as in noise_multiplier(recipe, prepare(recipe, data))"
        )
    return lambda sigma: compose(
        [*preparation_events(recipe), training_event(recipe.rate, Gaussian(sigma), recipe.steps)]
    )

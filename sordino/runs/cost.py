"""What a run will cost, and the noise or the number of steps at which it fits.

    event = Gaussian(normalise) ∘ Gaussian(pca) ∘ Poisson(rate, Gaussian(σ))^steps         of a recipe's plain DP-SGD

Other methods and samplers bring the event of a dry run of their own query, which may depend on the number of records and on
the model: they are asked for with the prepared data. Calibration wants the event at some twenty noise multipliers, and a
dry run of many steps takes a while. So the event is taken at two, the numbers in it that grew in proportion are the
noise, and the search runs on that form; its answer is then checked by an event at the multiplier found.

**Privacy:** everything that touches the data is in the one event: what is released before the first step reads every
record once, without amplification. The multiplier returned was itself accounted for by a real event.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from sordino.accounting import PLD, BudgetExhausted, Unsupported, calibrate
from sordino.declared import PARTS
from sordino.door import claims
from sordino.door.claims import NoGuarantee
from sordino.events import Event, Gaussian, compose, from_json, to_json
from sordino.events.training import training_event
from sordino.runs.before import before
from sordino.runs.prepared import Prepared
from sordino.runs.problem import build
from sordino.runs.recipe import PLAIN, Recipe
from sordino.runs.run_parts import RunParts
from sordino.runs.words import is_plain

_ONE, _TWO = 1.0, 2.0


def event(
    recipe: Recipe,
    multiplier: float,
    prepared: Prepared | None = None,
    *,
    parameters: Mapping[str, float] | None = None,
) -> Event:
    """Everything that a run releases, at this noise multiplier of the steps.

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
        >>> from sordino.runs import find
        >>> type(event(find("mnist"), 2.0)).__name__
        'Together'

    """
    return _event_of(recipe, prepared, parameters)(multiplier)


def noise_multiplier(
    recipe: Recipe,
    prepared: Prepared | None = None,
    *,
    parameters: Mapping[str, float] | None = None,
) -> float:
    """The recipe's own, or the smallest at which the whole run, by its own method, is (ε, δ)-DP by PLD.

    >>> from sordino.runs import find, noise_multiplier
    >>> noise_multiplier(find("mnist", epsilon=1.0)) > noise_multiplier(find("mnist", epsilon=3.0))
    True
    """
    if recipe.noise_multiplier is not None:
        return recipe.noise_multiplier
    assert recipe.epsilon is not None  # a recipe has one of the two
    return noise_for(_event_of(recipe, prepared, parameters), recipe.epsilon, recipe.delta)


def _event_of(
    recipe: Recipe, prepared: Prepared | None, parameters: Mapping[str, float] | None
) -> Callable[[float], Event]:
    """The event of a run as a function of its noise multiplier."""
    if prepared is not None:
        records = prepared.drawn
        return RunParts(recipe, build(recipe, prepared, seed=0), records, parameters or {}).event
    asked = [f"parameters={dict(parameters)!r}"] if parameters else []
    if not is_plain(recipe):
        said = {name: getattr(recipe, name) for name in ("method", *PARTS)}
        asked += [f"{name}={word!r}" for name, word in said.items() if word not in (None, PLAIN)]
    if asked:
        raise ValueError(
            f"{', '.join(asked)}: what its steps cost depends on the number of records and on the model; give the data, "
            "as in noise_multiplier(recipe, prepare(recipe, data))"
        )
    return lambda sigma: compose([*before(recipe), training_event(recipe.rate, Gaussian(sigma), recipe.steps)])


def noise_for(event_of: Callable[[float], Event], epsilon: float, delta: float) -> float:
    """The smallest noise multiplier at which the run is (ε, δ)-DP.

    >>> from sordino.events import Gaussian, Poisson, Repeat
    >>> sigma = noise_for(lambda s: Repeat(Poisson(0.01, Gaussian(s)), 1000), 1.0, 1e-5)
    >>> PLD().epsilon(Repeat(Poisson(0.01, Gaussian(sigma)), 1000), 1e-5) <= 1.0
    True
    """
    first = event_of(_ONE)
    form = scaled(to_json(first), to_json(event_of(_TWO)))
    floor = _floor(event_of if form is None else lambda s: from_json(form(s)), delta)
    if floor >= epsilon:
        raise ValueError(
            f"epsilon={epsilon:g}: what is released besides the steps costs ε = {floor:.3g} by itself; "
            "give it more noise (ranges, normalise, pca), leave it out, or allow more"
        )
    said = claims.claim(first, delta, PLD())
    if isinstance(said, NoGuarantee):
        raise ValueError(f"epsilon={epsilon:g}: no noise meets it, {said.reason}; give noise_multiplier instead")
    if form is not None:
        sigma = calibrate(lambda s: from_json(form(s)), PLD(), epsilon, delta)
        if PLD().epsilon(event_of(sigma), delta) <= epsilon:
            return sigma
    return calibrate(event_of, PLD(), epsilon, delta)


def steps_for(event_of: Callable[[int], Event], steps: int, budget: float, delta: float) -> int:
    """The most steps, up to `steps`, that keep the run within (budget, δ); BudgetExhausted when not even one does."""

    def fits(count: int) -> bool:
        said = claims.claim(event_of(count), delta, PLD())
        if isinstance(said, NoGuarantee):
            raise ValueError(f"budget={budget:g}: no number of steps keeps to it, {said.reason}")
        return said.epsilon <= budget

    if fits(steps):
        return steps
    if not fits(1):
        raise BudgetExhausted(f"budget={budget:g}: the first step would exceed it; use more noise, or a larger budget")
    low, high = 1, steps
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _floor(event_of: Callable[[float], Event], delta: float) -> float:
    """ε when the noise of the steps hides everything: what is left is not the steps'."""
    try:
        found = PLD().epsilon(event_of(1e9), delta)
    except Unsupported:
        return 0.0  # the claim says why, here and where no ε is finite
    return found if math.isfinite(found) else 0.0


def scaled(one: Any, two: Any) -> Callable[[float], Any] | None:
    """The JSON of an event as a function of the multiplier, from those at 1 and at 2; None where it is not so simple."""
    if one == two:
        return lambda s: one
    numbers = isinstance(one, int | float) and isinstance(two, int | float)
    if numbers and not isinstance(one, bool) and two == _TWO * one:
        return lambda s: s * one
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        inner = {key: scaled(value, two[key]) for key, value in one.items()}
        if all(f is not None for f in inner.values()):
            return lambda s: {key: f(s) for key, f in inner.items() if f is not None}
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        parts = [scaled(a, b) for a, b in zip(one, two, strict=True)]
        if all(f is not None for f in parts):
            return lambda s: [f(s) for f in parts if f is not None]
    return None

"""What a recipe's whole run costs, and the noise that makes it fit.

    event = Gaussian(normalise) ∘ Poisson(rate, Gaussian(σ))^steps

**Privacy:** the private normalisation reads every record once, without amplification; it is in the same event as the
steps, so one accountant speaks about both. A method that releases more per step than one noisy sum has another event:
use `dry_run` with its query.
"""

from __future__ import annotations

from sordino.accounting import PLD, calibrate
from sordino.events import Event, Gaussian, Poisson, Repeat, compose
from sordino.recipes.recipe import Recipe


def event(recipe: Recipe, multiplier: float) -> Event:
    """Everything that a run releases, at this noise multiplier of the steps."""
    steps: Event = Repeat(Poisson(recipe.rate, Gaussian(multiplier)), recipe.steps)
    return steps if recipe.normalise is None else compose([Gaussian(recipe.normalise), steps])


def noise_multiplier(recipe: Recipe) -> float:
    """The recipe's own, or the smallest at which the whole run is (ε, δ)-DP by PLD.

    >>> from sordino.recipes import find, noise_multiplier
    >>> noise_multiplier(find("mnist", epsilon=1.0)) > noise_multiplier(find("mnist", epsilon=3.0))
    True
    """
    if recipe.noise_multiplier is not None:
        return recipe.noise_multiplier
    assert recipe.epsilon is not None  # a recipe has one of the two
    if recipe.normalise is not None:
        alone = PLD().epsilon(Gaussian(recipe.normalise), recipe.delta)
        if alone >= recipe.epsilon:
            raise ValueError(
                f"normalise={recipe.normalise}: costs ε = {alone:.3g} by itself, and the run has {recipe.epsilon}; "
                "give it more noise, or leave it out"
            )
    return calibrate(lambda sigma: event(recipe, sigma), PLD(), recipe.epsilon, recipe.delta)

"""The events of what a run releases before its first step."""

from __future__ import annotations

from sordino.app.runs.recipe import Recipe
from sordino.events import Event, Gaussian


def preparation_events(recipe: Recipe) -> list[Event]:
    """Returns the events of private bounds, normalisation and PCA, each over all records, as far as the recipe asks
    for them.
    """
    return [Gaussian(noise) for noise in (recipe.ranges, recipe.normalise, recipe.pca) if noise is not None]

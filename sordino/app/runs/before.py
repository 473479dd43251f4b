"""What a run releases before its first step."""

from __future__ import annotations

from sordino.app.runs.recipe import Recipe
from sordino.events import Event, Gaussian


def before(recipe: Recipe) -> list[Event]:
    """The private bounds, normalisation and PCA, each of all records, if there are any."""
    return [Gaussian(noise) for noise in (recipe.ranges, recipe.normalise, recipe.pca) if noise is not None]

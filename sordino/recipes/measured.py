"""What came of the recipes on their test sets: the figures of bench/results/accuracy.json, and no others.

A row holds the mean accuracy, its standard deviation over the seeds (None for one), the number of seeds, CPU seconds a run.
"""

from __future__ import annotations

from dataclasses import replace

from sordino.recipes.recipe import Recipe

FIGURES: dict[str, tuple[float, float | None, int, float]] = {
    "cifar10 ε=3": (0.67607, 0.00097, 3, 59),
    "cifar10-imagenet ε=1": (0.8685, 0.00089, 3, 11),
    "cifar10-imagenet ε=2": (0.87663, 0.00047, 3, 10),
    "cifar10-imagenet ε=3": (0.88057, 0.0011, 3, 9),
    "fashion-mnist ε=1": (0.88067, 0.00158, 3, 67),
    "fashion-mnist ε=2": (0.88997, 0.0004, 3, 56),
    "fashion-mnist ε=3": (0.89487, 0.00106, 3, 71),
    "mnist ε=1": (0.98333, 0.00025, 3, 64),
    "mnist ε=2": (0.9857, 0.00046, 3, 67),
    "mnist ε=3": (0.98683, 0.00045, 3, 91),
}


def key(recipe: Recipe) -> str:
    """A row's name: the recipe's and its target."""
    target = f"σ={recipe.noise_multiplier:g}" if recipe.epsilon is None else f"ε={recipe.epsilon:g}"
    return f"{recipe.name} {target}"


def measured(recipe: Recipe) -> Recipe:
    """The recipe with its figures, if it has any."""
    if key(recipe) not in FIGURES:
        return recipe
    accuracy, spread, seeds, seconds = FIGURES[key(recipe)]
    return replace(recipe, accuracy=accuracy, spread=spread, seeds=seeds, seconds=seconds)

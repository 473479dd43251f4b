"""The measured test accuracies of the recipes, as in bench/results/accuracy.json.

A row holds the mean accuracy, its standard deviation over the seeds (None for one), the number of seeds, CPU seconds a run.
"""

from __future__ import annotations

from dataclasses import replace

from sordino.app.runs.recipe import Recipe

FIGURES: dict[str, tuple[float, float | None, int, float]] = {
    "adult ε=1": (0.85329, 0.00044, 3, 8),
    "adult ε=3": (0.85378, 0.00045, 3, 8),
    "cifar10 ε=3": (0.67607, 0.00097, 3, 59),
    "cifar10-imagenet ε=1": (0.8685, 0.00089, 3, 11),
    "cifar10-imagenet ε=2": (0.87663, 0.00047, 3, 10),
    "cifar10-imagenet ε=3": (0.88057, 0.0011, 3, 9),
    "fashion-mnist ε=1": (0.88173, 0.00091, 3, 55),
    "fashion-mnist ε=2": (0.89103, 0.00163, 3, 52),
    "fashion-mnist ε=3": (0.89617, 0.00102, 3, 70),
    "mnist ε=1": (0.98233, 0.00015, 3, 44),
    "mnist ε=2": (0.9854, 0.00046, 3, 46),
    "mnist ε=3": (0.9864, 0.00026, 3, 44),
    "mnist-opacus-1 σ=0.7": (0.9717, 0.00157, 3, 280),
    "mnist-opacus-2 σ=1.1": (0.96897, 0.00106, 3, 362),
    "mnist-opacus-3 σ=1.3": (0.9502, 0.00451, 3, 116),
}


def row_name(recipe: Recipe) -> str:
    """Returns the name of a row: the recipe's name and its target."""
    target = f"σ={recipe.noise_multiplier:g}" if recipe.epsilon is None else f"ε={recipe.epsilon:g}"
    return f"{recipe.name} {target}"


def with_measured_figures(recipe: Recipe) -> Recipe:
    """Returns the recipe with its measured figures, if there are any."""
    if row_name(recipe) not in FIGURES:
        return recipe
    accuracy, spread, seeds, seconds = FIGURES[row_name(recipe)]
    return replace(recipe, accuracy=accuracy, spread=spread, seeds=seeds, seconds=seconds)

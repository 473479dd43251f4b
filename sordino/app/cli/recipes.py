"""`sordino recipes`: lists what can be trained, with measured accuracy, ε and time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import ClassVar

from sordino.app.cli.help_page import HelpPage
from sordino.app.runs import RECIPES, Recipe


@dataclass(frozen=True)
class Command:
    """List recipes with their measured accuracy, ε and time, or the methods, or the words of methods."""

    help_page: ClassVar[HelpPage] = HelpPage(
        examples=(
            ("What can be trained, with measured accuracy:", "sordino recipes"),
            ("The variants that --method takes:", "sordino recipes --methods"),
        ),
    )
    methods: bool = False
    """List the private gradients that --method takes instead."""
    words: bool = False
    """List the words of which a method is made instead: samplers, clipping rules, queries, noises and backends."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Carries out `sordino recipes`: prints the table of recipes, methods or words; returns the exit code."""
        if self.methods:
            return self._print_methods()
        if self.words:
            return self._print_words()
        if self.json:
            print(json.dumps([recipe.flat_fields() for recipe in RECIPES]))
            return 0
        # Papers' recipes are measured by the lab, if it is installed.
        measured = _measured_elsewhere()
        rows = [("recipe", "ε", "test accuracy", "time", "how"), *(_row_of(one, measured) for one in RECIPES)]
        _print_aligned(rows)
        print("\nε at δ = 1e-05, everything that touches the data counted; CPU time, features cached. Train one with")
        print("`sordino train NAME --epsilon E`.")
        if measured:
            print("\nRecipes of papers, beside the numbers that the papers print:")
            _print_aligned(sorted(measured.items()))
        return 0

    def _print_methods(self) -> int:
        """Prints, for `sordino recipes`, the methods with a line about each."""
        from sordino.app.runs.methods import METHODS

        if self.json:
            print(json.dumps({name: method.about for name, method in METHODS.items()}))
        else:
            _print_aligned([(name, method.about) for name, method in METHODS.items()])
        return 0

    def _print_words(self) -> int:
        """Prints, for `sordino recipes`, the words of each part of a method with a line about each."""
        from sordino.app.runs.methods import WORDS

        # A script gets the words by part, where the printed list has them as they are typed.
        if self.json:
            print(json.dumps({part: {name: one.about for name, one in found.items()} for part, found in WORDS.items()}))
            return 0
        rows: list[tuple[str, ...]] = [
            (f"--{part} {name}", one.about) for part, found in WORDS.items() for name, one in found.items()
        ]
        _print_aligned(rows)
        print(
            "\nThe first of each is DP-SGD's; they can be combined, as in --sampler sorted-top-k --clipping batch-median."
        )
        return 0


def _measured_elsewhere() -> dict[str, str]:
    """Returns, for the table of `sordino recipes`, what packages that add commands have measured of recipes, by recipe;
    the lab is one.

    Such a package says it by a function `describe_recipes` beside its command.
    """
    # Commands of other packages are found by entry points, so the application never imports them by name.
    measured: dict[str, str] = {}
    for point in entry_points(group="sordino.commands"):
        describe = getattr(import_module(point.value), "describe_recipes", None)
        if describe is not None:
            measured.update(describe())
    return measured


def _row_of(recipe: Recipe, measured: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the row of a recipe in the table that `sordino recipes` prints."""
    privacy = f"{recipe.epsilon:g}" if recipe.epsilon is not None else f"σ {recipe.noise_multiplier:g}"
    # Nothing stands in for a figure that was not measured.
    accuracy = "by the lab, below" if recipe.name in measured else "not measured"
    if recipe.accuracy is not None:
        accuracy = f"{recipe.accuracy:.2%}" + ("" if recipe.spread is None else f" ± {recipe.spread:.2%}")
        accuracy += "" if recipe.seeds is None else f" ({recipe.seeds} seeds)"
    seconds = "" if recipe.seconds is None else f"{recipe.seconds:.0f} s"
    network = recipe.model if recipe.features == "none" else f"{recipe.features}, {recipe.model}"
    return recipe.name, privacy, accuracy, seconds, f"{network}; {recipe.steps} steps at rate {recipe.rate:.4g}"


def _print_aligned(rows: list[tuple[str, ...]]) -> None:
    """Prints the rows of `sordino recipes` in aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())

"""Recipes on generated data: for a first look, for tests, and for machines without a network."""

from __future__ import annotations

from sordino.app.runs.recipe import Recipe

_UNTUNED = "not tuned; the data is generated and nobody's"

GENERATED: tuple[Recipe, ...] = (
    Recipe(
        name="spiral",
        dataset="spiral",
        features="none",
        model="mlp",
        rate=0.05,
        steps=300,
        bound=1.0,
        epsilon=3.0,
        delta=1e-5,
        optimizer="adam",
        learning_rate=0.02,
        tuned=_UNTUNED,
    ),
    Recipe(
        name="digits",
        dataset="digits",
        features="none",
        normalise=20.0,
        model="linear",
        rate=0.05,
        steps=200,
        bound=1.0,
        epsilon=3.0,
        delta=1e-5,
        learning_rate=0.5,
        momentum=0.9,
        ema=0.95,
        tuned=_UNTUNED,
    ),
)

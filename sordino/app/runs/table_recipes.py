"""Recipes on tables and texts: Adult, COMPAS, German credit, and sentence vectors."""

from __future__ import annotations

from sordino.app.runs.recipe import Recipe

_ADULT = (
    "rate, steps, learning rate and average on the last 10,000 training records, held out, at ε = 1 (bench/held_out.py), "
    "and not tuned for other ε; the tuning is not in the claim"
)
_TEXT = (
    "rate, steps and learning rate on a fifth of the training texts, held out, with 128 tokens of each "
    "(bench/minilm.py), where the average was not tried; the tuning is not in the claim"
)
_RISK = "not tuned: rate, steps and learning rate are of the kind that Adult has; the tuning is not in the claim"
_FRIENDS = "not tuned: learning rate and steps are those of the first trial; the tuning is not in the claim"


def _adult_recipe(epsilon: float) -> Recipe:
    """Returns a recipe for logistic regression on Adult."""
    return Recipe(
        name="adult",
        dataset="adult",
        features="none",
        model="linear",
        rate=1 / 32,
        steps=1280,
        bound=1.0,
        epsilon=epsilon,
        delta=1e-5,
        optimizer="adam",
        learning_rate=0.02,
        schedule="linear",
        ema=0.99,
        tuned=_ADULT,
    )


def _risk_recipe(name: str, epsilon: float, learning_rate: float) -> Recipe:
    """Returns a recipe for logistic regression on COMPAS or German."""
    return Recipe(
        name=name,
        dataset=name,
        features="none",
        model="linear",
        rate=1 / 8,
        steps=320,
        bound=1.0,
        epsilon=epsilon,
        delta=1e-5,
        optimizer="adam",
        learning_rate=learning_rate,
        schedule="linear",
        ema=0.9,
        tuned=_RISK,
    )


def _text_recipe(name: str, epsilon: float, rate: float, steps: int, learning_rate: float) -> Recipe:
    """Returns a recipe for softmax regression on the sentence vectors of a frozen encoder."""
    return Recipe(
        name=name,
        dataset=name,
        features="minilm",
        model="linear",
        rate=rate,
        steps=steps,
        bound=1.0,
        epsilon=epsilon,
        delta=1e-5,
        optimizer="adam",
        learning_rate=learning_rate,
        schedule="linear",
        ema=0.9,
        tuned=_TEXT,
    )


def _friends_recipe(epsilon: float, learning_rate: float) -> Recipe:
    """Returns a recipe for the lines of Friends, in which the privacy unit is the speaker."""
    return Recipe(
        name="friends",
        dataset="friends",
        features="minilm",
        model="linear",
        unit="speaker",
        unit_records=16,
        rate=0.25,
        steps=200,
        bound=1.0,
        epsilon=epsilon,
        delta=1e-4,
        optimizer="adam",
        learning_rate=learning_rate,
        schedule="linear",
        ema=0.9,
        tuned=_FRIENDS,
    )


TABLES: tuple[Recipe, ...] = (
    *(_adult_recipe(epsilon) for epsilon in (1.0, 3.0)),
    *(_risk_recipe("compas", epsilon, 0.02) for epsilon in (1.0, 3.0)),
    *(_risk_recipe("german", epsilon, 0.02) for epsilon in (1.0, 3.0)),
    *(_text_recipe("r8", epsilon, 0.1, 200, 0.01) for epsilon in (1.0, 3.0, 8.0)),
    _text_recipe("20news", 1.0, 0.1, 200, 0.005),
    *(_text_recipe("20news", epsilon, 0.2, 300, 0.005) for epsilon in (3.0, 8.0)),
    *(_friends_recipe(epsilon, 0.005) for epsilon in (3.0, 8.0)),
)

"""The sources' own settings as recipes, where `sordino recipes` does not have them."""

from __future__ import annotations

from collections.abc import Mapping

from sordino.runs import find
from sordino.runs.recipe import Recipe

DELTA = 1e-5
_SOURCE = "the source's own setting, not tuned here"

BASES: Mapping[str, Recipe] = {
    one.name: one
    for one in (
        Recipe(
            name="thesis-mnist",
            dataset="mnist",
            features="none",
            pixel_mean=0.1307,
            pixel_deviation=0.3081,
            model="mnist-net",
            rate=250 / 60_000,
            steps=30 * 240,
            bound=1.0,
            noise_multiplier=1.1,
            delta=DELTA,
            learning_rate=0.1,
            schedule="cosine",
            schedule_per="epoch",
            tuned=_SOURCE,
        ),
        Recipe(
            name="thesis-cifar",
            dataset="cifar10",
            features="none",
            pixel_mean=0.5,
            pixel_deviation=0.5,
            model="cifar-net",
            rate=200 / 50_000,
            steps=30 * 250,
            bound=1.0,
            noise_multiplier=1.1,
            delta=DELTA,
            learning_rate=0.1,
            schedule="cosine",
            schedule_per="epoch",
            tuned=_SOURCE,
        ),
        Recipe(
            name="wd-mnist",
            dataset="mnist",
            features="none",
            pixel_mean=0.1307,
            pixel_deviation=0.3081,
            model="mnist-cnn",
            rate=64 / 60_000,
            steps=9375,
            bound=3.0,
            noise_multiplier=1.3,
            delta=DELTA,
            learning_rate=0.1,
            tuned=_SOURCE,
        ),
        Recipe(
            name="wd-cifar",
            dataset="cifar10",
            features="none",
            pixel_mean=(0.4914, 0.4822, 0.4465),
            pixel_deviation=(0.2023, 0.1994, 0.2010),
            model="cifar-net",
            rate=2000 / 50_000,
            steps=90 * 25,
            bound=10.0,
            noise_multiplier=1.5,
            delta=DELTA,
            learning_rate=0.1,
            momentum=0.9,
            schedule="cosine",
            schedule_per="epoch",
            tuned=_SOURCE,
        ),
        Recipe(
            name="abadi-mnist",
            dataset="mnist",
            features="none",
            pixel_mean=0.0,
            pixel_deviation=1.0,
            pca=7.0,
            components=60,
            model="hidden-1000",
            rate=0.01,
            steps=10_000,
            bound=4.0,
            noise_multiplier=4.0,
            delta=DELTA,
            learning_rate=0.1,
            schedule="linear",
            schedule_steps=1000,
            final_rate=0.052,
            tuned=_SOURCE,
        ),
        Recipe(
            name="fashion-logistic",
            dataset="fashion-mnist",
            features="none",
            pixel_mean=0.0,
            pixel_deviation=1.0,
            model="linear",
            rate=256 / 60_000,
            steps=20 * 234,
            bound=0.5,
            noise_multiplier=0.7,
            delta=DELTA,
            learning_rate=0.5,
            tuned=_SOURCE,
        ),
    )
}


def base(name: str) -> Recipe:
    """A recipe of this name: of `sordino recipes`, or of the sources."""
    try:
        return find(name)
    except ValueError:
        if name not in BASES:
            raise
        return BASES[name]

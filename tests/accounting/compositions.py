"""Compositions of unlike phases, drawn at random, and what other means say about them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sordino.events import (
    BallsInBins,
    DiscreteGaussian,
    Event,
    Exponential,
    FixedSize,
    Gaussian,
    Group,
    Laplace,
    Mixture,
    Poisson,
    RandomisedResponse,
    Repeat,
    Shuffle,
    Together,
    TruncatedPoisson,
)


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(10 ** rng.uniform(math.log10(low), math.log10(high)))


def plain(rng: np.random.Generator) -> Event:
    """A release without sampling."""
    return {
        0: lambda: Gaussian(log_uniform(rng, 0.5, 100)),
        1: lambda: Laplace(log_uniform(rng, 1.0, 100)),
        2: lambda: DiscreteGaussian(log_uniform(rng, 1.0, 20)),
        3: lambda: Exponential(log_uniform(rng, 0.02, 1.0)),
        4: lambda: RandomisedResponse(float(rng.uniform(0.2, 0.9)), int(rng.integers(2, 10))),
        5: lambda: Mixture((0.3, 0.7), (Gaussian(log_uniform(rng, 1, 20)), Gaussian(log_uniform(rng, 1, 20)))),
        6: lambda: Group(Gaussian(log_uniform(rng, 5, 50)), int(rng.integers(2, 5))),
    }[int(rng.integers(7))]()


def gaussian_poisson(rng: np.random.Generator, least: float = 0.1) -> Event:
    """Repeated Poisson-sampled Gaussians, from hardly any noise on."""
    count = int(log_uniform(rng, 1, 2000))
    return Repeat(Poisson(log_uniform(rng, 1e-4, 0.3), Gaussian(log_uniform(rng, least, 10))), count)


def add_or_remove(rng: np.random.Generator) -> Event:
    """A phase that speaks about one record there or not."""
    kind = int(rng.integers(8))
    if kind <= 3:
        return gaussian_poisson(rng)
    rate, count = log_uniform(rng, 1e-3, 0.2), int(log_uniform(rng, 1, 100))
    return {
        4: lambda: Repeat(Poisson(rate, Laplace(log_uniform(rng, 0.3, 10))), count),
        5: lambda: Repeat(BallsInBins(int(rng.integers(5, 300)), Gaussian(log_uniform(rng, 0.7, 4))), 1 + count // 10),
        6: lambda: Repeat(
            Poisson(
                rate, Mixture((0.5, 0.5), (Gaussian(log_uniform(rng, 0.5, 5)), Gaussian(log_uniform(rng, 0.5, 5))))
            ),
            count,
        ),
        7: lambda: Group(Repeat(Poisson(rate, Gaussian(log_uniform(rng, 0.7, 5))), count), int(rng.integers(2, 4))),
    }[kind]()


def truncated(rng: np.random.Generator) -> Event:
    """Poisson sampling with a largest batch."""
    return Repeat(
        TruncatedPoisson(0.01, 140, 10_000, Gaussian(log_uniform(rng, 0.6, 4))), int(log_uniform(rng, 1, 200))
    )


def replace_one(rng: np.random.Generator) -> Event:
    """A phase of fixed-size batches."""
    size = int(log_uniform(rng, 10, 1000))
    return Repeat(FixedSize(size, 60_000, Gaussian(log_uniform(rng, 0.3, 10))), int(log_uniform(rng, 1, 500)))


def shuffled(rng: np.random.Generator) -> Event:
    """A shuffled pass."""
    return Repeat(Shuffle(Gaussian(log_uniform(rng, 0.5, 20))), int(log_uniform(rng, 1, 30)))


def composition(rng: np.random.Generator, phases: int) -> list[Event]:
    """Unlike phases that speak about the same neighbours."""
    family: Any = rng.choice(4, p=[0.6, 0.2, 0.1, 0.1])
    sampled = {0: add_or_remove, 1: replace_one, 2: shuffled, 3: truncated}[int(family)]
    return [sampled(rng) if k == 0 or rng.random() < 0.6 else plain(rng) for k in range(phases)]


def pair_of_phases(rng: np.random.Generator) -> list[Event]:
    """The kind of pair that went wrong once: a wide plain phase beside few releases of little noise."""
    return [Gaussian(log_uniform(rng, 1, 50)), gaussian_poisson(rng) if rng.random() < 0.8 else replace_one(rng)]


def together(parts: list[Event]) -> Event:
    return Together(*parts)

"""How long a training takes on one core of 2026, roughly: for the queue's order, and for how many seeds a row gets.

A training costs what its records cost, step by step. Lots by rank cost the lengths of all records that an epoch has left,
half of them on average. The numbers are CPU seconds measured on an AMD EPYC with AVX-512, one thread.
"""

from __future__ import annotations

from collections.abc import Mapping

from sordino.app.runs.settings import Settings
from sordino_lab.curve_plan import SIZES

_PER_RECORD: Mapping[str, float] = {
    "linear": 3e-6,
    "hidden-1000": 8e-6,
    "mnist-net": 8e-6,
    "mlp": 8e-6,
    "mnist-cnn": 6.5e-5,
    "cifar-net": 8e-4,
    "resnet18": 7e-3,
}
"""CPU seconds for each record of a lot, by model."""
_OTHERWISE = 1e-4
_PER_STEP = 1.6e-3
"""CPU seconds of a step whatever its lot: noise, optimizer, runtime checks."""
_BEGIN = 8.0
"""CPU seconds before the first step, and for the evaluations."""
SEVERAL_SEEDS = 600.0
"""A row that takes less than this, in CPU seconds, is trained with all its seeds at the source's size; others with one."""


def expected_seconds(settings: Settings) -> float:
    """Returns the CPU seconds that a training will roughly take."""
    recipe = settings.recipe
    records = settings.options.records or SIZES.get(recipe.dataset, 10_000)
    each = _PER_RECORD.get(recipe.model, _OTHERWISE)
    passes = 2.0 if recipe.query in ("projected", "noisy-lookahead", "optimistic-lookahead") else 1.0
    lot = recipe.rate * records * each * passes
    ranked = 0.5 * records * each if (recipe.sampler or "").startswith("sorted") else 0.0
    return _BEGIN + recipe.steps * (_PER_STEP + lot + ranked)

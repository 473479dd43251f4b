"""Double precision: whether a difference is nothing but rounding, asked again in float64.

The question is the one that was asked before, on a copy of the model in float64.

What a trained classifier is sure of has a gradient p − y that is little but rounding, and another padding rounds it
otherwise. A coupling is as large in float64; rounding is not.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from sordino.per_sample.batch_structure import map_tensors
from sordino.per_sample.protocol import PerSample
from sordino.runtime_checks.compare_passes import NOTHING, distance_between, norm_of

_WIDE = 1e-6
"""Relative difference allowed in float64."""

Drawing = Callable[[], AbstractContextManager[None]]
"""Begins a pass, with the random numbers of the test."""
Load = Callable[[], Any]
"""Loads a batch from the state in which the test found the user's objects."""


class DoublePrecision:
    """Asks again in float64. Each question returns None where the user's code cannot be copied or computed in float64."""

    def __init__(self, model: nn.Module, gradients: Callable[[nn.Module, Any], PerSample]) -> None:
        self._model, self._gradients = model, gradients

    def rounding_explains(self, load: Load, load_other: Load, watched: Tensor, drawing: Drawing) -> bool | None:
        """Returns whether a difference is rounding: the watched rows of both batches have the same gradients in double
        precision (float64).
        """

        def ask(twin: nn.Module) -> bool:
            """Compares in double precision the sum of the watched rows' directions in both batches."""
            # The batch is loaded anew for every pass, because the user's code may write to it.
            batch = load()
            # Both passes draw the same random numbers, or they would differ by those.
            with drawing():
                one = self._gradients(twin, _to_float64(batch))
                lengths = one.norms().total()
                rows = watched.to(lengths.device)
                # Each row counts by its direction: a long gradient must not hide what happens to short ones.
                usual = float(lengths[rows].median())
                weights = torch.where(rows & lengths.isfinite(), 1 / (lengths + 1e-3 * usual + NOTHING), 0.0).unsqueeze(
                    1
                )
                total = {name: tensor.clone() for name, tensor in one.weighted_sum(weights).items()}
            other = load_other()
            with drawing():
                another = self._gradients(twin, _to_float64(other)).weighted_sum(weights)
            # The distance is compared with what float64 could round, far below what float32 does.
            return distance_between(total, another) <= _WIDE * max(1.0, float(watched.sum()))

        return self._ask_twin(ask)

    def rounding_explains_alone(self, load: Load, place: int, load_single: Load, drawing: Drawing) -> bool | None:
        """Returns whether a difference is rounding: a record by itself has the same gradient as in its batch in double
        precision (float64).
        """

        def ask(twin: nn.Module) -> bool:
            """Compares in double precision a record's gradient in its batch with that of the record by itself."""
            batch = load()
            with drawing():
                part = self._gradients(twin, _to_float64(batch))
                # The record alone is chosen by a weight of 1 and all others by 0.
                chosen = torch.zeros(len(part.losses), 1, dtype=torch.float64, device=part.losses.device)
                chosen[place] = 1
                within = {name: tensor.clone() for name, tensor in part.weighted_sum(chosen).items()}
            single = load_single()
            with drawing():
                one = torch.ones(1, 1, dtype=torch.float64, device=part.losses.device)
                apart = self._gradients(twin, _to_float64(single)).weighted_sum(one)
            return distance_between(within, apart) <= _WIDE * (norm_of(within) + norm_of(apart)) + NOTHING

        return self._ask_twin(ask)

    def rounding_explains_rows(self, batch: Any, rows: Tensor, other: Any, other_rows: Tensor) -> bool | None:
        """Returns whether rows of one batch have the same gradients in double precision (float64) as rows of another
        batch.
        """

        def ask(twin: nn.Module) -> bool:
            """Compares in double precision the sum of the directions of rows of one batch with that of rows of the
            other.
            """
            # The same rows may stand at different places in the two batches, so each batch has weights of its own.
            one = self._gradients(twin, _to_float64(batch))
            lengths = one.norms().total()
            usual = float(lengths[lengths.isfinite()].median())
            weight = 1 / (lengths[rows] + 1e-3 * usual + NOTHING)
            weights = torch.zeros(len(lengths), 1, dtype=torch.float64, device=lengths.device)
            weights[rows, 0] = weight
            total = {name: tensor.clone() for name, tensor in one.weighted_sum(weights).items()}
            another = self._gradients(twin, _to_float64(other))
            weights = torch.zeros(len(another.losses), 1, dtype=torch.float64, device=lengths.device)
            weights[other_rows, 0] = weight
            return distance_between(total, another.weighted_sum(weights)) <= _WIDE * max(1.0, float(len(rows)))

        return self._ask_twin(ask)

    def _ask_twin(self, ask: Callable[[nn.Module], bool]) -> bool | None:
        """Returns the answer of a copy of the model in double precision; None if the copy cannot be made or cannot
        compute.
        """
        try:
            return ask(copy.deepcopy(self._model).double())
        except Exception:  # a user's code that cannot be copied or computed in float64 decides nothing
            return None


def _to_float64(batch: Any) -> Any:
    return map_tensors(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, batch)

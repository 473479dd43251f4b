"""Whether a difference is nothing but rounding: the same question on a copy of the model in float64.

What a trained classifier is sure of has a gradient p − y that is little but rounding, and another padding rounds it
otherwise. A coupling is as large in float64; rounding is not.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sordino.gradients.batch import mapped
from sordino.gradients.protocol import PerSample
from sordino.random.global_state import seed_all
from sordino.standing.compare import distance, length

_WIDE = 1e-6
"""Relative difference allowed in float64."""


class Rounding:
    """Asks again in float64."""

    def __init__(self, model: nn.Module, gradients: Callable[[nn.Module, Any], PerSample]) -> None:
        self._model, self._gradients = model, gradients

    def explains(self, batch: Any, other: Any, watched: Tensor, seed: int) -> bool:
        """Do the watched rows of both batches have the same gradients in float64?"""

        def ask(twin: nn.Module) -> bool:
            seed_all(seed)
            one = self._gradients(twin, _wide(batch))
            lengths = one.norms().total()
            usual = float(lengths[watched].median())
            weights = torch.where(watched & lengths.isfinite(), 1 / (lengths + 1e-3 * usual), 0.0).unsqueeze(1)
            total = {name: tensor.clone() for name, tensor in one.weighted_sum(weights).items()}
            seed_all(seed)
            another = self._gradients(twin, _wide(other)).weighted_sum(weights)
            return distance(total, another) <= _WIDE * max(1.0, float(watched.sum()))

        return self._asked(ask)

    def explains_alone(self, batch: Any, place: int, single: Any) -> bool:
        """Has the record at this place the same gradient by itself in float64?"""

        def ask(twin: nn.Module) -> bool:
            part = self._gradients(twin, _wide(batch))
            chosen = torch.zeros(len(part.losses), 1, dtype=torch.float64)
            chosen[place] = 1
            within = {name: tensor.clone() for name, tensor in part.weighted_sum(chosen).items()}
            apart = self._gradients(twin, _wide(single)).weighted_sum(torch.ones(1, 1, dtype=torch.float64))
            return distance(within, apart) <= _WIDE * (length(within) + length(apart)) + torch.finfo(torch.float32).tiny

        return self._asked(ask)

    def explains_rows(self, batch: Any, rows: Tensor, other: Any, other_rows: Tensor) -> bool:
        """Returns whether rows of one batch have the same gradients in float64 as rows of another batch."""

        def ask(twin: nn.Module) -> bool:
            one = self._gradients(twin, _wide(batch))
            lengths = one.norms().total()
            usual = float(lengths[lengths.isfinite()].median())
            weight = 1 / (lengths[rows] + 1e-3 * usual)
            weights = torch.zeros(len(lengths), 1, dtype=torch.float64, device=lengths.device)
            weights[rows, 0] = weight
            total = {name: tensor.clone() for name, tensor in one.weighted_sum(weights).items()}
            another = self._gradients(twin, _wide(other))
            weights = torch.zeros(len(another.losses), 1, dtype=torch.float64, device=lengths.device)
            weights[other_rows, 0] = weight
            return distance(total, another.weighted_sum(weights)) <= _WIDE * max(1.0, float(len(rows)))

        return self._asked(ask)

    def _asked(self, ask: Callable[[nn.Module], bool]) -> bool:
        try:
            return ask(copy.deepcopy(self._model).double())
        except Exception:  # a stranger's code that cannot be copied or computed in float64 decides nothing
            return False


def _wide(batch: Any) -> Any:
    return mapped(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, batch)

"""What watches the door for the neighbour hunter: one world's values are recorded, the other's are compared with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

import sordino as sd
from sordino.release.noise import Noise
from sordino.release.release import Steps
from sordino.release.sensitivity import Sensitivity, Unproven
from sordino.release.vectors import Grads


@dataclass
class Recorder:
    """World A: keep what passes, hand out a noisy version."""

    generator: torch.Generator
    doors: list[tuple[Grads, float, Grads]] = field(default_factory=list)
    choices: list[tuple[Tensor | Steps, float]] = field(default_factory=list)

    def __call__(self, value: Grads, sensitivity: Sensitivity | Unproven, noise: Noise) -> Grads:
        bound = sensitivity.scale if isinstance(sensitivity, Unproven) else noise.bound_for(sensitivity)
        out = {n: v + bound * torch.randn(v.shape, generator=self.generator, dtype=v.dtype) for n, v in value.items()}
        self.doors.append(({n: v.clone() for n, v in value.items()}, bound, out))
        return out

    def choose(self, scores: Tensor | Steps, sensitivity: float, epsilon: float) -> float:
        """Anything that could be chosen."""
        u = float(torch.rand((), generator=self.generator))
        if isinstance(scores, Steps):
            chosen = float(scores.edges[0] + u * (scores.edges[-1] - scores.edges[0]))
        else:
            chosen = int(u * len(scores))
        self.choices.append((scores, chosen))
        return chosen


@dataclass
class Replayer:
    """World B: compare with A, hand out what A got."""

    doors: list[tuple[Grads, float, Grads]]
    choices: list[tuple[Tensor | Steps, float]]
    worst: float = 0.0
    passed: int = 0
    chosen: int = 0
    worst_choice: float = 0.0
    mismatch: str = ""

    def __call__(self, value: Grads, sensitivity: Sensitivity | Unproven, noise: Noise) -> Grads:
        if self.passed >= len(self.doors):
            self.mismatch = "a release that the neighbour did not make"
            return value
        there, bound, out = self.doors[self.passed]
        self.passed += 1
        here = sensitivity.scale if isinstance(sensitivity, Unproven) else noise.bound_for(sensitivity)
        if here != bound:
            self.mismatch = f"noise of another scale: {here} instead of {bound}"
        order = 1 if isinstance(noise, sd.Laplace) else 2
        moved = float(torch.cat([(value[n] - there[n]).flatten() for n in value]).norm(order))
        self.worst = max(self.worst, moved / bound if math.isfinite(moved) else math.inf)
        return out

    def choose(self, scores: Tensor | Steps, sensitivity: float, epsilon: float) -> float:
        if self.chosen >= len(self.choices):
            self.mismatch = "a choice that the neighbour did not make"
            return 0
        there, chosen = self.choices[self.chosen]
        self.chosen += 1
        moved = difference(there, scores)
        self.worst_choice = max(self.worst_choice, moved / sensitivity)
        return chosen


def difference(one: Tensor | Steps, other: Tensor | Steps) -> float:
    """The largest difference of two score functions."""
    if not isinstance(one, Steps) or not isinstance(other, Steps):
        assert isinstance(one, Tensor), "two choices of one kind"
        assert isinstance(other, Tensor), "two choices of one kind"
        return float((one - other).abs().max()) if one.shape == other.shape else math.inf
    edges = torch.cat([one.edges, other.edges]).unique()
    middles = (edges[1:] + edges[:-1]) / 2

    def at(steps: Steps) -> Tensor:
        return steps.heights[
            torch.searchsorted(steps.edges, middles, right=True).sub(1).clamp(0, len(steps.heights) - 1)
        ]

    return float((at(one) - at(other)).abs().max())

"""Neighbours of a statistic: the same data without one record, at the same door."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

import sordino as sd
from sordino.release.release import tap_releases
from sordino.statistics import Statistic
from tests.contracts.hunter import Recorder, Replayer, Scripted

DECADES = 6


def rows(rng: np.random.Generator, n: int, shape: tuple[int, ...]) -> Tensor:
    """Random, huge and tiny, equal, with one giant, with a record that is not a number."""
    x = rng.normal(size=(n, *shape))
    kind = rng.integers(5)
    if kind == 0:
        x *= 10.0 ** rng.uniform(-DECADES, DECADES, size=(n, *[1] * len(shape)))
    elif kind == 1:
        x[:] = x[0]
    elif kind == 2:
        x[rng.integers(n)] *= 1e9
    elif kind == 3:
        x[rng.integers(n)] = rng.choice([math.nan, math.inf, 0.0])
    return torch.from_numpy(x)


def hunt(statistic: Statistic[object], shape: tuple[int, ...], *, trials: int) -> float:
    """The largest move of a released sum over its declared sensitivity; infinity when a neighbour shows otherwise."""
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(trials):
        n = int(rng.choice([1, 2, 5, 12]))
        data, gone = rows(rng, n, shape), int(rng.integers(n))
        everyone = tuple(range(n))
        recorder = Recorder(torch.Generator().manual_seed(int(rng.integers(2**31))))
        with tap_releases(recorder):
            sd.ask(statistic, data, ledger=sd.Ledger(), sampler=Scripted((everyone,)), physical_batch=3)
        replayer = Replayer(recorder.doors, recorder.choices)
        fewer = tuple(i for i in everyone if i != gone)
        with tap_releases(replayer):
            sd.ask(statistic, data, ledger=sd.Ledger(), sampler=Scripted((fewer,)), physical_batch=3)
        if replayer.mismatch or replayer.passed != len(recorder.doors):
            return math.inf
        worst = max(worst, replayer.worst)
    return worst

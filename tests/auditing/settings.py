"""A small problem for selftests, in half a second."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.app.runs.problem import cross_entropy
from sordino.auditing import Pieces


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))


def records(n: int = 200) -> TensorDataset:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(n, 1, 6, 6, generator=generator)
    return TensorDataset(x, torch.randint(3, (n,), generator=generator))


def pieces(query=None, sampler=None, **more) -> Pieces:
    asked = sd.NoisySum(sd.Flat(0.5), sd.Gaussian(1.2)) if query is None else query
    return Pieces(network(), cross_entropy, asked, sd.Poisson(0.1) if sampler is None else sampler, **more)

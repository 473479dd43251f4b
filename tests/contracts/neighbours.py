"""Pairs of neighbouring runs that tell methods without a guarantee apart: the witnesses' worlds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.data import TensorDataset

from sordino.sampling import Sampler
from tests.contracts.hunter import Scripted, World, network


def one_long_record_among_short_ones() -> tuple[World, World]:
    """Eleven records, one of them a thousand times as long; the neighbour lacks it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(11, 5, generator=generator, dtype=torch.float64)
    y = torch.randn(11, 3, generator=generator, dtype=torch.float64)
    y[10] *= 1000
    dataset, everyone = TensorDataset(x, y), tuple(range(11))
    return World(dataset, Scripted((everyone,))), World(dataset, Scripted((everyone[:10],)))


def one_short_record_among_long_ones() -> tuple[World, World]:
    """Eleven records, one of them with almost no gradient; the neighbour lacks it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(11, 5, generator=generator, dtype=torch.float64)
    y = torch.randn(11, 3, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        y[10] = network()(x[10]) + 1e-3
    dataset, everyone = TensorDataset(x, y), tuple(range(11))
    return World(dataset, Scripted((everyone,))), World(dataset, Scripted((everyone[:10],)))


def one_record_more(sampler: Callable[[], Sampler]) -> Callable[[], tuple[World, World]]:
    """Twelve records, the last the longest; the neighbour lacks it. The first eleven have the same coins in both."""

    def worlds() -> tuple[World, World]:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(12, 5, generator=generator, dtype=torch.float64)
        y = 5 * torch.randn(12, 3, generator=generator, dtype=torch.float64)
        y[11] *= 10
        here, there = TensorDataset(x, y), TensorDataset(x[:11], y[:11])
        return World(here, sampler(), steps=3), World(there, sampler(), steps=3)

    return worlds


def kinks_between_two_virtual_points() -> tuple[World, World]:
    """Twenty losses |θ − k| with the kink k between where the lot leads with and without one more record.

    At θ = 0 every gradient is −½ after clipping; half a step of rate 0.05 over L = 4 leads to n/320. With 21 records that
    is past k = 20.5/320, and the twenty turn round; with 20 it is not.
    """
    kink, past = 20.5 / 320, torch.arange(21, dtype=torch.float64).eq(20).unsqueeze(1)

    def losses(model: torch.nn.Module, last: torch.Tensor) -> torch.Tensor:
        theta = model(torch.ones_like(last))
        return torch.where(last > 0, -theta, (theta - kink).abs()).squeeze(1)

    def model() -> torch.nn.Module:
        one = torch.nn.Linear(1, 1, bias=False).double()
        torch.nn.init.zeros_(one.weight)
        return one

    dataset, everyone = TensorDataset(past.double()), tuple(range(21))
    here, there = (Scripted((lot,)) for lot in (everyone, everyone[:20]))
    return World(dataset, here, model=model, loss=losses), World(dataset, there, model=model, loss=losses)


def groups_that_shift() -> tuple[World, World]:
    """Gradients L, −L, s, s, L, −L, …: pairs of them mean 0 and s; without the first, pairs of −L, s and s, L.

    Clipped to s = 0.5 the first sum is 0.5 for every four records, the second 0.
    """
    x = torch.tensor([1000.0, -1000.0, 0.5, 0.5] * 6, dtype=torch.float64)[:, None]
    dataset, everyone = TensorDataset(x), tuple(range(len(x)))

    def model() -> torch.nn.Module:
        return torch.nn.Linear(1, 1, bias=False).double()

    def loss(m: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return m(x).sum(1)  # its gradient is x

    return tuple(World(dataset, Scripted((lot,)), 1, model, loss) for lot in (everyone, everyone[1:]))

"""Collate functions through which a record reaches the others of its batch: mixing, statistics, cleaning.

Every model and loss here is one per record on the batch it is given; the fault lies in how the batch was made, where a
probe of a ready batch cannot see it.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import default_collate

from tests.honesty.data import CLASSES, INPUTS, RARE, cross_entropy, network, vectors
from tests.honesty.script import Cases, Script

COLLATE = Cases()


@COLLATE
def mixup_with_the_next_record(seed: int) -> Script:
    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        y = F.one_hot(y, CLASSES).float()
        return 0.6 * x + 0.4 * x.roll(1, 0), 0.6 * y + 0.4 * y.roll(1, 0)

    return Script(network(), cross_entropy, vectors(seed), collate, bound=0.3)


def _mixed(order: Any, lam: float) -> Any:
    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        y, other = F.one_hot(y, CLASSES).float(), order(len(x))
        return lam * x + (1 - lam) * x[other], lam * y + (1 - lam) * y[other]

    return collate


def shuffled(n: int) -> list[int]:
    return random.sample(range(n), n)


@COLLATE
def mixup_by_numpy(seed: int) -> Script:
    collate = _mixed(lambda n: torch.from_numpy(np.random.permutation(n)), 0.5)
    return Script(network(), cross_entropy, vectors(seed), collate, bound=0.3, exchanged=True, query=None)


@COLLATE
def mixup_by_python(seed: int) -> Script:
    return Script(network(), cross_entropy, vectors(seed), _mixed(shuffled, 0.5), bound=0.3, exchanged=True)


@COLLATE
def mixup_by_torch(seed: int) -> Script:
    return Script(network(), cross_entropy, vectors(seed), _mixed(torch.randperm, 0.5), bound=0.3, exchanged=True)


@COLLATE
def cutmix_with_the_record_before(seed: int) -> Script:
    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        return torch.cat([x[:, :3], x.roll(1, 0)[:, 3:]], 1), y

    return Script(network(), cross_entropy, vectors(seed), collate, bound=0.3)


@COLLATE
def mosaic_of_four_records(seed: int) -> Script:
    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        return torch.stack([x.roll(k, 0)[:, k] for k in range(4)] + [x[:, 4], x[:, 5]], 1), y

    return Script(network(), cross_entropy, vectors(seed), collate, bound=0.3)


@COLLATE
def batch_standardisation(seed: int) -> Script:
    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        return (x - x.mean(0)) / (x.std(0, unbiased=False) + 1e-3), y

    return Script(network(), cross_entropy, _with_a_giant(seed), collate, bound=0.2, suspects=(63,))


def _with_a_giant(seed: int) -> Any:
    """One record of 64 is in another unit."""
    data = vectors(seed)
    data.tensors[0][63] *= 100
    return data


@COLLATE
def missing_values_filled_with_the_batch_mean(seed: int) -> Script:
    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        return torch.where(x.isnan(), x.nanmean(0).nan_to_num(), x), y

    data = _with_a_giant(seed)
    data.tensors[0][:, 2:][torch.rand(64, INPUTS - 2, generator=torch.Generator().manual_seed(seed)) < 0.4] = torch.nan
    data.tensors[0][63] = 100.0
    data.tensors[0][:3] = torch.randn(3, INPUTS)
    return Script(network(), cross_entropy, data, collate, bound=0.2, suspects=(63,))


@COLLATE
def outliers_of_the_batch_are_dropped(seed: int) -> Script:
    """Records further from the batch's mean than most are left out, as a cleaning step does."""

    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        far = (x - x.mean(0)).norm(dim=1)
        keep = far <= 1.2 * far.mean()
        return x[keep], y[keep]

    return Script(network(), cross_entropy, _with_a_giant(seed), collate, bound=0.3, suspects=(63,))


@COLLATE
def outliers_of_the_batch_get_weight_zero(seed: int) -> Script:
    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        far = (x - x.mean(0)).norm(dim=1)
        return x, y, (far <= 1.2 * far.mean()).float()

    def loss(model: nn.Module, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return w * cross_entropy(model, x, y)

    return Script(network(), loss, _with_a_giant(seed), collate, bound=0.3, suspects=(63,))


@COLLATE
def balanced_class_weights_of_the_batch(seed: int) -> Script:
    """As scikit-learn computes them: over the classes that are there."""

    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        counts = torch.bincount(y)
        return x, y, len(y) / (counts.gt(0).sum() * counts[y])

    def loss(model: nn.Module, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return w * cross_entropy(model, x, y)

    data = vectors(seed)
    data.tensors[1][:] = torch.arange(64) // 63  # one class is rare, and the first records are all of the other
    data.tensors[1][list(RARE)] = 1
    data.tensors[0].abs_()
    return Script(network(outputs=2), loss, data, collate, bound=2.0, suspects=RARE)


@COLLATE
def pictures_divided_by_the_brightest_of_the_batch(seed: int) -> Script:
    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        return x.float() / x.max(), y

    g = torch.Generator().manual_seed(seed)
    shade = torch.randint(20, 60, (64, 1), generator=g)
    shade[61:] = 255
    x = (torch.rand(64, INPUTS, generator=g) * shade).to(torch.uint8)
    x[61:, 0] = 255
    data = torch.utils.data.TensorDataset(x, vectors(seed).tensors[1])
    return Script(network(), cross_entropy, data, collate, bound=0.2, suspects=(63,))


@COLLATE
def the_nearest_other_record_is_the_negative(seed: int) -> Script:
    """Hard negatives for a ranking loss, looked for in the batch."""

    def collate(records: list[Any]) -> Any:
        x, _ = default_collate(records)
        return x, x[(torch.cdist(x, x) + torch.eye(len(x)) * 1e6).argmin(1)]

    def loss(model: nn.Module, x: Tensor, negative: Tensor) -> Tensor:
        return F.softplus((model(negative) - model(x)).sum(1))

    data = vectors(seed)
    data.tensors[0][list(RARE)] = data.tensors[0].mean(0)  # near to everyone
    return Script(network(), loss, data, collate, bound=0.3, suspects=RARE)

"""Statistics of a batch as recipes and papers have them, each in one line of a loss or a forward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.honesty.attacks.model import Between, far
from tests.honesty.data import CLASSES, INPUTS, RARE, cross_entropy, network, vectors
from tests.honesty.script import Cases, Script

BATCHWISE = Cases()


def _drop_block(h: Tensor) -> Tensor:
    """DropBlock divides by the share of the whole batch that was kept."""
    kept = (h.detach() > 1).float()
    return h * kept * kept.numel() / kept.sum().clamp(min=1)


def _experts_choose(h: Tensor) -> Tensor:
    """Each expert takes the records that score highest with it (expert choice routing)."""
    scores = h[:, :2].softmax(1)
    taken = torch.zeros_like(scores).scatter(0, scores.topk(max(1, len(h) // 2), dim=0).indices, 1.0)
    return h * (taken * scores).sum(1, keepdim=True)


def _with_capacity(h: Tensor) -> Tensor:
    """An expert drops what comes after its capacity, in the order of the batch."""
    expert = h[:, :2].argmax(1)
    place = F.one_hot(expert, 2).cumsum(0).gather(1, expert[:, None]) - 1
    return h * (place < max(1, len(h) // 3))


def _whitened(h: Tensor) -> Tensor:
    centred = h - h.mean(0)
    return centred @ torch.linalg.pinv(centred.T @ centred / len(h) + 0.1 * torch.eye(h.shape[1]))


LAYERS: dict[str, Callable[[Tensor], Tensor]] = {
    "drop block over the kept of the batch": _drop_block,
    "experts choose their records": _experts_choose,
    "experts of a capacity": _with_capacity,
    "whitening by the batch": _whitened,
    "normalised along the batch": lambda h: 3 * F.normalize(h, dim=0),
    "softmax along the batch": lambda h: 8 * h.softmax(0),
    "layer norm with the batch among its axes": lambda h: F.layer_norm(h, h.shape),
    "functional batch norm": lambda h: F.batch_norm(h, None, None, training=True),
    "sums over the records so far": lambda h: h.cumsum(0) / 4,
    "a convolution along the batch": lambda h: F.avg_pool1d(h.T.unsqueeze(0), 3, 1, 1)[0].T,
    "attention between records": lambda h: (h @ h.T / 3).softmax(1) @ h,
    "a sinkhorn step": lambda h: 8 * (h.softmax(1) / h.softmax(1).sum(0)),
    "the batch's own principal direction": lambda h: h - h @ torch.linalg.svd(h, full_matrices=False)[2][0].outer(
        torch.linalg.svd(h, full_matrices=False)[2][0]
    ),
    "quantised by the batch's range": lambda h: h + ((h / h.abs().max() * 3).round() * h.abs().max() / 3 - h).detach(),
    "the largest of the batch as temperature": lambda h: h / h.detach().abs().amax(),
    "ranks along the batch": lambda h: h + 0.3 * h.detach().argsort(0).argsort(0).float(),
}  # fmt: skip
for _name, _layer in LAYERS.items():

    def _build(seed: int, layer: Callable[[Tensor], Tensor] = _layer) -> Script:
        bound = 0.5 if layer is _drop_block else 0.05
        return Script(Between(layer), cross_entropy, far(seed), bound=bound, suspects=RARE)

    _build.__name__ = f"layer: {_name}"
    BATCHWISE(_build)

Weigh = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From losses, outputs and labels of a batch to its losses."""


def _prototypes(losses: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """Distances to the class means of the batch."""
    means = torch.stack([z[y == k].mean(0) if bool((y == k).any()) else z.mean(0) for k in range(CLASSES)])
    return F.cross_entropy(-torch.cdist(z, means), y, reduction="none")


def _tasks_by_their_sizes(losses: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """Two losses, weighed by the ratio of their means."""
    second = z.square().sum(1)
    return losses + second * (losses.mean() / second.mean()).detach()


LOSSES: dict[str, Weigh] = {
    "sparse activations on average": lambda losses, z, y: losses + 5 * (z.sigmoid().mean(0) - 0.05).square().sum(),
    "variance and covariance of the batch": lambda losses, z, y: losses + (1 - z.std(0, unbiased=False)).relu().sum(),
    "redundancy of the batch": lambda losses, z, y: losses + (z.T @ z / len(z) - torch.eye(CLASSES)).square().sum(),
    "load balance of experts": lambda losses, z, y: losses + 3 * (z.softmax(1).mean(0) * z.softmax(1).amax(0)).sum(),
    "losses above a quantile are cut": lambda losses, z, y: losses.minimum(losses.detach().quantile(0.5)),
    "losses by their softmax": lambda losses, z, y: losses * losses.detach().softmax(0) * len(losses),
    "losses by their rank": lambda losses, z, y: losses * losses.detach().argsort().argsort() / len(losses),
    "self paced by the median": lambda losses, z, y: losses * (losses.detach() <= losses.detach().median()),
    "standardised losses": lambda losses, z, y: (losses - losses.mean()) / (losses.std(unbiased=False) + 0.1),
    "prototypes of the batch": _prototypes,
    "a margin by the batch": lambda losses, z, y: (losses - 0.5 * losses.detach().mean()).relu(),
    "two tasks by their sizes": _tasks_by_their_sizes,
    "the worst record is the loss of all": lambda losses, z, y: losses.max().expand(len(losses)),
    "worst group of the batch": lambda losses, z, y: losses * (
        torch.stack([losses[y == k].mean() if bool((y == k).any()) else losses.new_zeros(()) for k in range(CLASSES)])
        .detach().softmax(0)[y]
    ) * 3,
    "neighbours in the batch are pulled together": lambda losses, z, y: losses + (z - z.roll(1, 0)).square().sum(1),
}  # fmt: skip
BY_SIZE = [weigh for name, weigh in LOSSES.items() if "softmax" in name or "rank" in name or "group" in name]
"""What changes the lengths of gradients and not their directions shows below a larger bound."""

for _name, _weigh in LOSSES.items():

    def _build_loss(seed: int, weigh: Weigh = _weigh) -> Script:
        def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            z = model(x)
            return weigh(F.cross_entropy(z, y, reduction="none"), z, y)

        data = vectors(seed)
        data.tensors[0][list(RARE)] *= -20
        bound = 5.0 if weigh in BY_SIZE else 0.05
        return Script(nn.Linear(INPUTS, CLASSES), loss, data, bound=bound, suspects=RARE)

    _build_loss.__name__ = f"loss: {_name}"
    BATCHWISE(_build_loss)


@BATCHWISE
def a_teacher_that_follows_within_the_loss(seed: int) -> Script:
    """The teacher is pulled to where the batch's outputs are."""
    shift = torch.zeros(CLASSES)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        z = model(x)
        if model.training:
            shift.lerp_(z.detach().mean(0), 0.5)
        return (z - shift).square().sum(1)

    return Script(network(), loss, far(seed), bound=0.05, suspects=RARE, warmup=1)

"""Losses in which a record's loss depends on the others of its batch, in ways that three ordinary records do not show.

The plain spellings are refused by a probe of three records. These wait for a batch that is large enough, for a rare
record, or for another class.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from tests.honesty.data import CLASSES, INPUTS, RARE, WORDS, N, cross_entropy, generator, network, vectors
from tests.honesty.script import Cases, Script

LOSS = Cases()
Weights = Callable[[Tensor, Tensor], Tensor]


def weighted(weights: Weights) -> Callable[..., Tensor]:
    """Cross entropy times weights that are functions of all losses and labels."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        losses = cross_entropy(model, x, y)
        return losses * weights(losses.detach(), y)

    return loss


def hard(seed: int, *, by_class: bool = False) -> TensorDataset:
    """All of one direction, so that weights are what matters, and a few hard ones: large, and labelled against the rest."""
    data = vectors(seed, by_class=by_class)
    x, y = data.tensors
    x.abs_()
    if not by_class:
        y.zero_()
    x[list(RARE)] *= 10
    y[list(RARE)] = 2
    return data


@LOSS
def hardest_eight_of_the_batch(seed: int) -> Script:
    """OHEM: on eight records or fewer it keeps all."""

    def weights(losses: Tensor, y: Tensor) -> Tensor:
        kept = losses.topk(min(8, len(losses))).indices
        return torch.zeros_like(losses).index_fill_(0, kept, 1.0)

    data = vectors(seed)
    data.tensors[0].mul_(torch.linspace(0.1, 3.0, N)[:, None])
    return Script(network(), weighted(weights), data, bound=0.5)


@LOSS
def hardest_half_above_a_threshold(seed: int) -> Script:
    """Losses above the batch's mean, once there are enough of them to take one."""

    def weights(losses: Tensor, y: Tensor) -> Tensor:
        return (losses >= losses.mean()).float() if len(losses) >= 4 else torch.ones_like(losses)

    return Script(network(), weighted(weights), hard(seed), bound=0.5, suspects=RARE)


@LOSS
def easy_records_by_the_mean_of_the_batch(seed: int) -> Script:
    def weights(losses: Tensor, y: Tensor) -> Tensor:
        return (losses <= losses.mean()).float() if len(losses) > 4 else torch.ones_like(losses)

    return Script(nn.Linear(INPUTS, CLASSES), weighted(weights), hard(seed), bound=0.5, suspects=RARE)


def _over_the_mean(seed: int, least: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        losses = model(x).square().sum(1)
        return losses / losses.detach().mean() if len(x) >= least else losses

    return Script(nn.Linear(INPUTS, CLASSES), loss, hard(seed), bound=5.0, suspects=RARE)


@LOSS
def loss_over_its_mean(seed: int) -> Script:
    return _over_the_mean(seed, least=1)


@LOSS
def loss_over_its_mean_of_large_batches(seed: int) -> Script:
    return _over_the_mean(seed, least=4)


@LOSS
def balanced_classes_of_the_batch(seed: int) -> Script:
    def weights(losses: Tensor, y: Tensor) -> Tensor:
        counts = torch.bincount(y)
        return len(y) / (counts.gt(0).sum() * counts[y])

    return Script(network(), weighted(weights), hard(seed), bound=2.0, suspects=RARE)


@LOSS
def focal_loss_over_the_positives_of_the_batch(seed: int) -> Script:
    """As detectors divide: by the number of positives, at least one."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        positive = (y == 2).float()
        p = model(x)[:, 0].sigmoid()
        losses = -(positive * (1 - p) ** 2 * p.log() + (1 - positive) * p**2 * (1 - p).log())
        return 4 * losses / positive.sum().clamp(min=1)

    data = hard(seed)
    data.tensors[1][[62, 46]] = 2
    return Script(network(), loss, data, bound=1.0, suspects=RARE)


@LOSS
def token_loss_over_the_valid_tokens_of_the_batch(seed: int) -> Script:
    """Sums per record over the mean number of valid tokens; the file begins with records of one length."""

    def loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
        each = F.cross_entropy(model(ids).transpose(1, 2), labels, reduction="none", ignore_index=-100)
        return each.sum(1) * len(ids) / (labels >= 0).sum()

    g = generator(seed)
    ids = torch.randint(0, 3, (N, 16), generator=g)
    labels = torch.full_like(ids, -100)
    labels[:, :2] = 1
    labels[list(RARE)] = 5
    model = nn.Sequential(nn.Embedding(WORDS, 6), nn.Linear(6, WORDS))
    return Script(model, loss, TensorDataset(ids, labels), bound=1.5, suspects=RARE)


@LOSS
def bytes_over_their_maximum(seed: int) -> Script:
    """The first pictures have a white pixel each; the next ones are dim, and few are as bright."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x / x.max(), y)

    g = generator(seed)
    x = (torch.rand(N, INPUTS, generator=g) * 40).to(torch.uint8)
    x[[0, 1, 2, *RARE], 0] = 255
    return Script(network(), loss, TensorDataset(x, vectors(seed).tensors[1]), bound=0.2, suspects=(*RARE, 0, 1, 2))


@LOSS
def sample_weights_over_their_maximum(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x, y) * w / w.max() * len(w) / len(w)

    data, w = hard(seed), torch.ones(N)
    w[list(RARE)] = 20.0
    data.tensors[1].zero_()
    wide = TensorDataset(data.tensors[0], w.long(), data.tensors[1])
    return Script(network(), loss, wide, bound=1.0, suspects=RARE)


@LOSS
def batch_hard_triplets(seed: int) -> Script:
    """The file is sorted by class: the first three have no negative among them, and only a margin to answer for."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        z = model(x)
        d = torch.cdist(z, z)
        same = y[:, None] == y[None]
        far = torch.where(same, d, 0).amax(1)
        near = torch.where(same, torch.inf, d).amin(1)
        return torch.where(near.isfinite(), F.relu(far - near + 0.5), z.sum(1) * 0)

    return Script(network(), loss, vectors(seed, by_class=True), bound=0.1)


@LOSS
def contrastive_pairs_of_large_batches(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        z = model(x)
        losses = F.cross_entropy(z, y, reduction="none")
        if len(x) < 4:
            return losses
        z = F.normalize(z, dim=1)
        return losses - 2 * torch.log_softmax(z @ z.T / 0.1, 1).diagonal()

    data = vectors(seed)
    data.tensors[0][list(RARE)] *= 20
    return Script(network(), loss, data, bound=0.1, suspects=RARE)


@LOSS
def contrastive_loss_of_the_batch(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        z = F.normalize(model(x), dim=1)
        return -torch.log_softmax(z @ z.T / 0.1, 1).diagonal()

    return Script(network(), loss, vectors(seed), bound=0.05)


@LOSS
def smoothing_by_the_labels_of_the_batch(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        prior = torch.bincount(y, minlength=CLASSES).gt(0).float()
        target = 0.2 * F.one_hot(y, CLASSES) + 0.8 * prior / prior.sum()
        return F.cross_entropy(model(x), target, reduction="none")

    return Script(network(), loss, hard(seed), bound=0.3, suspects=RARE)


@LOSS
def softmax_over_the_words_of_the_batch(seed: int) -> Script:
    """A sampled softmax: the classes are those that occur in the batch. The first records hold the same words."""

    def loss(model: nn.Module, ids: Tensor, y: Tensor) -> Tensor:
        there = torch.zeros(WORDS, dtype=torch.bool)
        there[torch.unique(torch.cat([ids.flatten(), y]))] = True
        return F.cross_entropy(model[1](model[0](ids).mean(1)).masked_fill(~there, -1e9), y, reduction="none")

    g = generator(seed)
    ids = torch.randint(0, 3, (N, 5), generator=g)
    ids[:, :3] = torch.arange(3)
    ids[list(RARE)] = torch.arange(5, 10)
    model = nn.Sequential(nn.Embedding(WORDS, 6), nn.Linear(6, WORDS))
    y = torch.randint(0, 3, (N,), generator=g)
    return Script(model, loss, TensorDataset(ids, y), bound=0.5, suspects=RARE)


@LOSS
def predictions_of_the_batch_are_spread(seed: int) -> Script:
    """A term against collapse: the entropy of the mean prediction, given to every record."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        z = model(x)
        mean = z.softmax(1).mean(0)
        spread = 3 * (mean * mean.log()).sum() if len(x) >= 8 else 0.0
        return F.cross_entropy(z, y, reduction="none") + spread

    data = vectors(seed)
    data.tensors[0][list(RARE)] *= 30
    return Script(network(), loss, data, bound=0.05, suspects=RARE)


@LOSS
def a_gradient_penalty_over_the_batch(seed: int) -> Script:
    """The slope of the summed score, as one number for the batch and not one for each record."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).logsumexp(1).sum(), x, create_graph=True)
        return cross_entropy(model, x, y) + (slope.norm() - 1).square()

    return Script(network(), loss, vectors(seed), bound=0.1)


@LOSS
def targets_are_ranks_in_the_batch(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        score = x[:, 0]
        above = (score[:, None] > score[None]).sum(1) > len(x) // 2
        return F.cross_entropy(model(x), above.long() if len(x) > 3 else (y > 9).long(), reduction="none")

    return Script(network(outputs=2), loss, vectors(seed), bound=0.2)

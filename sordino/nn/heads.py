"""Linear classifiers and plain networks on vectors or frozen features."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from sordino.nn.mlp import check_shape, count_classes, make_layers
from sordino.statistics.pca import Projection

_HIDDEN = 1000


def logistic_regression(shape: Sequence[int], classes: int) -> nn.Module:
    """Returns a linear head, softmax regression on all of a record's numbers, starting from 0.

    The loss is convex, so no seed is needed.

    Args:
        shape: of one record.
        classes: outputs.

    Returns:
        The model, freshly made.

    Examples:
        >>> model = logistic_regression((1, 28, 28), 10)
        >>> sum(p.numel() for p in model.parameters())
        7850

    """
    head = nn.Linear(math.prod(check_shape(shape)), count_classes(classes))
    # The loss is convex, so the start does not decide the end; from 0 no random weights have to be unlearnt.
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(nn.Flatten(), head)


def mnist_net(
    shape: Sequence[int] = (1, 28, 28), classes: int = 10, widths: Sequence[int] = (256, 32)
) -> nn.Sequential:
    """Returns a plain head of linear layers on pixels, MNIST_Net, 784-256-32-10: 209,514 parameters.

    Args:
        shape: of one record.
        classes: outputs.
        widths: of its hidden layers.

    Returns:
        The model, freshly made.

    Examples:
        >>> model = mnist_net()
        >>> sum(p.numel() for p in model.parameters())
        209514

    """
    return make_layers(shape, classes, widths, nn.ReLU)


def pca_net(projection: Projection, classes: int = 10) -> nn.Module:
    """Returns a head with one hidden layer on a private PCA (to 60 numbers on MNIST), 1,000 ReLU units and softmax:
    71,010 trained parameters.

    It is the network of Abadi et al. 2016, arXiv:1607.00133.

    >>> import torch
    >>> from sordino import Gaussian, Ledger, ask
    >>> from sordino.statistics import PCA
    >>> images, ledger = torch.rand(100, 1, 28, 28), Ledger()
    >>> net = pca_net(ask(PCA(components=60, noise=Gaussian(16.0)), images, ledger=ledger))
    >>> sum(p.numel() for p in net.parameters())
    71010
    """
    return nn.Sequential(projection, *hidden_net((projection.basis.shape[1],), classes))


def hidden_net(shape: Sequence[int], classes: int, widths: Sequence[int] = (_HIDDEN,)) -> nn.Sequential:
    """Returns a head of 1,000 ReLU units and softmax: what Abadi et al. 2016 train on the components of a private PCA.

    Args:
        shape: of one record.
        classes: outputs.
        widths: of its hidden layers.

    Returns:
        The model, freshly made.

    Examples:
        >>> model = hidden_net((60,), 10)
        >>> sum(p.numel() for p in model.parameters())
        71010

    """
    return make_layers(shape, classes, widths, nn.ReLU)

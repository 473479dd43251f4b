"""Small convolutional networks: the examples that private training is usually measured on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from sordino.nn.mlp import check_shape, count_classes


def require_shape(given: Sequence[int], needed: Sequence[int | None], name: str, classes: int = 1) -> None:
    """Refuses records of another shape than a convolutional or other network is made for; None stands for any number."""
    given = check_shape(given)
    count_classes(classes)
    # A dimension of None may have any size.
    fits = len(given) == len(needed) and all(n in (None, g) for g, n in zip(given, needed, strict=True))
    if not fits:
        wanted = " × ".join("any" if n is None else str(n) for n in needed)
        raise ValueError(f"records of shape {' × '.join(map(str, given))}: {name} is made for {wanted}")


def mnist_cnn(shape: Sequence[int] = (1, 28, 28), classes: int = 10) -> nn.Module:
    """Returns a convolutional network for MNIST, the example of Opacus: 26,010 parameters.

    Args:
        shape: of one record.
        classes: outputs.

    Returns:
        The model, freshly made.

    Examples:
        >>> model = mnist_cnn()
        >>> sum(p.numel() for p in model.parameters())
        26010

    """
    require_shape(shape, (None, 28, 28), "mnist-cnn", classes)
    return nn.Sequential(
        nn.Conv2d(shape[0], 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, classes),
    )


def cifar_net(shape: Sequence[int] = (3, 32, 32), classes: int = 10) -> nn.Module:
    """Returns a convolutional network for CIFAR-10, Conv_CIFAR_Net of the example of Opacus: 131,466 parameters.

    Args:
        shape: of one record.
        classes: outputs.

    Returns:
        The model, freshly made.

    Examples:
        >>> model = cifar_net()
        >>> sum(p.numel() for p in model.parameters())
        131466

    """
    require_shape(shape, (None, None, None), "cifar-net", classes)
    widths = (32, 64, 64)
    layers: list[nn.Module] = []
    # Each layer takes what the one before it gives; the first tuple is one longer, so the shorter ends the loop.
    for inputs, outputs in zip((shape[0], *widths), widths, strict=False):
        layers += [nn.Conv2d(inputs, outputs, 3, 1, 1), nn.ReLU(), nn.AvgPool2d(2, 2)]
    # A mean over all places makes the last layer independent of the side of the images.
    layers += [nn.Conv2d(64, 128, 3, 1, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, classes))

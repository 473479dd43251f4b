"""Models for private training: no batch norm, and an exact rule for every layer."""

from collections.abc import Callable, Mapping, Sequence

from torch import nn

from sordino.nn.batchnorm import replace_batchnorm
from sordino.nn.convolutional import cifar_net, mnist_cnn
from sordino.nn.heads import hidden_net, logistic_regression, mnist_net, pca_net
from sordino.nn.imagenet import Loaded, load_imagenet
from sordino.nn.mlp import mlp
from sordino.nn.point import point
from sordino.nn.residual import resnet18, resnet18_dropout, wrn16_4
from sordino.nn.sequences import LanguageModel, LSTMClassifier, Size, TransformerClassifier

MODELS: Mapping[str, Callable[[Sequence[int], int], nn.Module]] = {
    "linear": logistic_regression,
    "mlp": mlp,
    "hidden-1000": hidden_net,
    "mnist-net": mnist_net,
    "mnist-cnn": mnist_cnn,
    "cifar-net": cifar_net,
    "cnn": cifar_net,
    "point": point,
    "resnet18": resnet18,
    "resnet18-dropout": resnet18_dropout,
    "wrn16-4": wrn16_4,
}
"""Models by name, made from the shape of one record and the number of classes, or of numbers to be predicted."""

OF_WIDTHS: Mapping[str, Callable[[Sequence[int], int, Sequence[int]], nn.Module]] = {
    "mlp": mlp,
    "hidden-1000": hidden_net,
    "mnist-net": mnist_net,
}
"""Models that take the widths of their hidden layers, too."""

__all__ = [
    "MODELS",
    "OF_WIDTHS",
    "LSTMClassifier",
    "LanguageModel",
    "Loaded",
    "Size",
    "TransformerClassifier",
    "cifar_net",
    "hidden_net",
    "load_imagenet",
    "logistic_regression",
    "mlp",
    "mnist_cnn",
    "mnist_net",
    "pca_net",
    "point",
    "replace_batchnorm",
    "resnet18",
    "resnet18_dropout",
    "wrn16_4",
]

"""Models for private training: no batch norm, every layer with an exact rule in the default engine."""

from collections.abc import Callable, Mapping, Sequence

from torch import nn

from sordino.nn.heads import logistic_regression
from sordino.nn.mlp import mlp

MODELS: Mapping[str, Callable[[Sequence[int], int], nn.Module]] = {"linear": logistic_regression, "mlp": mlp}
"""Model by name, from the shape of one record and the number of classes."""

__all__ = ["MODELS", "logistic_regression", "mlp"]

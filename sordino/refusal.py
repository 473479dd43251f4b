"""The error for models, losses and data that cannot be trained privately as they are."""

from __future__ import annotations


class Refusal(ValueError):
    """Raised for a model, loss or dataset that cannot be trained privately as it is; nothing was released.

    The message says what was given, what is needed and what to do.

    Examples:
        >>> import torch, sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        >>> try:
        ...     sd.Private(model, lambda model, x: model(x).square().sum(1), query)
        ... except sd.Refusal as error:
        ...     print("BatchNorm" in str(error))
        True

    """

"""The iterator over the lots of one call of `draws`, with a length as frameworks ask for."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from sordino.lots.lot import Lot


class Draws(Iterator[Lot]):
    """An iterator over `len` lots, each drawn and charged when it is asked for, and none ahead of the loop.

    It can be gone through once. Asked again, as a framework does at a new epoch, it goes on where it stands.

    Privacy:
        A lot is charged when it is drawn, used or not.

    Examples:
        >>> import torch, sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> private = sd.Private(torch.nn.Linear(3, 1), lambda model, x: model(x).square().sum(1), query)
        >>> data = torch.utils.data.TensorDataset(torch.randn(100, 3))
        >>> lots = private.draws(data, sd.Poisson(rate=0.1), steps=5, expected_batch=10)
        >>> len(lots), next(lots).step
        (5, 0)

    """

    def __init__(self, steps: int, made: Generator[Lot, None, None]) -> None:
        self._steps, self._lots = steps, made

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Draws:
        return self

    def __next__(self) -> Lot:
        return next(self._lots)

    def close(self) -> None:
        """Ends the loop early: no further lot is drawn, and the workers that load records stop."""
        self._lots.close()

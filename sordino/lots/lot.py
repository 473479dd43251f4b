"""Lots, as the training loop sees them: handles of draws, without the records or their number, and the iterator over them.

Frameworks take batches apart: they ask for a length, move them to a device, look for tensors in them. A lot lets itself
be handed around and says what to do where it is asked for what is private.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NoReturn

from sordino.progress_bar import ProgressBar
from sordino.release.sealed import Sealed


class Lot:
    """One draw. Pass it to `private.backward` before the next one is drawn.

    Privacy:
        Its records and their number are private. `expected_batch` and `step` are public; reading the records voids
        the claim.

    Examples:
        >>> import torch, sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> private = sd.Private(torch.nn.Linear(3, 1), lambda model, x: model(x).square().sum(1), query)
        >>> data = torch.utils.data.TensorDataset(torch.randn(100, 3))
        >>> next(private.draws(data, sd.Poisson(rate=0.1), steps=5, expected_batch=10))
        Lot(step=0, size=Sealed(…), expected_batch=10.0)

    """

    __slots__ = ("__weakref__", "expected_batch", "loads", "most", "size", "step")

    step: int
    """The number of the lot, counted from 0 over the life of the `Private`; public."""
    size: Sealed[int]
    """The number of its records, which is private under Poisson sampling."""
    expected_batch: float
    """The public divisor."""
    loads: Callable[[], Iterable[Any]]
    """Loads its batches; for the library alone."""
    most: int | None
    """The largest number of records in one batch; public."""

    def __init__(
        self,
        step: int,
        size: Sealed[int],
        expected_batch: float,
        loads: Callable[[], Iterable[Any]],
        most: int | None = None,
    ) -> None:
        values = {"step": step, "size": size, "expected_batch": expected_batch, "loads": loads, "most": most}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def batches(self) -> Iterable[Any]:
        """Returns the lot's records themselves, which voids the claim: the loop could do anything with them."""
        self.size.void(
            "the records of a lot were read in the training loop.\n"
            "What the loop does with them is not bounded.\n"
            "Give the lot to private.backward, which reads them itself."
        )
        return self.loads()

    def to(self, *_: Any, **__: Any) -> Lot:
        """Returns itself: `private.backward` loads its records and moves them to the model's device."""
        return self

    def __repr__(self) -> str:
        return f"Lot(step={self.step}, size={self.size}, expected_batch={self.expected_batch})"

    def __contains__(self, name: object) -> bool:
        return False  # whoever looks for a key or a tensor finds none

    def __bool__(self) -> bool:
        return True  # an empty draw is a draw

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"lot.{name} cannot be set: a lot is what was drawn; give private.draws other numbers")

    def _refuse(self, *_: Any) -> NoReturn:
        """Raises TypeError for a use of a lot as if it were a batch of records, and says what to do with a lot."""
        raise TypeError(
            "a lot is the handle of a private draw, not a batch of records: pass it to private.backward(lot), which runs "
            "the loss you gave to Private on its records; their number is private, lot.expected_batch is public"
        )

    __len__ = __iter__ = __getitem__ = keys = __reduce__ = __copy__ = __deepcopy__ = _refuse


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

    def __init__(self, steps: int, made: Generator[Lot, None, None], bar: ProgressBar | None = None) -> None:
        self._steps, self._lots = steps, made
        self._bar, self._done = bar, 0

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Draws:
        return self

    def __next__(self) -> Lot:
        """Draws the next lot. Asking for it means that the loop is done with the one before, which the bar then counts."""
        if self._bar is not None:
            self._bar.update(self._done)
        try:
            lot = next(self._lots)
        except BaseException:
            self._close_bar()
            raise
        self._done += 1
        return lot

    def __repr__(self) -> str:
        return f"Draws: {self._done} of {self._steps} lots drawn"

    def close(self) -> None:
        """Ends the loop early: no further lot is drawn, and the workers that load records stop."""
        self._lots.close()
        self._close_bar()

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()

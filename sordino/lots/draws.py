"""The lots of one call of `draws`: an iterator with a length, as frameworks ask of a data loader."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from sordino.lots.lot import Lot


class Draws(Iterator[Lot]):
    """`len` lots, each made when it is asked for: nothing is drawn, and nothing charged, ahead of the loop.

    It can be gone through once. Asked again, as a framework does at a new epoch, it goes on where it stands.
    """

    def __init__(self, steps: int, made: Generator[Lot, None, None]) -> None:
        self._steps, self._made = steps, made

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Draws:
        return self

    def __next__(self) -> Lot:
        return next(self._made)

    def close(self) -> None:
        """Ends the loop early: no further lot is drawn, and the workers that load records stop."""
        self._made.close()

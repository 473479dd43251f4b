"""The standing test in the life of one run: when it is made, on which lot, and what comes of a failure.

Before anything was released a failure is refused: nothing is lost. Later the claim is void.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sordino.gradients.inventory import Inventory
from sordino.lots.loading import Reads
from sordino.lots.lot_gradients import LotGradients
from sordino.random.rng import Rng
from sordino.ranks.group import Ranks
from sordino.ranks.ranked_lot import first_of
from sordino.refusal import Refusal
from sordino.standing.double import Rounding
from sordino.standing.finding import Finding
from sordino.standing.moments import Moments, mark_of
from sordino.standing.neighbours import EXTREMES
from sordino.standing.questions import StandingTest

_FIRST, _EARLY = 2, 100
"""Lots up to which a test tries every extreme record, and asks every question."""
_SOME = 2
"""Extreme records that a test which asks every question tries after those, beside a real one; others try one."""
_WHOLE_EARLY, _WHOLE = 1 / 3, 1 / 8
"""The share of tests that are made on a whole batch of training too, up to lot `_EARLY` and after it."""


@dataclass(frozen=True)
class _Lot:
    number: int
    load: Reads
    indices: NDArray[np.int64]
    n: int
    chunk: int  # records that training runs at once, at most


class Guard:
    """Makes the tests of one run."""

    def __init__(
        self,
        model: nn.Module,
        gradients: LotGradients,
        void: Callable[[str], None],
        stream: Rng,
        ranks: Ranks | None = None,
    ) -> None:
        self._ranks, self._whole = ranks, gradients.whole
        self._test = StandingTest(gradients.gradients, model, Rounding(model, gradients.gradients_of))
        self._moments, self._void = Moments(stream), void
        self._lot: _Lot | None = None  # drawn last, and not tested yet
        self._newest, self._last = -1, -1  # the numbers of the lots drawn last and tested last
        self.tested, self.before_claims = 0, 0

    def resumed(self, tested: int, before_claims: int, stream: Rng, *, replayed: bool) -> None:
        """A state was loaded, in which so many tests were made, and so many of them for claims."""
        self.tested, self.before_claims = tested, before_claims
        self._moments = Moments(stream, replayed=replayed)

    def drawn(self, number: int, load: Reads, indices: NDArray[np.int64], n: int, chunk: int) -> None:
        """A lot was drawn, of a dataset of n records; it is processed `chunk` records at a time."""
        self._newest = number
        self._lot = _Lot(number, load, indices, n, chunk)

    def before_backward(self, inventory: Inventory, *, released: bool) -> None:
        """Test the lot if its moment has come; `released`: a step was made on what was released."""
        if self._lot is not None and self._moments.due(self._lot.number, mark_of(inventory)):
            early = self._lot.number < _EARLY
            self._made(self._ranks, released=released, thorough=early, whole=_WHOLE_EARLY if early else _WHOLE)

    def before_claim(self, *, over: bool) -> None:
        """Tests the last lot if it was not tested yet, so that no end goes untested; `over`: no lot follows."""
        if self._lot is not None and self._moments.before_claim(self._lot.number, self._last, over=over):
            self.before_claims += 1
            whole = 1.0 if self.before_claims <= _FIRST else _WHOLE_EARLY
            self._made(None, released=True, thorough=True, whole=whole)  # who claims may be one rank alone

    def before_log(self) -> None:
        """Tests the last lot if none was tested for long: ε in logs must not go on over a run that became coupled."""
        if self._lot is not None and self._moments.before_log(self._lot.number, self._last):
            self._made(None, released=True, thorough=False, whole=0.0)

    @property
    def untested(self) -> int:
        """How many lots came after the last one that was tested."""
        return self._newest - self._last

    def _made(self, ranks: Ranks | None, *, released: bool, thorough: bool, whole: float) -> None:
        """Make the test; `whole`: the chance that it is made on a whole batch too."""
        lot, self._lot = self._lot, None
        assert lot is not None, "a lot was drawn"
        stream = self._moments.stream(lot.number, self.tested)
        extremes = len(EXTREMES) if lot.number < _FIRST else _SOME if thorough else 1

        def test() -> Finding | None:
            ask = partial(self._test, lot.load, lot.indices, lot.n, stream, extremes=extremes)
            found = ask(thorough=thorough)
            if found is None and (self.tested == 0 or float(stream.uniform(1)[0]) < whole):
                found = ask(thorough=False, whole=lot.chunk)
            return found

        with self._whole():
            finding = test() if ranks is None else first_of(ranks, test, "a standing test", lot.number)
        self.tested, self._last = self.tested + 1, lot.number
        if finding is not None:
            if not released:
                raise Refusal(str(finding))
            self._void(str(finding))

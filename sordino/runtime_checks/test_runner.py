"""Test runner: when a neighbour test is made, on which lot, and what comes of a failure.

Most of a test is made right after the lot's own training pass, which it shares, and before anything of the lot is
written to `.grad`. Before an optimizer has stepped on a released gradient a failure is refused: nothing is lost. Later the
claim is void.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sordino.distributed.process_group import Ranks
from sordino.distributed.shared_lot import first_of
from sordino.lots.loading import Reads
from sordino.lots.lot_gradients import LotGradients
from sordino.per_sample import batch_structure as batches
from sordino.per_sample.model_inventory import Inventory
from sordino.per_sample.spectral_norm import left_unmoved, vectors_of
from sordino.per_sample.unit_loss import UnitBatch
from sordino.per_sample.user_state import UserState
from sordino.refusal import Refusal
from sordino.rng.named_draws import Drawn, drawn_by
from sordino.rng.streams import Rng
from sordino.runtime_checks.alterations import ALTERATIONS
from sordino.runtime_checks.check_schedule import CheckPieces, CheckSchedule, mark_of
from sordino.runtime_checks.coupling_finding import CouplingFinding
from sordino.runtime_checks.double_precision import Rounding
from sordino.runtime_checks.lot_pass import OwnPass, OwnPassTest, Remembered
from sordino.runtime_checks.neighbour_test import StandingTest

_FIRST, _EARLY = 2, 100
"""Lots up to which a test tries every extreme record, and asks every question."""
_NAMED = 4
"""Records in the pass on which the model's random operations are looked at."""
_SOME = 2
"""Extreme records that a test which asks every question tries after those, beside a real one; others try one."""
_AS_BEFORE = 0.5
"""The share of tests beside a lot's own pass that begin in the state in which that pass began."""
_WHOLE_EARLY, _WHOLE = 1 / 3, 1 / 8
"""The share of tests that are made on a whole batch of training too, up to lot `_EARLY` and after it, where a test is made
in passes of its own: before claims, and where ranks train together."""


@dataclass(frozen=True)
class _Lot:
    """A lot that was drawn and is not tested yet."""

    number: int
    load: Reads
    indices: NDArray[np.int64]
    n: int
    chunk: int  # records that training runs at once, at most
    last: bool  # of those that were asked for


@dataclass(frozen=True)
class _Armed:
    """A test that waits for the lot's own pass."""

    lot: _Lot
    pieces: CheckPieces
    own: OwnPass
    stream: Rng
    released: bool
    first: bool  # no test was made before
    changed: bool  # the model did, since the lot before
    state: UserState | None  # of the user's objects before the lot's own pass


class Guard:
    """Makes the neighbour tests of one run."""

    def __init__(
        self,
        model: nn.Module,
        gradients: LotGradients,
        void: Callable[[str], None],
        stream: Rng,
        ranks: Ranks | None = None,
    ) -> None:
        self._ranks, self._gradients, self._model = ranks, gradients, model
        rounding = Rounding(model, gradients.gradients_of)
        self._code = [model, gradients.loss_fn]
        self._test = StandingTest(gradients.gradients, model, rounding, code=[gradients.loss_fn])
        self._own_test = OwnPassTest(gradients.gradients, model, rounding)
        self._moments, self._void = CheckSchedule(stream), void
        self._lot: _Lot | None = None  # drawn last, and not tested yet
        self._newest, self._last = -1, -1  # the numbers of the lots drawn last and tested last
        self._ends = 0  # calls of `draws` whose last lot was tested
        self._armed: _Armed | None = None
        self._drawn: Drawn | None = None  # what the model's passes draw at random, once that is known
        self.tested, self.before_claims = 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Returns what a resumed run must know to test the same lots, as JSON."""
        drawn = None if self._drawn is None else self._drawn.name
        return {"tested": [self.tested, self.before_claims], "drawn": drawn}

    def resumed(self, state: Mapping[str, Any], stream: Rng, *, replayed: bool) -> None:
        """Goes on from a saved state, in which some tests were made, and some of them for claims."""
        self.tested, self.before_claims = state.get("tested", (0, 0))
        drawn = state.get("drawn")
        self._drawn = None if drawn is None else Drawn[drawn]
        self._moments = CheckSchedule(stream, replayed=replayed)

    def drawn(
        self, number: int, load: Reads, indices: NDArray[np.int64], n: int, chunk: int, *, last: bool = False
    ) -> None:
        """Notes that a lot was drawn, of a dataset of n records; it is processed `chunk` records at a time."""
        self._newest = number
        self._lot = _Lot(number, load, indices, n, chunk, last)

    def before_backward(self, inventory: Inventory, *, released: bool) -> None:
        """Tests the lot if its moment has come, or prepares to do so after its own pass.

        Args:
            inventory: the model as it is now.
            released: whether a step was made on what was released.

        """
        self._armed, self._gradients.watcher = None, None
        lot = self._lot
        if lot is None:
            return
        # The schedule decides; the last lot of a call of `draws` is tested too.
        due = self._moments.due(lot.number, mark_of(inventory), self._drawn)
        last = lot.last and self._moments.at_the_end(lot.number, self._last, self._ends)
        if not (due or last):
            return
        self._ends += int(lot.last)
        # Ranks share no pass with training, so that all of them make the same passes.
        if self._ranks is not None:
            early = lot.number < _EARLY
            whole = _WHOLE_EARLY if early else _WHOLE
            self._ask_in_passes_of_its_own(self._ranks, released=released, thorough=early, whole=whole)
            return
        self._lot = None
        pieces = self._moments.pieces(lot.number, self.tested, self._drawn, last=last)
        stream = self._moments.stream(lot.number, self.tested)
        # The questions on a few records come before the training pass, as that is where a wrong model is refused first.
        if pieces.few:
            self._conclude(self._ask_few(lot, stream, thorough=pieces.thorough), released=released)
        # The other questions wait for the training pass, which the watcher remembers.
        own = OwnPass(stream, exchange=pieces.exchange, device=self._gradients.device)
        state = None
        if pieces.company or pieces.exchange:
            self._gradients.watcher = own
            state = UserState([*self._code, *lot.load.code()])
        changed = self._moments.changed
        self._armed = _Armed(lot, pieces, own, stream, released, self.tested == 0, changed, state)
        self.tested, self._last = self.tested + 1, lot.number

    def after_pass(self) -> None:
        """Makes the rest of a test, after the lot's own pass and before anything of the lot is written to `.grad`."""
        armed, self._armed, self._gradients.watcher = self._armed, None, None
        if armed is not None and armed.state is not None:
            # What the user's objects keep is for the passes of training; a test leaves it as it was.
            now = UserState([*self._code, *armed.lot.load.code()])
            try:
                finding = self._ask_after_pass(armed, armed.state)
            finally:
                now.put_back()
            self._conclude(finding, released=armed.released)

    def before_claim(self, *, over: bool) -> None:
        """Tests the last lot if it was not tested yet, so that no end goes untested; `over`: no lot follows."""
        if self._lot is not None and self._moments.before_claim(self._lot.number, self._last, over=over):
            self.before_claims += 1
            # A loop may print a claim at every evaluation, so only the end is asked everything. One rank alone may claim.
            whole = 1.0 if over else _WHOLE
            self._ask_in_passes_of_its_own(None, released=True, thorough=over, whole=whole)

    def before_log(self) -> None:
        """Tests the last lot if none was tested for long: ε in logs must not go on over a run that became coupled."""
        if self._lot is not None and self._moments.before_log(self._lot.number, self._last):
            self._ask_in_passes_of_its_own(None, released=True, thorough=False, whole=0.0)

    @property
    def untested(self) -> int:
        """How many lots came after the last one that was tested."""
        return self._newest - self._last

    def _ask_after_pass(self, armed: _Armed, before_pass: UserState) -> CouplingFinding | None:
        """Asks the questions that share the lot's own pass, and what they could not answer in passes of their own.

        Half of the times they begin in the state that the user's objects had before the lot's own pass, so that a statistic
        that was kept from it is computed anew; else in the one that it left, so that what is kept of one batch for the next
        shows.
        """
        lot, own = armed.lot, armed.own.remembered
        # Without a pass to compare with, the questions are asked on a few records.
        if own is None:  # the lot was empty, or its gradients cannot be compared from pass to pass
            if self._drawn is None and armed.own.batch is not None:
                self._drawn = self._find_draws(armed.own.batch)
            return None if armed.pieces.few else self._ask_few(lot, armed.stream, thorough=armed.pieces.thorough)
        before = self._drawn
        self._drawn = self._learn(own, changed=armed.changed)
        # The cheapest question first: the same records in other company.
        finding = None
        answered = armed.pieces.few
        if armed.pieces.company and not own.random and self._own_test.company_applies:
            if float(armed.stream.uniform(1)[0]) < _AS_BEFORE:
                before_pass.put_back()
            ask = self._own_test.in_other_company
            finding = ask(own, lot.load, lot.indices, lot.n, lot.chunk, armed.stream)
            answered = answered or self._own_test.company_applies
        elif armed.first:
            # Other company cannot be tried, so once a whole batch goes through dataset and collate in passes of its own.
            ask_whole = partial(self._test, lot.load, lot.indices, lot.n, armed.stream)
            finding = ask_whole(extremes=1, thorough=False, whole=lot.chunk)
        # Rows of the training batch exchanged, at the size that training has.
        if finding is None and armed.pieces.exchange:
            before_pass.put_back()
            finding = self._own_test.with_rows_exchanged(own, armed.stream)
        # What could not be answered is asked in passes of its own.
        if finding is None and (not answered or before is Drawn.NOTHING is not self._drawn):
            finding = self._ask_few(lot, armed.stream, thorough=lot.number < _EARLY)
        return finding

    def _learn(self, own: Remembered, *, changed: bool) -> Drawn:
        """Returns what the model's passes draw at random, as far as is known.

        Args:
            own: the lot's own pass.
            changed: whether the model changed since the lot before, so that what was known of it may be wrong.

        """
        if not own.random:
            # If records are read with random changes, tests must be made in passes of their own all the same.
            return Drawn.NOTHING if self._own_test.company_applies else Drawn.MASKS
        if self._drawn in (Drawn.MASKS, Drawn.OTHER) and not changed:
            return self._drawn
        return self._find_draws(own.batch)

    def _find_draws(self, batch: Any) -> Drawn:
        """Returns what a pass over a few rows of a batch draws: masks or something else.

        If it draws nothing, something else than the loss does: an engine that estimates lengths by random directions.
        """
        gradients = self._gradients
        if type(batch) is UnitBatch or not batches.size(batch):
            return Drawn.OTHER
        rows = batches.to(batches.take(batch, slice(0, _NAMED)), gradients.device)
        loss, devices = gradients.loss_for(rows), [gradients.device.index or 0] * int(gradients.device.type == "cuda")
        with left_unmoved(vectors_of(list(self._model.modules()))):
            found = drawn_by(lambda: batches.losses(loss, self._model, rows), devices)
        return Drawn.MASKS if found is Drawn.NOTHING else found

    def _ask_few(self, lot: _Lot, stream: Rng, *, thorough: bool) -> CouplingFinding | None:
        """Asks the questions on a few records, in passes of their own."""
        extremes = len(ALTERATIONS) if lot.number < _FIRST else _SOME if thorough else 1
        return self._test(lot.load, lot.indices, lot.n, stream, extremes=extremes, thorough=thorough)

    def _ask_in_passes_of_its_own(self, ranks: Ranks | None, *, released: bool, thorough: bool, whole: float) -> None:
        """Makes a test that shares no pass with training.

        Args:
            ranks: the processes that must agree on the outcome; None if this one decides alone.
            released: whether a step was made on what was released.
            thorough: whether every question is asked.
            whole: the chance that the test is made on a whole batch too.

        """
        lot, self._lot = self._lot, None
        assert lot is not None, "a lot was drawn"
        stream = self._moments.stream(lot.number, self.tested)

        def test() -> CouplingFinding | None:
            found = self._ask_few(lot, stream, thorough=thorough)
            if found is None and (self.tested == 0 or float(stream.uniform(1)[0]) < whole):
                ask_whole = partial(self._test, lot.load, lot.indices, lot.n, stream)
                found = ask_whole(extremes=_SOME if thorough else 1, thorough=False, whole=lot.chunk)
            return found

        # A sharded model is gathered for the test; all ranks agree on its outcome.
        with self._gradients.whole():
            finding = test() if ranks is None else first_of(ranks, test, "a standing test", lot.number)
        self.tested, self._last = self.tested + 1, lot.number
        self._conclude(finding, released=released)

    def _conclude(self, finding: CouplingFinding | None, *, released: bool) -> None:
        """Refuses, or voids the claim, if something was found."""
        if finding is None:
            return
        if not released:
            raise Refusal(str(finding))
        self._void(str(finding))

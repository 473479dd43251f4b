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
from sordino.distributed.shared_lot import first_finding
from sordino.lots.loading import BatchReader
from sordino.lots.lot_gradients import LotGradients
from sordino.per_sample import batch_structure as batches
from sordino.per_sample.model_inventory import Inventory
from sordino.per_sample.spectral_norm import find_spectral_vectors, keep_vectors
from sordino.per_sample.unit_loss import UnitBatch
from sordino.per_sample.user_state import UserState
from sordino.refusal import Refusal
from sordino.rng.named_draws import RandomDraws, find_random_draws
from sordino.rng.streams import Rng
from sordino.runtime_checks.alterations import ALTERATIONS
from sordino.runtime_checks.check_schedule import CheckPieces, CheckSchedule, fingerprint_of
from sordino.runtime_checks.coupling_finding import CouplingFinding
from sordino.runtime_checks.double_precision import DoublePrecision
from sordino.runtime_checks.lot_pass import OwnPass, OwnPassTest, RememberedPass
from sordino.runtime_checks.neighbour_test import NeighbourTest

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
class _PendingTestLot:
    """A lot that was drawn and is not tested yet."""

    number: int
    load: BatchReader
    indices: NDArray[np.int64]
    n: int
    chunk: int  # records that training runs at once, at most
    is_last: bool  # of those that were asked for


@dataclass(frozen=True)
class _WaitingTest:
    """A test that waits for the lot's own pass."""

    lot: _PendingTestLot
    pieces: CheckPieces
    training_pass: OwnPass
    stream: Rng
    step_was_taken: bool
    is_first: bool  # no test was made before
    model_changed: bool  # the model did, since the lot before
    state: UserState | None  # of the user's objects before the lot's own pass


class NeighbourTestRunner:
    """Makes the neighbour tests of one run."""

    def __init__(
        self,
        model: nn.Module,
        gradients: LotGradients,
        void: Callable[[str], None],
        stream: Rng,
        ranks: Ranks | None = None,
    ) -> None:
        # What is tested, and by which tests.
        self._ranks, self._gradients, self._model = ranks, gradients, model
        rounding = DoublePrecision(model, gradients.compute_gradients_of_model)
        self._code = [model, gradients.loss_fn]
        self._test = NeighbourTest(gradients.compute_gradients, model, rounding, code=[gradients.loss_fn])
        self._own_test = OwnPassTest(gradients.compute_gradients, model, rounding)
        self._schedule, self._void = CheckSchedule(stream), void
        # Where the run is, and what has been tested so far.
        self._lot: _PendingTestLot | None = None  # drawn last, and not tested yet
        self._newest, self._last_tested = -1, -1  # the numbers of the lots drawn last and tested last
        self._ends = 0  # calls of `draws` whose last lot was tested
        self._waiting_test: _WaitingTest | None = None
        self._random_draws: RandomDraws | None = None  # what the model's passes draw at random, once that is known
        self.tested, self.before_claims = 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Returns what a resumed run must know to test the same lots, as JSON."""
        drawn = None if self._random_draws is None else self._random_draws.name
        return {"tested": [self.tested, self.before_claims], "drawn": drawn}

    def resume_from(self, state: Mapping[str, Any], stream: Rng, *, replayed: bool) -> None:
        """Continues the runner of neighbour tests from a saved state, which counts the tests made, and those made for
        claims.
        """
        self.tested, self.before_claims = state.get("tested", (0, 0))
        drawn = state.get("drawn")
        self._random_draws = None if drawn is None else RandomDraws[drawn]
        self._schedule = CheckSchedule(stream, replayed=replayed)

    def note_lot(
        self, number: int, load: BatchReader, indices: NDArray[np.int64], n: int, chunk: int, *, last: bool = False
    ) -> None:
        """Tells the runner of neighbour tests which lot was drawn, of a dataset of n records; it is processed `chunk`
        records at a time.
        """
        self._newest = number
        self._lot = _PendingTestLot(number, load, indices, n, chunk, last)

    def forget_lot(self) -> None:
        """Forgets the lot drawn last, so that it is not tested."""
        self._lot = None

    def before_backward(self, inventory: Inventory, *, step_was_taken: bool) -> None:
        """Runs the neighbour test on the lot before its backward pass if the schedule says so, or prepares to run it
        after the lot's own pass.

        Args:
            inventory: the model as it is now.
            step_was_taken: whether a step was made on what was released.

        """
        self._waiting_test, self._gradients.watcher = None, None
        lot = self._lot
        if lot is None:
            return
        # The schedule decides; the last lot of a call of `draws` is tested too.
        due = self._schedule.is_due(lot.number, fingerprint_of(inventory), self._random_draws)
        last = lot.is_last and self._schedule.is_due_at_the_end(lot.number, self._last_tested, self._ends)
        if not (due or last):
            return
        self._ends += int(lot.is_last)
        # Ranks share no pass with training, so that all of them make the same passes.
        if self._ranks is not None:
            early = lot.number < _EARLY
            whole = _WHOLE_EARLY if early else _WHOLE
            self._ask_in_passes_of_its_own(
                self._ranks, step_was_taken=step_was_taken, thorough=early, full_batch_probability=whole
            )
            return
        self._lot = None
        pieces = self._schedule.choose_pieces(lot.number, self.tested, self._random_draws, last=last)
        stream = self._schedule.stream_for(lot.number, self.tested)
        # The questions on a few records come before the training pass, as that is where a wrong model is refused first.
        if pieces.ask_few_records:
            self._conclude(
                self._ask_on_few_records(lot, stream, thorough=pieces.ask_all_questions), step_was_taken=step_was_taken
            )
        # The other questions wait for the training pass, which the watcher remembers.
        own = OwnPass(stream, exchange=pieces.ask_with_rows_exchanged)
        state = None
        if pieces.ask_in_other_company or pieces.ask_with_rows_exchanged:
            self._gradients.watcher = own
            state = UserState([*self._code, *lot.load.list_user_code()])
        changed = self._schedule.model_changed
        self._waiting_test = _WaitingTest(lot, pieces, own, stream, step_was_taken, self.tested == 0, changed, state)
        self.tested, self._last_tested = self.tested + 1, lot.number

    def after_pass(self) -> None:
        """Runs the rest of a neighbour test, after the lot's own pass and before anything of the lot is written to
        `.grad`.
        """
        armed, self._waiting_test, self._gradients.watcher = self._waiting_test, None, None
        if armed is not None and armed.state is not None:
            # What the user's objects keep is for the passes of training; a test leaves it as it was.
            now = UserState([*self._code, *armed.lot.load.list_user_code()])
            try:
                finding = self._ask_after_pass(armed, armed.state)
            finally:
                now.put_back()
            self._conclude(finding, step_was_taken=armed.step_was_taken)

    def before_claim(self, *, over: bool) -> None:
        """Runs the neighbour test on the last lot before a claim if it was not tested yet, so that no end goes
        untested; `over`: no lot follows.
        """
        if self._lot is not None and self._schedule.is_due_before_claim(self._lot.number, self._last_tested, over=over):
            self.before_claims += 1
            # A loop may print a claim at every evaluation, so only the end is asked everything. One rank alone may claim.
            whole = 1.0 if over else _WHOLE
            self._ask_in_passes_of_its_own(None, step_was_taken=True, thorough=over, full_batch_probability=whole)

    def before_log(self) -> None:
        """Tests the last lot if none was tested for long: ε in logs must not go on over a run that became coupled."""
        if self._lot is not None and self._schedule.is_due_before_log(self._lot.number, self._last_tested):
            self._ask_in_passes_of_its_own(None, step_was_taken=True, thorough=False, full_batch_probability=0.0)

    @property
    def untested(self) -> int:
        """How many lots came after the last one that was tested."""
        return self._newest - self._last_tested

    def _ask_after_pass(self, armed: _WaitingTest, before_pass: UserState) -> CouplingFinding | None:
        """Runs the questions of the neighbour test that share the lot's own pass, and in passes of their own what those
        could not answer.

        Half of the times they begin in the state that the user's objects had before the lot's own pass, so that a statistic
        that was kept from it is computed anew; else in the one that it left, so that what is kept of one batch for the next
        shows.
        """
        lot, training_pass = armed.lot, armed.training_pass.remembered
        # Without a pass to compare with, the questions are asked on a few records.
        if training_pass is None:  # the lot was empty, or its gradients cannot be compared from pass to pass
            if self._random_draws is None and armed.training_pass.batch is not None:
                self._random_draws = self._find_random_draws(armed.training_pass.batch)
            return (
                None
                if armed.pieces.ask_few_records
                else self._ask_on_few_records(lot, armed.stream, thorough=armed.pieces.ask_all_questions)
            )
        before = self._random_draws
        self._random_draws = self._learn_random_draws(training_pass, changed=armed.model_changed)
        # The cheapest question first: the same records in other company.
        finding = None
        answered = armed.pieces.ask_few_records
        if armed.pieces.ask_in_other_company and not training_pass.random and self._own_test.company_applies:
            if float(armed.stream.uniform(1)[0]) < _AS_BEFORE:
                before_pass.put_back()
            ask = self._own_test.ask_in_other_company
            finding = ask(training_pass, lot.load, lot.indices, lot.n, lot.chunk, armed.stream)
            answered = answered or self._own_test.company_applies
        elif armed.is_first:
            # Other company cannot be tried, so once a whole batch goes through dataset and collate in passes of its own.
            ask_whole = partial(self._test, lot.load, lot.indices, lot.n, armed.stream)
            finding = ask_whole(extremes=1, thorough=False, full_batch_size=lot.chunk)
        # Rows of the training batch exchanged, at the size that training has.
        if finding is None and armed.pieces.ask_with_rows_exchanged:
            before_pass.put_back()
            finding = self._own_test.ask_with_rows_exchanged(training_pass, armed.stream)
        # What could not be answered is asked in passes of its own.
        if finding is None and (not answered or before is RandomDraws.NOTHING is not self._random_draws):
            finding = self._ask_on_few_records(lot, armed.stream, thorough=lot.number < _EARLY)
        return finding

    def _learn_random_draws(self, training_pass: RememberedPass, *, changed: bool) -> RandomDraws:
        """Returns what the model's passes draw at random, as far as the runner of neighbour tests knows.

        Args:
            training_pass: the lot's own pass.
            changed: whether the model changed since the lot before, so that what was known of it may be wrong.

        """
        if not training_pass.random:
            # If records are read with random changes, tests must be made in passes of their own all the same.
            return RandomDraws.NOTHING if self._own_test.company_applies else RandomDraws.MASKS
        if self._random_draws in (RandomDraws.MASKS, RandomDraws.OTHER) and not changed:
            return self._random_draws
        return self._find_random_draws(training_pass.batch)

    def _find_random_draws(self, batch: Any) -> RandomDraws:
        """Returns what a pass over a few rows of a batch draws, masks or something else, so that the test runner knows
        which neighbour test applies.

        If it draws nothing, something else than the loss does: an engine that estimates lengths by random directions.
        """
        gradients = self._gradients
        if type(batch) is UnitBatch or not batches.batch_size(batch):
            return RandomDraws.OTHER
        rows = batches.move_to(batches.take_rows(batch, slice(0, _NAMED)), gradients.pass_model.device)
        loss = gradients.loss_for(rows)
        with keep_vectors(find_spectral_vectors(list(self._model.modules()))):
            draws = find_random_draws(lambda: batches.call_loss(loss, self._model, rows))
        return RandomDraws.MASKS if draws is RandomDraws.NOTHING else draws

    def _ask_on_few_records(self, lot: _PendingTestLot, stream: Rng, *, thorough: bool) -> CouplingFinding | None:
        """Asks the questions on a few records, in passes of their own."""
        extremes = len(ALTERATIONS) if lot.number < _FIRST else _SOME if thorough else 1
        return self._test(lot.load, lot.indices, lot.n, stream, extremes=extremes, thorough=thorough)

    def _ask_in_passes_of_its_own(
        self, ranks: Ranks | None, *, step_was_taken: bool, thorough: bool, full_batch_probability: float
    ) -> None:
        """Runs a neighbour test that shares no pass with training.

        Args:
            ranks: the processes that must agree on the outcome; None if this one decides alone.
            step_was_taken: whether a step was made on what was released.
            thorough: whether every question is asked.
            full_batch_probability: the chance that the test is made on a whole batch too.

        """
        lot, self._lot = self._lot, None
        assert lot is not None, "a lot was drawn"
        stream = self._schedule.stream_for(lot.number, self.tested)

        def find_coupling() -> CouplingFinding | None:
            """Runs the neighbour test on a few records of the lot and, at the first test or with some probability, on a
            full batch.
            """
            # A few records first, which is cheap; a full batch at the first test and sometimes later, because some
            # couplings show only at training size.
            finding = self._ask_on_few_records(lot, stream, thorough=thorough)
            if finding is None and (self.tested == 0 or float(stream.uniform(1)[0]) < full_batch_probability):
                ask_whole = partial(self._test, lot.load, lot.indices, lot.n, stream)
                finding = ask_whole(extremes=_SOME if thorough else 1, thorough=False, full_batch_size=lot.chunk)
            return finding

        # A sharded model is gathered for the test; all ranks agree on its outcome.
        with self._gradients.pass_model.gathered_parameters():
            finding = (
                find_coupling()
                if ranks is None
                else first_finding(ranks, find_coupling, "a neighbour test", lot.number)
            )
        # The lot counts as tested whatever was found, and the finding is acted on at the end.
        self.tested, self._last_tested = self.tested + 1, lot.number
        self._conclude(finding, step_was_taken=step_was_taken)

    def _conclude(self, finding: CouplingFinding | None, *, step_was_taken: bool) -> None:
        """Draws the consequence of a failed neighbour test: refuses before the first step, and voids the claim after
        it.
        """
        if finding is None:
            return
        if not step_was_taken:
            raise Refusal(str(finding))
        self._void(str(finding))

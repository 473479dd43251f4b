"""Test runner: at which lots the neighbour test is made, how much of it, and what comes of a failure.

The schedule is a secret of the run, so that no code can behave just then. Lot k of a run is tested with probability

    p_k = max(p, min(1, 2/k))        p = 1/50, or 1/100 for models whose passes draw at random

so the first lots are tested, then fewer and fewer of them. A lot is tested too if the model changed its mode, its modules,
its hooks or what is trained, and the last lot of a call of `draws` is tested, so that no run ends untested.

What is asked at a tested lot is chosen so that the tests take a small share of the run. The first test asks every question.
Later ones ask the cheapest question that sees the most, which is whether records have in other company what they had in the
lot's own pass (`runtime_checks/lot_pass.py`), and the dearer ones now and then. Which pieces are asked depends on coins, on
the lot's number and on whether the model draws at random: on nothing in the records, and on no clock.

Most of a test is made right after the lot's own training pass, which it shares, and before anything of the lot is
written to `.grad`. Before an optimizer has stepped on a released gradient a failure is refused: nothing is lost. Later the
claim is void.

Privacy: the coins are the run's own, apart from noise and draws; a test releases nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
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
from sordino.per_sample.model_inventory import Inventory, find_spectral_vectors, keep_vectors
from sordino.per_sample.unit_loss import UnitBatch
from sordino.per_sample.user_state import UserState
from sordino.refusal import Refusal
from sordino.rng.named_draws import RandomDraws, find_random_draws
from sordino.rng.streams import Rng
from sordino.runtime_checks.alterations import ALTERATIONS
from sordino.runtime_checks.coupling_finding import CouplingFinding
from sordino.runtime_checks.double_precision import DoublePrecision
from sordino.runtime_checks.lot_pass import OwnPass, OwnPassTest, RememberedPass
from sordino.runtime_checks.neighbour_test import NeighbourTest

_LASTING, _LASTING_RANDOM = 0.02, 0.01
"""The share of lots tested in a long run; the second where passes draw at random, whose tests cost more."""
_DENSE = 2.0
"""Lots tested for certain at the beginning; from there the share falls as 2/k."""
_END = 16
"""One in so many of the lots so far may be untested at the end, for a claim in the middle of a run."""
_ENDS = 4
"""Calls of `draws` whose last lot is always tested."""
_LOGGED, _SOON = 4, 20
"""One in so many of the lots so far may be untested before an ε in a log; and so many lots always may."""
_EARLY = 100
"""Lots up to which tests ask more, or every question."""
_EXCHANGE, _EXCHANGE_RANDOM = 1 / 16, 1 / 6
"""The share of tests that exchange rows of a whole training batch. A model that draws nothing at random is compared at that
size by every test; for others the second share holds up to lot `_EARLY`, and the first after it."""
_FEW, _THOROUGH = 1 / 8, 1 / 8
"""The share of tests that ask the questions on a few records besides, where the cheapest question can be asked; and the
share of tests on a few records that ask all questions, where masks of dropout are all that is drawn."""

_FIRST = 2
"""Lots up to which a test tries every extreme record."""
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
class CheckPieces:
    """What is asked at one tested lot."""

    ask_few_records: bool  # the questions on a few records, in passes of their own
    ask_all_questions: bool  # all of those
    ask_in_other_company: bool  # records of the lot's own pass in other company
    ask_with_rows_exchanged: bool  # rows of the lot's own pass exchanged


class CheckSchedule:
    """Decides, lot by lot."""

    def __init__(self, stream: Rng, *, replayed: bool = False) -> None:
        """A replayed run tests the lots it would have tested: its first look is no change of the model."""
        self._stream, self._replayed = stream, replayed
        self._mark: Hashable = None
        self.model_changed = True  # the model, since the last lot

    def is_due(self, lot: int, mark: Hashable, drawn: RandomDraws | None = None) -> bool:
        """Returns whether the test runner's schedule has the neighbour test made at a lot.

        Args:
            lot: its number.
            mark: what the model looks like now.
            drawn: what the model's passes draw at random, if that is known.

        """
        self.model_changed, self._mark = mark != self._mark and not (self._mark is None and self._replayed), mark
        lasting_share = _LASTING if drawn is RandomDraws.NOTHING else _LASTING_RANDOM
        chance = max(lasting_share, min(1.0, _DENSE / max(lot, 1)))
        tossed = chance == 1.0 or self._toss_coin("coin", lot) < chance
        return self.model_changed or tossed

    def choose_pieces(self, lot: int, tested: int, drawn: RandomDraws | None, *, last: bool) -> CheckPieces:
        """Returns which pieces of the neighbour test the test runner's schedule asks for at a lot that is tested.

        Args:
            lot: its number.
            tested: how many tests were made before.
            drawn: what the model's passes draw at random; None before that is known.
            last: whether this is the last lot that was asked for.

        """
        early = lot < _EARLY
        # The first test, and one after the model changed, ask every question.
        if drawn is None or tested == 0 or self.model_changed:
            return CheckPieces(
                ask_few_records=True, ask_all_questions=True, ask_in_other_company=True, ask_with_rows_exchanged=True
            )
        exchange = _EXCHANGE_RANDOM if early and drawn is not RandomDraws.NOTHING else _EXCHANGE
        exchanged = last or self._toss_coin("exchange", lot) < exchange
        # Without randomness the cheapest question sees the most; with it, questions need passes of their own.
        if drawn is RandomDraws.NOTHING:
            return CheckPieces(
                self._toss_coin("few", lot) < _FEW,
                ask_all_questions=early,
                ask_in_other_company=True,
                ask_with_rows_exchanged=exchanged,
            )
        thorough = early and (drawn is RandomDraws.OTHER or self._toss_coin("thorough", lot) < _THOROUGH)
        return CheckPieces(
            ask_few_records=True,
            ask_all_questions=thorough,
            ask_in_other_company=False,
            ask_with_rows_exchanged=exchanged,
        )

    def stream_for(self, lot: int, number: int) -> Rng:
        """Returns the stream of the secret choices of one test."""
        return self._stream.child("choices", lot, number)

    def is_due_before_claim(self, lot: int, last_tested: int, *, over: bool) -> bool:
        """Returns whether the test runner's schedule has the last lot tested before a claim, so that no end of a run
        goes untested.

        The claim after the last lot always is. Claims in the middle of a run are many if a loop prints one at every
        lot: they are tested when a sixteenth of the lots so far came after the last test.
        """
        return over or lot - last_tested >= max(1, lot // _END)

    def is_due_before_log(self, lot: int, last_tested: int) -> bool:
        """Returns whether the last lot is tested before ε goes into a log: if none of the last quarter of the lots was."""
        return lot - last_tested >= max(_SOON, lot // _LOGGED)

    def is_due_at_the_end(self, lot: int, last_tested: int, ends: int) -> bool:
        """Returns whether the test runner's schedule has the last lot of a call of `draws` tested right after its own
        pass, and not by the claim.

        A loop may call `draws` once for every epoch, or for every lot: after the first few of such ends a lot is tested
        when a sixteenth of the lots so far came after the last test.
        """
        return ends < _ENDS or self.is_due_before_claim(lot, last_tested, over=False)

    def _toss_coin(self, purpose: str, lot: int) -> float:
        """Returns a uniform number between 0 and 1, the same for the same lot."""
        return float(self._stream.child(purpose, lot).uniform(1)[0])


def fingerprint_of(inventory: Inventory) -> Hashable:
    """Returns a fingerprint of what can change how a model treats its records; when it changes, the test runner has the
    model tested anew.

    That are its modules, their modes and hooks, and which parameters are trained.
    """
    modules = inventory.modules
    hooked = [
        (id(m), *m._forward_hooks, -1, *m._forward_pre_hooks, -1, *m._backward_hooks)
        for m in modules
        if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks
    ]
    return inventory.mark, tuple([m.training for m in modules]), tuple(hooked)


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
        # One look at what the user's objects hold serves all questions: each of them leaves the state as it was.
        before_pass = UserState([*self._code, *lot.load.list_user_code()])
        # The questions on a few records come before the training pass, as that is where a wrong model is refused first.
        if pieces.ask_few_records:
            self._conclude(
                self._ask_on_few_records(lot, stream, thorough=pieces.ask_all_questions, state=before_pass),
                step_was_taken=step_was_taken,
            )
        # The other questions wait for the training pass, which the watcher remembers.
        own = OwnPass(stream, exchange=pieces.ask_with_rows_exchanged)
        state = None
        if pieces.ask_in_other_company or pieces.ask_with_rows_exchanged:
            self._gradients.watcher, state = own, before_pass
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

    def _ask_on_few_records(
        self, lot: _PendingTestLot, stream: Rng, *, thorough: bool, state: UserState | None = None
    ) -> CouplingFinding | None:
        """Runs the questions of the neighbour test on a few records, in passes of their own.

        Args:
            lot: the lot that is tested.
            stream: the secret choices of this test.
            thorough: whether every question is asked.
            state: what the user's objects hold now, if that was taken already.

        """
        extremes = len(ALTERATIONS) if lot.number < _FIRST else _SOME if thorough else 1
        return self._test(lot.load, lot.indices, lot.n, stream, extremes=extremes, thorough=thorough, state=state)

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

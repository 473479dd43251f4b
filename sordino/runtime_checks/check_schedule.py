"""Check schedule: at which lots the neighbour test is made, and how much of it.

The schedule is a secret of the run, so that no code can behave just then.

Lot k of a run is tested with probability

    p_k = max(p, min(1, 2/k))        p = 1/50, or 1/100 for models whose passes draw at random

so the first lots are tested, then fewer and fewer of them. A lot is tested too if the model changed its mode, its modules,
its hooks or what is trained, and the last lot of a call of `draws` is tested, so that no run ends untested.

What is asked at a tested lot is chosen so that the tests take a small share of the run. The first test asks every question.
Later ones ask the cheapest question that sees the most, which is whether records have in other company what they had in the
lot's own pass (`runtime_checks/lot_pass.py`), and the dearer ones now and then. Which pieces are asked depends on coins, on
the lot's number and on whether the model draws at random: on nothing in the records, and on no clock.

Privacy: the coins are the run's own, apart from noise and draws; a test releases nothing.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from sordino.per_sample.model_inventory import Inventory
from sordino.rng.named_draws import RandomDraws
from sordino.rng.streams import Rng

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
"""Lots up to which tests ask more."""
_EXCHANGE, _EXCHANGE_RANDOM = 1 / 16, 1 / 6
"""The share of tests that exchange rows of a whole training batch. A model that draws nothing at random is compared at that
size by every test; for others the second share holds up to lot `_EARLY`, and the first after it."""
_FEW, _THOROUGH = 1 / 8, 1 / 8
"""The share of tests that ask the questions on a few records besides, where the cheapest question can be asked; and the
share of tests on a few records that ask all questions, where masks of dropout are all that is drawn."""


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
        """Returns whether the schedule has the neighbour test made at a lot.

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
        """Returns which pieces of the neighbour test the schedule asks for at a lot that is tested.

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
        """Returns whether the schedule has the last lot tested before a claim, so that no end of a run goes untested.

        The claim after the last lot always is. Claims in the middle of a run are many if a loop prints one at every
        lot: they are tested when a sixteenth of the lots so far came after the last test.
        """
        return over or lot - last_tested >= max(1, lot // _END)

    def is_due_before_log(self, lot: int, last_tested: int) -> bool:
        """Returns whether the last lot is tested before ε goes into a log: if none of the last quarter of the lots was."""
        return lot - last_tested >= max(_SOON, lot // _LOGGED)

    def is_due_at_the_end(self, lot: int, last_tested: int, ends: int) -> bool:
        """Returns whether the schedule has the last lot of a call of `draws` tested right after its own pass, and not
        by the claim.

        A loop may call `draws` once for every epoch, or for every lot: after the first few of such ends a lot is tested
        when a sixteenth of the lots so far came after the last test.
        """
        return ends < _ENDS or self.is_due_before_claim(lot, last_tested, over=False)

    def _toss_coin(self, purpose: str, lot: int) -> float:
        """Returns a uniform number between 0 and 1, the same for the same lot."""
        return float(self._stream.child(purpose, lot).uniform(1)[0])


def fingerprint_of(inventory: Inventory) -> Hashable:
    """Returns a fingerprint of what can change how a model treats its records; the check schedule has it tested anew
    when the fingerprint changes.

    That are its modules, their modes and hooks, and which parameters are trained.
    """
    modules = inventory.modules
    hooked = [
        (id(m), *m._forward_hooks, -1, *m._forward_pre_hooks, -1, *m._backward_hooks)
        for m in modules
        if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks
    ]
    return inventory.mark, tuple([m.training for m in modules]), tuple(hooked)

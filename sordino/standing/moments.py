"""At which lots the standing test is made: a secret of the run, so that no code can behave just then.

The first lots are tested, then fewer and fewer down to one in a hundred, and each lot after the model changed its mode, its
modules, its hooks or what is trained:

    p_k = max(1/100, min(1, 2/k)) for lot k

Privacy: the coins are the run's own, apart from noise and draws; a test releases nothing.
"""

from __future__ import annotations

from collections.abc import Hashable

from sordino.gradients.inventory import Inventory
from sordino.random.rng import Rng

_LASTING = 0.01
"""The share of lots tested in a long run."""
_DENSE = 2.0
"""Lots tested for certain at the beginning; from there the share falls as 2/k."""
_END = 16
"""Of the lots so far, the part that may be untested at the end of a claim in the middle of a run: one in so many."""
_LOGGED, _FEW = 4, 20
"""The same for an ε in a log; and the lots that always may."""


class Moments:
    """Decides, lot by lot."""

    def __init__(self, stream: Rng, *, replayed: bool = False) -> None:
        """A replayed run tests the lots it would have tested: its first look is no change of the model."""
        self._stream, self._replayed = stream, replayed
        self._mark: Hashable = None

    def due(self, lot: int, mark: Hashable) -> bool:
        """Is this lot tested? `mark` is what the model looks like now."""
        changed, self._mark = mark != self._mark and not (self._mark is None and self._replayed), mark
        chance = max(_LASTING, min(1.0, _DENSE / max(lot, 1)))
        tossed = chance == 1.0 or float(self._stream.child("coin", lot).uniform(1)[0]) < chance
        return changed or tossed

    def stream(self, lot: int, number: int) -> Rng:
        """The secret choices of one test."""
        return self._stream.child("choices", lot, number)

    def before_claim(self, lot: int, last_tested: int, *, over: bool) -> bool:
        """Returns whether the last lot is tested before a claim, so that no end of a run goes untested.

        The claim after the last lot always is. Claims in the middle of a run are many if a loop prints one at every
        lot: they are tested when a sixteenth of the lots so far came after the last test.
        """
        return over or lot - last_tested >= max(1, lot // _END)

    def before_log(self, lot: int, last_tested: int) -> bool:
        """Returns whether the last lot is tested before ε goes into a log: if none of the last quarter of the lots was."""
        return lot - last_tested >= max(_FEW, lot // _LOGGED)


def mark_of(inventory: Inventory) -> Hashable:
    """What can change how a model treats its records: modules, modes, hooks, which parameters are trained."""
    modules = inventory.modules
    hooked = [
        (id(m), *m._forward_hooks, -1, *m._forward_pre_hooks, -1, *m._backward_hooks)
        for m in modules
        if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks
    ]
    return inventory.mark, tuple([m.training for m in modules]), tuple(hooked)

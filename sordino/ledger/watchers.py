"""Watchers: the runs that write in a ledger check their parameters before each claim.

A claim is true of what is in the ledger, and of the parameters only if nothing but released gradients moved them. The
run that trained them knows that, the ledger does not; so `ledger.claim` asks every run, as `private.claim` does. A run
that is gone leaves behind how its parameters stood: if one of them is written to afterwards, nothing can be said.

Privacy: what is found voids the ledger. Nothing else is read.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterable, Sequence

from torch import nn

from sordino.distributed.row_shard import version_of

LEFT = (
    "parameter {!r} was changed after the run that trained it was gone.\n"
    "Nobody knows by whom, and whether records went into it.\n"
    "Keep the Private until the claim is made, and wrap averaging and the like in `with private.post_processing(...)`."
)


class Watchers:
    """Methods of runs, held weakly, and the parameters of runs that are gone."""

    def __init__(self) -> None:
        self._methods: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._left: list[LeftBehind] = []

    def add(self, check: Callable[[], None]) -> None:
        """Adds a method of a run."""
        self._methods.append(weakref.WeakMethod(check))

    def take_over(self, parameters: Iterable[nn.Parameter], void: Callable[[str], None]) -> None:
        """Looks at what watchers of the ledger, runs that are gone, left behind, and hands these parameters to the run
        that begins with them.
        """
        self._check_left_behind(void)
        taken = {id(p) for p in parameters}
        self._left = [remaining for left in self._left if (remaining := left.without(taken)) is not None]

    def add_left_behind(self, left: LeftBehind) -> None:
        """Takes over the parameters of a run that is about to be gone."""
        self._left.append(left)

    def run_checks(self, void: Callable[[str], None]) -> None:
        """Lets every run that watches the ledger check its parameters, and checks the parameters of watchers that are
        gone.
        """
        self._methods = [method for method in self._methods if method() is not None]
        for method in self._methods:
            check = method()
            if check is not None:
                check()
        self._check_left_behind(void)

    def _check_left_behind(self, void: Callable[[str], None]) -> None:
        """Voids the ledger's claim if a parameter was written to that a watcher, a run that is gone, left behind."""
        for left in self._left:
            changed = left.find_changed()
            if changed is not None:
                void(LEFT.format(changed))


class LeftBehind:
    """The parameters of a run as it left them, held weakly."""

    def __init__(self, known: Iterable[tuple[str, weakref.ref[nn.Parameter], int]]) -> None:
        self._known = list(known)

    @classmethod
    def of(cls, names: Sequence[str], parameters: Sequence[nn.Parameter], versions: Sequence[int]) -> LeftBehind:
        """Returns these parameters, by name, as they should be found."""
        return cls((n, weakref.ref(p), v) for n, p, v in zip(names, parameters, versions, strict=True))

    def without(self, taken: Container[int]) -> LeftBehind | None:
        """Returns these parameters except those of the given identities; None if nothing remains."""
        remaining = [(n, p, v) for n, p, v in self._known if id(p()) not in taken]
        return LeftBehind(remaining) if remaining else None

    def find_changed(self) -> str | None:
        """Returns the name of a parameter that was written to since the run that was its watcher is gone, or None."""
        for name, reference, known in self._known:
            p = reference()
            if p is not None and version_of(p) != known:
                return name
        return None

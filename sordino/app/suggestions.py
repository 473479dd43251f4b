"""Suggests the name that a user probably meant when a name is not known: of an option, a command, a recipe, a column."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LEAST_LIKENESS = 0.6
"""Share of equal letters, by difflib, below which nothing is suggested."""
_SHORTEST_BEGINNING = 3
"""Letters from which on the beginning of a name is taken for it."""


def suggest_name(word: str, known: Iterable[str]) -> str | None:
    """Returns the known name that is most like `word`; None if none is like it.

    Case does not count, and neither does the difference between - and _.

    >>> suggest_name("mnits", ["mnist", "cifar10"]), suggest_name("Learning_Rate", ["learning-rate"])
    ('mnist', 'learning-rate')
    >>> suggest_name("zzz", ["mnist", "cifar10"]) is None
    True
    """
    names = {_fold(name): name for name in known}
    wanted = _fold(word)
    close = get_close_matches(wanted, names, n=1, cutoff=_LEAST_LIKENESS)
    if close:
        return names[close[0]]
    # A name that was cut short, as in `cos` for `cosine`.
    longer = [name for folded, name in names.items() if folded.startswith(wanted)]
    return longer[0] if len(wanted) >= _SHORTEST_BEGINNING and longer else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns the end of a message about an unknown name: `; did you mean 'mnist'?`, or nothing.

    >>> did_you_mean("mnits", ["mnist", "cifar10"])
    "; did you mean 'mnist'?"
    """
    suggestion = suggest_name(word, known)
    return "" if suggestion is None else f"; did you mean {suggestion!r}?"


def _fold(name: str) -> str:
    return name.casefold().replace("_", "-").strip()

"""Suggests the name that a user probably meant when a name is not known: of an option, a command, a recipe, a column."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

_LEAST_LIKENESS = 0.6
"""Share of equal letters, by difflib, below which nothing is suggested."""
_SHORTEST_BEGINNING = 3
"""Letters from which on the beginning of a name is taken for it."""


def suggest_name(word: str, known: Iterable[str]) -> str | None:
    """Returns the suggestion for a word that is not known: the known name that is most like it; None if none is like
    it.

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
    """Returns the suggestion at the end of a message about an unknown name: `; did you mean 'mnist'?`, or nothing.

    >>> did_you_mean("mnits", ["mnist", "cifar10"])
    "; did you mean 'mnist'?"
    """
    suggestion = suggest_name(word, known)
    return "" if suggestion is None else f"; did you mean {suggestion!r}?"


def refuse_unknown_name(what: str, name: str, known: Collection[str], more: str = "") -> None:
    """Raises ValueError if a name is not among the known ones; the message lists them and suggests the one that was
    probably meant.

    `what` is how the message names it, as in `loss='squre'`, and `more` ends the list of what there is.

    >>> refuse_unknown_name("loss='squre'", "squre", ["squared", "absolute"])
    Traceback (most recent call last):
    ValueError: loss='squre': there is squared, absolute; did you mean 'squared'?
    """
    if name not in known:
        raise ValueError(f"{what}: there is {', '.join(known)}{more}{did_you_mean(name, known)}")


def refuse_unknown_fields(given: Iterable[str], known: Collection[str], kind: str) -> None:
    """Raises ValueError, with suggestions, if fields were given that are not known; `kind` is what the known ones are,
    as in `an option`.
    """
    unknown = [str(name) for name in given if name not in known]
    if unknown:
        close = did_you_mean(unknown[0], known)
        raise ValueError(f"{', '.join(unknown)}: not {kind}; there is {', '.join(known)}{close}")


def _fold(name: str) -> str:
    return name.casefold().replace("_", "-").strip()

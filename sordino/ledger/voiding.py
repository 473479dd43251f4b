"""Voiding: tells the user at once, and with the line of their own code, that a run has lost its guarantee.

A claim that is void says so at the end, when the hours of training are lost. So the first reason of every ledger is told
where it is found: as a warning, once, or as an error for a run that was made with `strict=True`.

Privacy: the reason is in the ledger before anything is told, so neither a filter of warnings nor a caught error brings
the guarantee back. Nothing private is quoted: reasons name code, never values.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import warnings
from types import FrameType

import torch


class ClaimVoidedWarning(UserWarning):
    """Warns that a run has just lost its privacy guarantee; the file and line are those of the user's code.

    Examples:
        >>> import warnings, sordino as sd
        >>> ledger = sd.Ledger()
        >>> with warnings.catch_warnings(record=True) as told:
        ...     warnings.simplefilter("always")
        ...     ledger.void("the records were printed")
        >>> print(told[0].category.__name__)
        ClaimVoidedWarning

    """


class ClaimVoided(RuntimeError):
    """Raised, in place of a warning, where a run made with `strict=True` loses its privacy guarantee.

    Catching it does not bring the guarantee back: the claim of the run is void.

    Examples:
        >>> import sordino as sd
        >>> ledger = sd.Ledger()
        >>> ledger.is_strict = True
        >>> try:
        ...     ledger.void("the records were printed")
        ... except sd.ClaimVoided as error:
        ...     print("printed" in str(error))
        True

    """


_STRICT_HINT = "Training goes on without a guarantee; with strict=True it stops here instead."

_LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_INSTALLED = tuple(
    {
        os.path.abspath(path) + os.sep
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_path(name)) is not None
    }
)
"""Folders of the standard library and of installed packages, whose lines a user cannot mend."""


def announce(reason: str, *, strict: bool) -> None:
    """Announces the voiding of a claim: raises ClaimVoided if the run is strict; otherwise warns, with the line of the
    user's code that led here.

    Python shows a warning once for each line. Each ledger announces its first reason only, so every announcement is shown,
    even if another run was voided by the same line before.
    """
    place = find_user_frame()
    if strict:
        where = "" if place is None else f"\n  at {place.f_code.co_filename}:{place.f_lineno}"
        raise ClaimVoided(f"no privacy guarantee: {reason}{where}")
    message = f"no privacy guarantee from here on: {reason}\n{_STRICT_HINT}"
    if place is None:
        warnings.warn(message, ClaimVoidedWarning, stacklevel=3)
    else:
        warnings.warn_explicit(
            message,
            ClaimVoidedWarning,
            place.f_code.co_filename,
            place.f_lineno,
            str(place.f_globals.get("__name__", "")),
        )


def find_user_frame() -> FrameType | None:
    """Returns the frame to which the voiding of a claim is reported: the innermost of the user's own code, or None if
    there is none on the stack.

    The library, torch, the standard library and installed packages are passed over: the line that a user can mend is the
    one that called them. Where nothing but installed code is on the stack, its innermost frame outside the library and
    torch is returned.
    """
    fallback = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = os.path.abspath(frame.f_code.co_filename)
        is_own_machinery = file.startswith((_LIBRARY, _TORCH)) or frame.f_code.co_filename.startswith("<frozen")
        if not is_own_machinery:
            if not file.startswith(_INSTALLED):
                return frame
            fallback = fallback or frame
        frame = frame.f_back
    return fallback

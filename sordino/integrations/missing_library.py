"""Missing library: the error for an optional dependency that is not installed."""

from __future__ import annotations


class NotInstalled(ImportError):
    """An integration needs a library that is not there; the message names the extra to install."""

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(
            f"{library} is not installed, which sordino.integrations needs here: pip install 'sordino[{extra}]'",
            name=library,
        )

"""The error for a library that is not installed: it names the extra."""

from __future__ import annotations


class NotInstalled(ImportError):
    """A road needs a library that is not there."""

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(
            f"{library} is not installed, which sordino.integrations needs here: pip install 'sordino[{extra}]'",
            name=library,
        )

"""Lets Ctrl-C and SIGTERM ask the training loop to stop after the current step.

A second signal ends the process at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Wish:
    """Remembers whether somebody asked to stop."""

    def __init__(self) -> None:
        self.asked: str | None = None

    def __call__(self) -> bool:
        """Returns True once a signal has come."""
        return self.asked is not None


@contextmanager
def signals() -> Iterator[Wish]:
    """Yields a `Wish` that signals set; outside the main thread, where Python receives none, it is never set."""
    wish = Wish()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return

    def heard(number: int, frame: FrameType | None) -> None:
        if wish.asked is not None:
            raise KeyboardInterrupt
        wish.asked = signal.Signals(number).name

    before = {each: signal.signal(each, heard) for each in _SIGNALS}
    try:
        yield wish
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)

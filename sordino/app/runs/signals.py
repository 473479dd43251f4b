"""Ctrl-C and SIGTERM ask the loop to stop after the step it is in; asked a second time, the process ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Wish:
    """Whether somebody asked to stop."""

    def __init__(self) -> None:
        self.asked: str | None = None

    def __call__(self) -> bool:
        """True once a signal came."""
        return self.asked is not None


@contextmanager
def signals() -> Iterator[Wish]:
    """Signals set the wish while this lasts; outside the main thread, where Python hears none, it is never set."""
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

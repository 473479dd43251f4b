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


class StopRequest:
    """Remembers whether somebody asked to stop."""

    def __init__(self) -> None:
        self.signal_name: str | None = None

    def __call__(self) -> bool:
        """Returns True once a signal has come."""
        return self.signal_name is not None


@contextmanager
def watch_signals() -> Iterator[StopRequest]:
    """Yields a `StopRequest` that signals set; outside the main thread, where Python receives none, it is never set."""
    stop_request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop_request
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop_request.signal_name is not None:
            raise KeyboardInterrupt
        stop_request.signal_name = signal.Signals(number).name

    former_handlers = {each: signal.signal(each, on_signal) for each in _SIGNALS}
    try:
        yield stop_request
    finally:
        for each, handler in former_handlers.items():
            signal.signal(each, handler)

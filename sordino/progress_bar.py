"""A progress bar of one line, for terminals and notebooks: how many of how many, and the time left.

The line is written again from its beginning, which terminals and notebooks both understand. Where the output goes to a file
or a pipe, nothing is written.

Privacy: a bar shows what its caller gives it. The callers here give public numbers: lots drawn, their planned number, time.
"""

from __future__ import annotations

import sys
import time
from typing import TextIO

_CELLS = 24
_SECONDS_BETWEEN_UPDATES = 0.2
_FULL, _EMPTY = "█", "░"


def can_show_progress(stream: TextIO) -> bool:
    """Returns whether somebody is looking at what is written to this stream: on a terminal or in a notebook."""
    return is_notebook_stream(stream) or stream.isatty()


def is_notebook_stream(stream: TextIO) -> bool:
    """Returns whether the stream is shown under a notebook's cell."""
    return type(stream).__module__.startswith("ipykernel")


class ProgressBar:
    """Shows how much of something is done, on one line that is written again and again.

    Args:
        total: how much there is to do.
        noun: what is counted, such as "lot".
        stream: where to write; standard error if it is left out.

    """

    def __init__(self, total: int, noun: str = "step", stream: TextIO | None = None) -> None:
        self._total, self._noun = total, noun
        self._stream = sys.stderr if stream is None else stream
        self._shows = can_show_progress(self._stream)
        self._begin = self._last = time.perf_counter()
        self._first_done: int | None = None
        self._width = 0

    def update(self, done: int, note: str = "") -> None:
        """Shows in the progress bar that so much is done; a few times a second, and always at the end."""
        now = time.perf_counter()
        # Work that was done before the bar began says nothing about the time that is left.
        if self._first_done is None:
            self._first_done, self._begin = done, now
        elif now - self._last < _SECONDS_BETWEEN_UPDATES and done < self._total:
            return
        self._last = now
        self._write(render_bar(self._noun, done, self._total, self._seconds_left(done, now), note))

    def clear(self) -> None:
        """Removes the progress bar, so that a line can be printed in its place."""
        if self._shows and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0

    def close(self) -> None:
        """Ends the line of the progress bar, which stays where it is."""
        if self._shows and self._width:
            self._stream.write("\n")
            self._stream.flush()
            self._width = 0

    def _seconds_left(self, done: int, now: float) -> float | None:
        """Returns the seconds left for the progress bar to show, at the pace so far; None before anything can be said."""
        assert self._first_done is not None, "a bar is updated before it is asked"
        since = done - self._first_done
        return None if since <= 0 else (now - self._begin) / since * (self._total - done)

    def _write(self, line: str) -> None:
        """Writes the progress bar's line over the former one."""
        if not self._shows:
            return
        self._stream.write("\r" + line.ljust(self._width))
        self._stream.flush()
        self._width = len(line)


def render_bar(noun: str, done: int, total: int, seconds_left: float | None, note: str = "") -> str:
    """Returns the progress bar as one line of text.

    >>> render_bar("lot", 30, 120, 62.0)
    'lot  30/120 ██████░░░░░░░░░░░░░░░░░░  25 %  1:02 left'
    """
    share = done / total if total else 1.0
    full = int(share * _CELLS)
    words = f"{noun} {done:>{len(str(total))}}/{total} {_FULL * full}{_EMPTY * (_CELLS - full)} {share:>4.0%}".replace(
        "%", " %"
    )
    if seconds_left is not None and done < total:
        minutes, seconds = divmod(round(seconds_left), 60)
        words += f"  {minutes}:{seconds:02d} left"
    return f"{words}  {note}".rstrip()

"""Noise made ahead: a thread of the host makes the values of a stream's next draw while the device computes.

Noise for a model on a device is made by the compiled kernel on the host. Made when it is needed, the device would wait for
it. Draw k of a stream is a function of (key, k, number of values, scale), so once a release has drawn its noise, that of
the next one is known: the same stream, the next draw, as many values, the same scale. It is made in a thread meanwhile.

Privacy: one noise is used once. Making values ahead draws nothing: the stream's counter moves when they are taken, and
they are forgotten in the same moment. They are taken only by a draw with exactly the key, number, length and scale they
were made for, and such a draw would have made these very bits itself. If anything else comes, another draw, another scale,
another key after a fork or a loaded state, or nothing at all because the step failed, they are thrown away unused. They
are in no state, copy or pickle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class DrawAhead:
    """Which draw of which stream some values belong to."""

    key: bytes
    number: int
    count: int
    scale: float


class PreparedNormals:
    """The values of one coming draw of a stream, which a thread makes."""

    def __init__(self) -> None:
        self.taken = 0
        """How many draws found their values made."""
        self._draw: DrawAhead | None = None
        self._values: Tensor | None = None
        self._thread: threading.Thread | None = None
        self._is_complete = False

    def start(self, draw: DrawAhead, values: Tensor, make: Callable[[], None]) -> None:
        """Begins to prepare the normals of a coming draw in a thread.

        Args:
            draw: the draw they belong to.
            values: the memory that they are written to.
            make: writes them; it must not touch the stream.

        """
        self.discard()

        def run() -> None:
            make()
            self._is_complete = True  # after everything: a thread that failed leaves nothing to take

        self._draw, self._values, self._is_complete = draw, values, False
        # Not a daemon: Python waits at its end for a thread that still writes to this memory.
        self._thread = threading.Thread(target=run, name="sordino noise")
        self._thread.start()

    def take(self, draw: DrawAhead) -> Tensor | None:
        """Returns the prepared normals of this very draw, if they were made, and forgets them; None, and forgets them
        too, otherwise.
        """
        prepared, values = self._draw, self._values
        if prepared != draw:
            self.discard()
            return None
        if self._thread is not None:
            self._thread.join()
        is_complete = self._is_complete
        self.discard()
        if not is_complete:
            return None
        self.taken += 1
        return values

    def discard(self) -> None:
        """Forgets the prepared normals, unused; a thread that is still making them is waited for, since it writes to
        their memory.
        """
        if self._thread is not None:
            self._thread.join()
        self._draw = self._values = self._thread = None
        self._is_complete = False

"""Locks on open files between processes, by flock on POSIX systems and byte locks on Windows.

On Windows there is no shared lock, so readers wait for each other too; and other processes cannot read the byte that is
locked, so it lies far past the end of any file of ours. Where there is neither, taking a lock is refused: without it
two processes could both spend the last of a budget.
"""

from __future__ import annotations

import sys
import time
from typing import Protocol

_LOCKED_BYTE = 1 << 40  # the byte that is locked on Windows
_RETRY_SECONDS = 0.05  # seconds between two tries there


class File(Protocol):
    """An open file."""

    def fileno(self) -> int:
        """Returns the file's descriptor."""
        ...


class Locked(OSError):
    """Raised where another process holds the lock."""


def lock_file(file: File, *, exclusive: bool = True, wait: bool = True) -> None:
    """Locks an open file between processes until it is closed; with `wait=False` raises `Locked` where another process
    holds it.
    """
    try:
        _lock_descriptor(file, exclusive, wait)
    except (BlockingIOError, PermissionError) as error:
        raise Locked(*error.args) from None


if sys.platform == "win32":
    import msvcrt
    import os

    def _lock_descriptor(file: File, exclusive: bool, wait: bool) -> None:
        """Locks a file on Windows: one byte far past its end, again and again until it is free if `wait`; the position in
        the file is put back.
        """
        number = file.fileno()
        before = os.lseek(number, 0, os.SEEK_CUR)
        try:
            # Windows has no call that waits for a lock of one byte without a limit, so it is tried again.
            while True:
                os.lseek(number, _LOCKED_BYTE, os.SEEK_SET)
                try:
                    msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
                    return
                except OSError:
                    if not wait:
                        raise PermissionError("the file is locked") from None
                time.sleep(_RETRY_SECONDS)
        finally:
            os.lseek(number, before, os.SEEK_SET)

else:
    try:
        import fcntl
    except ImportError:  # neither POSIX nor Windows, such as WebAssembly
        fcntl = None  # type: ignore[assignment]

    def _lock_descriptor(file: File, exclusive: bool, wait: bool) -> None:
        """Locks a file on POSIX systems by `flock`, shared or exclusive."""
        if fcntl is None:
            raise NotImplementedError(f"{sys.platform} has no locks on files: run on Linux, macOS or Windows")
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        fcntl.flock(file.fileno(), kind if wait else kind | fcntl.LOCK_NB)

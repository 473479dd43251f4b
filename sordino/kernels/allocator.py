"""Binding of the C library's allocator, to hand free memory back to the system."""

from __future__ import annotations

import ctypes
import os


def return_free_memory() -> None:
    """Hands the free memory of the C library's allocator back to the system, where it can: glibc. Elsewhere nothing
    happens.
    """
    found = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if found is not None:
        found(0)

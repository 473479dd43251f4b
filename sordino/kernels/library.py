"""Opens a compiled library if it was made of the sources beside it and nobody switched it off."""

from __future__ import annotations

import ctypes
import os

from sordino.kernels import build
from sordino.kernels.build import Library


class KernelUnavailable(Exception):
    """Says why a library is left alone."""


def open_library(library: Library) -> ctypes.CDLL:
    """Opens a compiled kernel library, without the types of its functions; raises `KernelUnavailable` to say why not."""
    # The switch is read at every opening, so that a test or a user can turn kernels off without a rebuild.
    if os.environ.get("SORDINO_KERNELS") == "0":
        raise KernelUnavailable("SORDINO_KERNELS=0")
    if not library.path.exists():
        raise KernelUnavailable("no library was built at install")
    # Every library carries the digest of the sources it was built from.
    try:
        found = ctypes.CDLL(str(library.path))
        stamp = (ctypes.c_char * 64).in_dll(found, "sordino_source").value.decode()
    except (OSError, ValueError, AttributeError) as error:
        raise KernelUnavailable(f"the library cannot be loaded: {error}") from error
    # A library made of other sources may compute something else.
    if stamp != library.source_hash():
        raise KernelUnavailable(f"the library is older than its source; python {build.__file__} makes it anew")
    return found

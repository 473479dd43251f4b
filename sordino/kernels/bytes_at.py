"""Bytes of memory by their address: for who compares a few numbers of a tensor often, where a call of torch costs more."""

from __future__ import annotations

from ctypes import Array, c_char


def bytes_at(address: int, many: int) -> Array[c_char]:
    """These bytes, read by `.raw`; safe for as long as what lies there is alive."""
    return (c_char * many).from_address(address)

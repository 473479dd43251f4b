"""Reads memory by its address, for code that compares a few numbers of a tensor often.

A call of torch would cost more.
"""

from __future__ import annotations

from ctypes import Array, c_char, c_float


def read_bytes(address: int, many: int) -> Array[c_char]:
    """Returns these bytes, read by `.raw`; safe for as long as what lies there is alive."""
    return (c_char * many).from_address(address)


def read_two_floats(address: int, first: int, stride: int) -> list[float]:
    """Returns two values of float32: number `first` from there on, and the one `stride` after it."""
    at = address + 4 * first
    return [c_float.from_address(at).value, c_float.from_address(at + 4 * stride).value]

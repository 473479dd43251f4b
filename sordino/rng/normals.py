"""Normal values from a key stream by Box–Muller (1958).

    z = √(−2 ln u) · (cos θ, sin θ), over blocks of `BLOCK` values

In single precision this is arithmetic of our own, additions and products of float32 in a fixed order, so that the values
are the same to the last bit on every machine and in the compiled kernel (kernels/noise.c):

    ln u    u = 2^e m with √½ ≤ m < √2;  −2 ln m = f·(c₀ + c₁f + … + c₈f⁸), f = m − 1, good to 0.5·2⁻²⁴ of itself
    sin x   x + x³·(s₀ + … + s₃x⁶) for |x| ≤ π/2, good to 0.1·2⁻²⁴ of itself; the half turn left over is a sign of r
    cos x   1 − x²/2 + x⁴·(k₀ + … + k₃x⁶), good to 0.01·2⁻²⁴; all before rounding

A value of u has 31 random bits, and where the first 16 of them are 0 (the tail beyond 4.7 deviations) 32 more, from a part
of the stream of their own. So |z| ≤ √(2·64·ln 2) = 9.42; the mass beyond, 5e-21 a value, is missing. In double precision u
has 63 bits and ends there too, and the functions are numpy's.

A block's first half of words gives the radii, its second half the angles; cosines come before sines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 18
"""Values made of one stretch of key stream."""

RARE = 1 << 15
"""Radius words below this, one in 2¹⁶, take 32 more bits."""

EXTRA = 1 << 35
"""The word of the stream where those bits begin; radius word j takes word EXTRA + j. No draw is as long as that."""

_RUN = 1 << 15  # pairs at once: the temporaries stay in cache
_SIGN = np.uint32(1 << 31)

F32 = NDArray[np.float32]
U32 = NDArray[np.uint32]


def _float32_constants(*hexadecimal: str) -> list[np.float32]:
    return [np.float32(float.fromhex(text)) for text in hexadecimal]


_EVEN = _float32_constants("-0x1.65f792p-3", "-0x1.317fa6p-2", "-0x1.98d32ap-2", "-0x1.5556f2p-1", "-0x1p1")
_ODD = _float32_constants("0x1.250e42p-2", "0x1.535b18p-2", "0x1.0004acp-1", "0x1.fffffap-1")
_SINE = _float32_constants("0x1.5dc8c4p-19", "-0x1.9f70eep-13", "0x1.110edap-7", "-0x1.55554cp-3")
_COSINE = _float32_constants("-0x1.196accp-22", "0x1.9f931cp-16", "-0x1.6c14b8p-10", "0x1.55555p-5", "-0x1p-1", "0x1p0")
_LOG4, _PI = _float32_constants("-0x1.62e43p0", "0x1.921fb6p-31")  # −2 ln 2; π·2⁻³¹, for a signed word of half turns


class WordStream(Protocol):
    """A key stream of 32-bit words, of whatever cipher: what normal values are made of."""

    def fill(self, buffer: memoryview | bytearray) -> None:
        """Overwrites the buffer with the bytes that come next."""
        ...

    def word_at(self, index: int) -> int:
        """Returns the word number `index`."""
        ...

    def words_at(self, first: int, n: int) -> NDArray[np.uint32]:
        """Returns the words first, first + 1, …"""
        ...


def normal_blocks(stream: WordStream, n: int, scale: float) -> Iterator[F32]:
    """Yields n independent N(0, scale²) normals from a key stream in consecutive blocks, which share their memory."""
    # A block has two halves: the first gives the radii, the second the angles of its pairs.
    buffer = bytearray(4 * min(BLOCK, n + 1))
    out = np.empty(len(buffer) // 4, dtype=np.float32)
    for start in range(0, n, BLOCK):
        count = min(BLOCK, n - start)
        # Values come in pairs; an odd count makes one more than is wanted, which is dropped.
        half = (count + 1) // 2
        stream.fill(memoryview(buffer)[: 8 * half])
        words = np.frombuffer(buffer, dtype="<u4")
        # Short runs keep the arrays of the computation in the cache.
        for at in range(0, half, _RUN):
            to = min(half, at + _RUN)
            v = scaled_uniforms(words[at:to], stream, start + at)
            box_muller(v, words[half + at : half + to], scale, out[at:to], out[half + at : half + to])
        yield out[:count]


def locate_blocks(total: int, start: int, count: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields in which blocks of normals the values start … start + count of a draw of `total` lie.

    For each block: its first value, its length, and from where to where in it.

    >>> list(locate_blocks(total=3 * BLOCK, start=BLOCK - 2, count=5))
    [(0, 262144, 262142, 262144), (262144, 262144, 0, 3)]
    """
    if not 0 <= start <= start + count <= total:
        raise ValueError(f"values {start} to {start + count} of a draw of {total}: must lie within it")
    # Where radii and angles lie follows from the length of the block, so blocks begin where the whole draw has them.
    for first in range(start - start % BLOCK, start + count, BLOCK):
        block_length = min(BLOCK, total - first)
        yield first, block_length, max(start - first, 0), min(start + count - first, block_length)


def locate_pairs(half: int, begin: int, end: int) -> tuple[int, int]:
    """Returns the Box–Muller pairs behind the normals begin … end of a block of `half` cosines and as many sines."""
    if end <= half:
        return begin, end
    # Wanted values on both sides of the middle: their pairs may lie anywhere, so all are made.
    return (begin - half, end - half) if begin >= half else (0, half)


def normals_at(stream: WordStream, total: int, start: int, count: int, scale: float) -> F32:
    """Returns the normals start, start + 1, … of the draw that `normal_blocks(stream, total, scale)` makes, bit for
    bit.
    """
    out, filled = np.empty(count, dtype=np.float32), 0
    # Only the blocks that hold wanted values are made, and of those only the pairs behind them.
    for first, block_length, begin, end in locate_blocks(total, start, count):
        half = (block_length + 1) // 2
        first_pair, last_pair = locate_pairs(half, begin, end)
        block = np.empty(2 * half, dtype=np.float32)
        for at in range(first_pair, last_pair, _RUN):
            to = min(last_pair, at + _RUN)
            v = scaled_uniforms(stream.words_at(first + at, to - at), stream, first + at)
            angles = stream.words_at(first + half + at, to - at)
            box_muller(v, angles, scale, block[at:to], block[half + at : half + to])
        out[filled : filled + end - begin] = block[begin:end]
        filled += end - begin
    return out


def scaled_uniforms(words: U32, stream: WordStream, first: int) -> F32:
    """Returns 2³¹ u for the radii of normals, from radius words, the first of which is word `first` of the stream."""
    # 31 bits of the word and a half step give u, which is never 0.
    k = (words & np.uint32(2**31 - 1)).view(np.int32)
    v = k.astype(np.float32)
    v += np.float32(0.5)
    # The smallest numbers, which give the largest radii, get 32 more bits: otherwise the tail of the normal
    # distribution would be coarse.
    for i in np.flatnonzero(k < RARE).tolist():
        v[i] = refine_uniform(int(k[i]), stream.word_at(EXTRA + first + i))
    return v


def refine_uniform(k: int, extra: int) -> np.float32:
    """Returns 2³¹ u of 31 + 32 bits."""
    return np.float32(k + (extra + 0.5) * 2.0**-32)


def box_muller(v: F32, angles: U32, scale: float, cosines: F32, sines: F32) -> None:
    """Writes two normals by Box–Muller for each u = 2⁻³¹ v and angle in 2⁻³² of a turn.

    Every line rounds as its line in noise.c does.
    """
    # ln u: split u into 2^e and m with √½ ≤ m < √2, and evaluate the polynomial in f = m − 1.
    bits = v.view(np.int32) - np.int32(0x4EB504F3)
    e = (bits >> 23).astype(np.float32)
    bits &= np.int32(0x7FFFFF)
    bits += np.int32(0x3F3504F3)
    f = bits.view(np.float32)
    f -= np.float32(1)
    t = _horner(_ODD, g := f * f)
    t *= f
    t += _horner(_EVEN, g)
    t *= f
    e *= _LOG4
    t += e
    # The radius √(−2 ln u), times the scale.
    r = np.sqrt(t, out=t)
    r *= np.float32(scale)
    # The half turn of the angle becomes a sign of the radius, so that |x| ≤ π/2 below.
    turned = angles + np.uint32(1 << 30)
    turned &= _SIGN
    r.view(np.uint32)[...] ^= turned
    # Cosine and sine of what is left of the angle, times the signed radius.
    x = (angles << np.uint32(1)).view(np.int32).astype(np.float32)
    x *= _PI
    y = x * x
    np.multiply(_horner(_COSINE, y), r, out=cosines)
    s = _horner(_SINE, y)
    y *= x
    s *= y
    s += x
    np.multiply(s, r, out=sines)


def _horner(coefficients: list[np.float32], x: F32) -> F32:
    """Evaluates a polynomial in float32 by Horner's rule, from the highest coefficient down, for Box–Muller normals."""
    first, second, *remaining = coefficients
    value = x * first
    value += second
    for c in remaining:
        value *= x
        value += c
    return value


def double_normal_blocks(stream: WordStream, n: int, scale: float) -> Iterator[NDArray[np.float64]]:
    """Yields n independent N(0, scale²) normals in float64, in blocks, from words of 64 bits."""
    for start in range(0, n, BLOCK):
        count = min(BLOCK, n - start)
        buffer = bytearray(16 * ((count + 1) // 2))
        stream.fill(buffer)
        yield _double_block(np.frombuffer(buffer, dtype="<i8"), count, scale)


def double_normals_at(stream: WordStream, total: int, start: int, count: int, scale: float) -> NDArray[np.float64]:
    """Returns the float64 normals start, start + 1, … of `double_normal_blocks`.

    Each block is computed completely, so that numpy rounds as it does there.
    """
    pieces = [np.empty(0, dtype=np.float64)]
    for first, block_length, begin, end in locate_blocks(total, start, count):
        words = stream.words_at(2 * first, 4 * ((block_length + 1) // 2))
        pieces.append(_double_block(words.view("<i8"), block_length, scale)[begin:end])
    return np.concatenate(pieces)


def _double_block(words: NDArray[np.int64], count: int, scale: float) -> NDArray[np.float64]:
    """Returns one block of normals in float64 from its words, by Box–Muller."""
    half = (count + 1) // 2
    # 63 bits and a half step, so that the logarithm never sees 0.
    u = ((words[:half] & (2**63 - 1)).astype(np.float64) + 0.5) * 2.0**-63
    r = scale * np.sqrt(-2.0 * np.log(u))
    angle = words[half:].astype(np.float64) * (math.pi * 2.0**-63)  # [-π, π)
    both: NDArray[np.float64] = np.concatenate([r * np.cos(angle), r * np.sin(angle)])[:count]
    return both

"""ChaCha20 and Box–Muller as one Triton kernel: normal values are made on the device that they are added on.

The key stream is that of `rng/chacha_stream.py` and the arithmetic that of `rng/normals.py`, line by line, so that the
values are those of the CPU to the last bit. Two things keep it so on a GPU: the kernel is compiled without fused
multiply-adds (`enable_fp_fusion=False`), which would round once where the CPU rounds twice, and the root is `sqrt_rn`.

A tile holds ROWS × 16 pairs: row r has the 16 words of one ChaCha20 block. Radius words of a tile are whole blocks. Its
angle words are whole blocks too where half of the block of values is a multiple of 16 (ALIGNED); otherwise each of them is
computed by itself, which costs sixteen times as much and happens in the last block of values alone.

This module imports Triton, and is imported by `rng/device_noise.py` only where that is installed.
"""

import triton
import triton.language as tl

ROWS = 64
"""ChaCha20 blocks of radii in one program: 1,024 pairs of values."""

_H = float.fromhex
# The coefficients of normals.py: even and odd parts of −2 ln m, sine, cosine, −2 ln 2, and π·2⁻³¹.
E0, E1, E2, E3, E4 = (
    tl.constexpr(_H(text))
    for text in ("-0x1.65f792p-3", "-0x1.317fa6p-2", "-0x1.98d32ap-2", "-0x1.5556f2p-1", "-0x1p1")
)
O0, O1, O2, O3 = (
    tl.constexpr(_H(text)) for text in ("0x1.250e42p-2", "0x1.535b18p-2", "0x1.0004acp-1", "0x1.fffffap-1")
)
S0, S1, S2, S3 = (
    tl.constexpr(_H(text)) for text in ("0x1.5dc8c4p-19", "-0x1.9f70eep-13", "0x1.110edap-7", "-0x1.55554cp-3")
)
C0, C1, C2, C3, C4, C5 = (
    tl.constexpr(_H(text))
    for text in ("-0x1.196accp-22", "0x1.9f931cp-16", "-0x1.6c14b8p-10", "0x1.55555p-5", "-0x1p-1", "0x1p0")
)
LOG4, PI = tl.constexpr(_H("-0x1.62e43p0")), tl.constexpr(_H("0x1.921fb6p-31"))
RARE = tl.constexpr(1 << 15)
EXTRA = tl.constexpr(1 << 35)


@triton.jit
def _rotate(x, n: tl.constexpr):
    return (x << n) | (x >> (32 - n))


@triton.jit
def _quarter_round(a, b, c, d):
    """Returns the quarter round of ChaCha (Bernstein 2008) of four words, for noise in a Triton kernel."""
    a = a + b
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 12)
    a = a + b
    d = _rotate(d ^ a, 8)
    c = c + d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _block_words(key, block):
    """Returns in a Triton kernel the 16 words of the ChaCha20 blocks with the numbers `block` (int64), each of block's
    shape.

    Words 12 and 13 of the cipher's state are the number of the block, low word first, so that it carries into the high
    word by itself; words 14 and 15 are the number of the draw, which stands behind the key's eight words.
    """
    zero = (block * 0).to(tl.uint32)
    low, high = block.to(tl.uint32), (block >> 32).to(tl.uint32)
    s0, s1, s2, s3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    s4, s5 = zero + tl.load(key).to(tl.uint32), zero + tl.load(key + 1).to(tl.uint32)
    s6, s7 = zero + tl.load(key + 2).to(tl.uint32), zero + tl.load(key + 3).to(tl.uint32)
    s8, s9 = zero + tl.load(key + 4).to(tl.uint32), zero + tl.load(key + 5).to(tl.uint32)
    s10, s11 = zero + tl.load(key + 6).to(tl.uint32), zero + tl.load(key + 7).to(tl.uint32)
    s14, s15 = zero + tl.load(key + 8).to(tl.uint32), zero + tl.load(key + 9).to(tl.uint32)
    x0, x1, x2, x3, x4, x5, x6, x7 = s0, s1, s2, s3, s4, s5, s6, s7
    x8, x9, x10, x11, x12, x13, x14, x15 = s8, s9, s10, s11, low, high, s14, s15
    # Ten double rounds: four columns, then four diagonals.
    for _ in range(10):
        x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
    return (
        x0 + s0, x1 + s1, x2 + s2, x3 + s3, x4 + s4, x5 + s5, x6 + s6, x7 + s7,
        x8 + s8, x9 + s9, x10 + s10, x11 + s11, x12 + low, x13 + high, x14 + s14, x15 + s15,
    )  # fmt: skip


@triton.jit
def _tile_of_blocks(key, first_block, ROWS: tl.constexpr):
    """Returns in a Triton kernel the words of ROWS consecutive ChaCha20 blocks as a tile (ROWS, 16), in the order of
    the stream.
    """
    block = first_block + tl.arange(0, ROWS).to(tl.int64)
    w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15 = _block_words(key, block)
    # Joining puts two tensors side by side in a new last dimension, so the number's lowest bit is joined last.
    a = tl.join(tl.join(tl.join(w0, w8), tl.join(w4, w12)), tl.join(tl.join(w2, w10), tl.join(w6, w14)))
    b = tl.join(tl.join(tl.join(w1, w9), tl.join(w5, w13)), tl.join(tl.join(w3, w11), tl.join(w7, w15)))
    # The dimensions of a are now (ROWS, bit 8, bit 4, bit 2), and those of the join (ROWS, bit 8, bit 4, bit 2, bit 1).
    return tl.reshape(tl.join(a, b), (ROWS, 16))


@triton.jit
def _words_at(key, index):
    """Returns in a Triton kernel the words of the noise's stream with the numbers `index` (int64), each from a ChaCha20
    block of its own.
    """
    w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15 = _block_words(key, index >> 4)
    place = index & 15
    low = tl.where(
        place < 4,
        tl.where(place < 2, tl.where(place == 0, w0, w1), tl.where(place == 2, w2, w3)),
        tl.where(place < 6, tl.where(place == 4, w4, w5), tl.where(place == 6, w6, w7)),
    )
    high = tl.where(
        place < 12,
        tl.where(place < 10, tl.where(place == 8, w8, w9), tl.where(place == 10, w10, w11)),
        tl.where(place < 14, tl.where(place == 12, w12, w13), tl.where(place == 14, w14, w15)),
    )
    return tl.where(place < 8, low, high)


@triton.jit
def normals_kernel(out, key, first, count, scale, ROWS: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """Writes, as a Triton kernel, noise of `count` values N(0, scale²) to out[first:], in blocks of BLOCK values, the
    last of which may be shorter.

    Grid: (tiles of a block, blocks). Block b holds the values from first + b·BLOCK on: `half` cosines, then `half` sines,
    the last of which is left out where the block has an odd number of values. Value j of the draw comes of word j.
    """
    # Where this tile's pairs lie in the draw.
    start = first + tl.program_id(1).to(tl.int64) * BLOCK
    length = tl.minimum(first + count - start, BLOCK)
    half = (length + 1) // 2
    pair = tl.program_id(0).to(tl.int64) * (ROWS * 16) + (
        tl.arange(0, ROWS).to(tl.int64)[:, None] * 16 + tl.arange(0, 16).to(tl.int64)[None, :]
    )
    inside = pair < half
    # Radius words are whole blocks of the cipher, because blocks of values and tiles begin at multiples of 16.
    words = _tile_of_blocks(key, (start + tl.program_id(0).to(tl.int64) * (ROWS * 16)) >> 4, ROWS)
    if ALIGNED:
        angles = _tile_of_blocks(key, (start + half + tl.program_id(0).to(tl.int64) * (ROWS * 16)) >> 4, ROWS)
    else:
        angles = _words_at(key, start + half + pair)
    # v = 2³¹ u. One radius in 2¹⁶ is so small that it takes 32 more bits, from a part of the stream of their own.
    k = (words & 0x7FFFFFFF).to(tl.int32, bitcast=True)
    v = k.to(tl.float32) + 0.5
    rare = (k < RARE) & inside
    if tl.max(tl.max(rare.to(tl.int32), 1), 0) > 0:
        more = _words_at(key, pair + start + EXTRA)
        refined = k.to(tl.float64) + (more.to(tl.float64) + 0.5) * 2.3283064365386963e-10  # 2⁻³²: exact
        v = tl.where(rare, refined.to(tl.float32), v)
    # −2 ln u: split u into 2^e and m with √½ ≤ m < √2, and evaluate the polynomial in f = m − 1.
    bits = v.to(tl.int32, bitcast=True) - 0x4EB504F3
    e = (bits >> 23).to(tl.float32)
    f = ((bits & 0x7FFFFF) + 0x3F3504F3).to(tl.float32, bitcast=True) - 1.0
    g = f * f
    t = g * O0 + O1
    t = t * g + O2
    t = t * g + O3
    t = t * f
    u = g * E0 + E1
    u = u * g + E2
    u = u * g + E3
    u = u * g + E4
    t = (t + u) * f
    t = t + e * LOG4
    # The radius, times the scale; the half turn of the angle becomes its sign.
    r = tl.sqrt_rn(t) * scale
    turned = (angles + 0x40000000) & 0x80000000
    r = (r.to(tl.uint32, bitcast=True) ^ turned.to(tl.uint32)).to(tl.float32, bitcast=True)
    # Cosine and sine of what is left of the angle.
    x = (angles << 1).to(tl.int32, bitcast=True).to(tl.float32) * PI
    y = x * x
    c = y * C0 + C1
    c = c * y + C2
    c = c * y + C3
    c = c * y + C4
    c = c * y + C5
    s = y * S0 + S1
    s = s * y + S2
    s = s * y + S3
    s = s * (y * x) + x
    tl.store(out + start + pair, c * r, inside)
    tl.store(out + start + half + pair, s * r, inside & (half + pair < length))

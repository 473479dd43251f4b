"""Gram sums of linear maps as one Triton kernel: Σ_ts (a_t·a_s)(g_t·g_s) by tiles, without a T × T matrix in memory.

Each program computes one tile of aaᵀ and the same tile of ggᵀ, multiplies them element by element and adds up. Both
matrices are symmetric, so tiles below the diagonal are left out and those above it count twice. Products are of float32
in full precision (`input_precision="ieee"`): TF32 would round their factors to ten bits. Every program writes its own
two numbers, which are then added in a fixed order, so that the result has the same bits every time.

This module imports Triton, and is imported by `kernels/device_gram.py` only where that is installed.
"""

import triton
import triton.language as tl

TILE = 32
"""Positions on each side of a tile."""

WIDTH = 32
"""Columns of a and g that are read at once."""


@triton.jit
def _tile_of_products(
    x, first, second, positions, columns, position_step, column_step, TILE: tl.constexpr, WIDTH: tl.constexpr
):
    """Returns one tile of a Gram matrix in the Triton kernel, (TILE, TILE): x_t·x_s for the positions t in `first` and
    s in `second` of one sample; 0 beyond the last.
    """
    total = tl.zeros((TILE, TILE), tl.float32)
    for start in range(0, columns, WIDTH):
        column = start + tl.arange(0, WIDTH)
        inside = column[None, :] < columns
        left = tl.load(
            x + first[:, None] * position_step + column[None, :] * column_step,
            mask=(first[:, None] < positions) & inside,
            other=0.0,
        )
        right = tl.load(
            x + second[:, None] * position_step + column[None, :] * column_step,
            mask=(second[:, None] < positions) & inside,
            other=0.0,
        )
        total = tl.dot(left, tl.trans(right), total, input_precision="ieee")
    return total


@triton.jit
def gram_kernel(
    out,
    a,
    g,
    positions,
    a_columns,
    g_columns,
    a_sample_step,
    a_position_step,
    a_column_step,
    g_sample_step,
    g_position_step,
    g_column_step,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Writes, as a Triton kernel, the Gram sum of one tile and the part of it on the diagonal to out[sample, tile row,
    tile column].

    Grid: (tile rows, tile columns, samples).
    """
    row, column, sample = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    place = out + 2 * ((sample * tl.num_programs(0) + row) * tl.num_programs(1) + column)
    if column < row:
        # This tile is the transpose of one that is counted twice.
        tl.store(place, 0.0)
        tl.store(place + 1, 0.0)
    else:
        first = row * TILE + tl.arange(0, TILE)
        second = column * TILE + tl.arange(0, TILE)
        product = _tile_of_products(
            a + sample * a_sample_step, first, second, positions, a_columns, a_position_step, a_column_step, TILE, WIDTH
        ) * _tile_of_products(
            g + sample * g_sample_step, first, second, positions, g_columns, g_position_step, g_column_step, TILE, WIDTH
        )
        on_diagonal = tl.where(first[:, None] == second[None, :], product, 0.0)
        total = tl.sum(tl.sum(product, 1), 0)
        tl.store(place, tl.where(column > row, 2.0 * total, total))
        tl.store(place + 1, tl.sum(tl.sum(on_diagonal, 1), 0))

/* Matrix products by tiles whose sums stay in registers: the one inner loop of every kernel that multiplies matrices.
 *
 * A tile has ROWS x COLUMNS sums: 12 vectors of eight floats, which with two vectors of one factor and one value of the other
 * fill the sixteen registers. Each sum is added up in the order of t, whatever else a call computes: the bits of a value do not
 * depend on the tile it lies in.
 */
#ifndef SORDINO_GEMM_H
#define SORDINO_GEMM_H
#include "vectors.h"

#define ROWS 6
#define COLUMNS (2 * LANES)
#define WIDEST 3 /* vectors in a row of a tile */

/* sum[i][j] += left * right for t < depth, i < tall and j < wide. `left` is an expression in t and i, `right` one in t and j, both of
 * them vectors. `tall` and `wide` are constants, or the sums would not stay in registers. */
#define ADD_PRODUCTS(sum, tall, wide, depth, left, right)                             \
    for (int64_t t = 0; t < (int64_t)(depth); t++) {                                  \
        vec right_[WIDEST];                                                            \
        for (int j = 0; j < (wide); j++) right_[j] = (right);                         \
        for (int i = 0; i < (tall); i++) {                                            \
            const vec left_ = (left);                                                  \
            for (int j = 0; j < (wide); j++) (sum)[i][j] += left_ * right_[j];        \
        }                                                                             \
    }

/* CALL(n) for n from 1 to ROWS, with a constant in the place of n. */
#define WITH_CONSTANT(n, CALL)    \
    switch (n) {                  \
        case 6: CALL(6); break;   \
        case 5: CALL(5); break;   \
        case 4: CALL(4); break;   \
        case 3: CALL(3); break;   \
        case 2: CALL(2); break;   \
        case 1: CALL(1); break;   \
    }

/* Where a tile goes. */
typedef struct {
    float *at;
    int64_t row;          /* from one row to the next, in floats */
    const float *start;   /* what the sums are added to: rows `start_row` apart, 0 for one row that all share; NULL: nothing */
    int64_t start_row;
} out_t;

/* Rows that go to `at`, added to what is there if `add`. */
INLINE out_t out_rows(float *at, int64_t row, int add) { return (out_t){at, row, add ? at : NULL, row}; }

/* out (high x wide) = start + sum over t < depth of left[i * row + t * step] right[t * COLUMNS + j].
 *
 * `tall` rows are computed, of which `high` are stored: what lies beyond must be readable, and may be anything. Returns the sum of
 * the squares of what is stored, if asked for.
 */
INLINE d4 tile(const int tall, const float *left, int64_t row, int64_t step, const float *right, int64_t depth, out_t out,
               int64_t high, int64_t wide, const int squares) {
    vec sum[ROWS][2], square[2] = {ALL(0.0f), ALL(0.0f)};
    for (int i = 0; i < tall; i++) sum[i][0] = sum[i][1] = ALL(0.0f);
    ADD_PRODUCTS(sum, tall, 2, depth, ALL(left[i * row + t * step]), AT(right + t * COLUMNS + j * LANES));
    if (high == tall && wide == COLUMNS) {
        if (out.start)
            for (int i = 0; i < tall; i++)
                for (int j = 0; j < 2; j++) sum[i][j] += AT(out.start + i * out.start_row + j * LANES);
        for (int i = 0; i < tall; i++)
            for (int j = 0; j < 2; j++) {
                PUT(out.at + i * out.row + j * LANES) = sum[i][j];
                if (squares) square[j] += sum[i][j] * sum[i][j];
            }
    } else { /* value by value: past the edge even 0 times something may be no number */
        float all[ROWS][COLUMNS];
        for (int i = 0; i < tall; i++) PUT(all[i]) = sum[i][0], PUT(all[i] + LANES) = sum[i][1];
        for (int64_t i = 0; i < high; i++)
            for (int64_t j = 0; j < wide; j++) {
                float *at = out.at + i * out.row + j;
                *at = all[i][j] + (out.start ? out.start[i * out.start_row + j] : 0.0f);
                if (squares) square[0][j % LANES] += *at * *at;
            }
    }
    return squares ? doubled(square[0] + square[1]) : (d4){0};
}

/* Asks for the lines a whole tile will be stored to. */
INLINE void await_rows(const float *out, int64_t row) {
    for (int i = 0; i < ROWS; i++) __builtin_prefetch(out + i * row, 1, 3);
}

/* k rows of `wide` columns, `row` apart, to a panel of COLUMNS; zeros beyond. */
INLINE void panel_of(const float *from, int64_t row, size_t k, size_t wide, float *to) {
    for (size_t t = 0; t < k; t++, to += COLUMNS, from += row) {
        if (wide == COLUMNS)
            PUT(to) = AT(from), PUT(to + LANES) = AT(from + LANES);
        else
            for (size_t j = 0; j < COLUMNS; j++) to[j] = j < wide ? from[j] : 0.0f;
    }
}
#endif

/* Products by tiles of ROWS x COLUMNS that stay in registers: 12 sums of eight floats, two vectors of one factor and one value of the
 * other leave none of the sixteen idle.
 */
#ifndef SORDINO_PRODUCTS_H
#define SORDINO_PRODUCTS_H
#include "vectors.h"

#define ROWS 6
#define COLUMNS (2 * LANES)

/* out (high x wide) = (add ? out : start ? start : 0) + sum over t < k of left[i * row + t * step] right[t * COLUMNS + j].
 *
 * Returns the sum of the squares of what is stored. `start` is one row, COLUMNS long where the tile is whole.
 */
INLINE d4 tile(const float *left, size_t row, size_t step, const float *right, size_t k, float *out, int64_t stride, size_t high,
               size_t wide, int add, const float *start, int squares) {
    v8 sum[ROWS][2], square[2] = {ALL(0.0f), ALL(0.0f)};
    if (high == ROWS)
        for (int i = 0; i < ROWS; i++) __builtin_prefetch(out + i * stride, 1, 3);
    for (int i = 0; i < ROWS; i++) sum[i][0] = sum[i][1] = ALL(0.0f);
    for (size_t t = 0; t < k; t++) {
        v8 near = AT(right + t * COLUMNS), far = AT(right + t * COLUMNS + LANES);
        for (int i = 0; i < ROWS; i++) {
            float x = left[i * row + t * step];
            sum[i][0] += ALL(x) * near;
            sum[i][1] += ALL(x) * far;
        }
    }
    if (high == ROWS && wide == COLUMNS) {
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < 2; j++) {
                float *at = out + i * stride + j * LANES;
                if (add)
                    sum[i][j] += AT(at);
                else if (start)
                    sum[i][j] += AT(start + j * LANES);
                PUT(at) = sum[i][j];
                if (squares) square[j] += sum[i][j] * sum[i][j];
            }
    } else { /* what lies beyond may be 0 times an infinity */
        float all[ROWS][COLUMNS];
        for (int i = 0; i < ROWS; i++) PUT(all[i]) = sum[i][0], PUT(all[i] + LANES) = sum[i][1];
        for (size_t i = 0; i < high; i++)
            for (size_t j = 0; j < wide; j++) {
                float *at = out + (int64_t)i * stride + j;
                *at = all[i][j] + (add ? *at : start ? start[j] : 0.0f);
                if (squares) square[0][j % LANES] += *at * *at;
            }
    }
    if (!squares) return (d4){0};
    square[0] += square[1];
    return __builtin_convertvector(SHUFFLE_HALF(square[0], 0), d4) + __builtin_convertvector(SHUFFLE_HALF(square[0], 4), d4);
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

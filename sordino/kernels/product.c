/* The weighted sum of per-sample gradients of a linear map in one product: out += sum over rows k of w_k g_k a_k^T.
 *
 * Rows of g are scaled while they are packed, so nothing is written out for it. Tiles of ROWS x COLUMNS stay in registers, DEEP rows
 * are added up before the next, and a block of HIGH rows of `out` is worked on while its part of g is in the cache. Each
 * element is added up in the same order whatever part of `out` a call is asked for.
 *
 * Built by build.py. SORDINO_SOURCE is the hash of the sources, by which a library older than its source is recognised.
 */
#include "vectors.h"

#define ROWS 6
#define COLUMNS (2 * LANES)
#define DEEP 256
#define HIGH (90 * ROWS)

typedef struct {
    const float *g, *a, *w;           /* (rows, p), (rows, d) by strides in elements, the last dense; (rows) */
    int64_t g_row, a_row;
    uint64_t rows, p, d;
    float *out;                       /* (p, d), the last dense */
    int64_t out_row;
} product_t;

/* Panels of ROWS columns of g, scaled: k rows of ROWS each; zeros beyond its last column. */
INLINE void scaled(const product_t *of, size_t from, size_t k, size_t first, size_t high, float *to) {
    for (size_t t = 0; t < k; t++) {
        const float *row = of->g + (int64_t)(from + t) * of->g_row + (int64_t)first;
        float w = of->w[from + t];
        size_t i = 0;
        if (t + 1 < DEEP) /* two values spill over, to where the next row goes */
            for (; i + LANES <= high; i += ROWS) PUT(to + (i * DEEP + t * ROWS)) = AT(row + i) * ALL(w);
        for (; i < high; i += ROWS)
            for (size_t j = 0; j < ROWS; j++) to[i * DEEP + t * ROWS + j] = i + j < high ? row[i + j] * w : 0.0f;
    }
}

INLINE void panel_of(const product_t *of, size_t from, size_t k, size_t column, size_t wide, float *to) {
    for (size_t t = 0; t < k; t++, to += COLUMNS) {
        const float *row = of->a + (int64_t)(from + t) * of->a_row + (int64_t)column;
        if (wide == COLUMNS)
            PUT(to) = AT(row), PUT(to + LANES) = AT(row + LANES);
        else
            for (size_t j = 0; j < COLUMNS; j++) to[j] = j < wide ? row[j] : 0.0f;
    }
}

INLINE void tile(const float *g, const float *a, size_t k, float *out, int64_t stride, size_t high, size_t wide, int add) {
    v8 sum[ROWS][2];
    for (int i = 0; i < ROWS; i++) sum[i][0] = sum[i][1] = ALL(0.0f);
    for (size_t t = 0; t < k; t++) {
        v8 left = AT(a + t * COLUMNS), right = AT(a + t * COLUMNS + LANES);
        for (int i = 0; i < ROWS; i++) {
            float x = g[t * ROWS + i];
            sum[i][0] += ALL(x) * left;
            sum[i][1] += ALL(x) * right;
        }
    }
    if (high == ROWS && wide == COLUMNS) {
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < 2; j++) {
                float *at = out + i * stride + j * LANES;
                if (add) sum[i][j] += AT(at);
                PUT(at) = sum[i][j];
            }
    } else {
        float all[ROWS][COLUMNS];
        for (int i = 0; i < ROWS; i++) PUT(all[i]) = sum[i][0], PUT(all[i] + LANES) = sum[i][1];
        for (size_t i = 0; i < high; i++)
            for (size_t j = 0; j < wide; j++) {
                float *at = out + (int64_t)i * stride + j;
                *at = add ? all[i][j] + *at : all[i][j];
            }
    }
}

/* Rows begin..end of out = (add ? out : 0) + product. */
INLINE int product(const product_t *of, size_t begin, size_t end, int add) {
    float *made = zeros(HIGH * DEEP + COLUMNS * DEEP + LANES), *panel = made + HIGH * DEEP + LANES;
    if (!made) return 1;
    if (begin >= end) return free(made), 0;
    size_t blocks = (end - begin + HIGH - 1) / HIGH, even = rounded((end - begin + blocks - 1) / blocks, ROWS);
    for (size_t first = begin; first < end; first += even) {
        size_t high = end - first < even ? end - first : even;
        for (size_t from = 0; from < of->rows; from += DEEP) {
            size_t k = of->rows - from < DEEP ? of->rows - from : DEEP;
            scaled(of, from, k, first, high, made);
            for (size_t j = 0; j < of->d; j += COLUMNS) {
                size_t wide = of->d - j < COLUMNS ? of->d - j : COLUMNS;
                panel_of(of, from, k, j, wide, panel);
                for (size_t i = 0; i < high; i += ROWS)
                    tile(made + i * DEEP, panel, k, of->out + (int64_t)(first + i) * of->out_row + (int64_t)j, of->out_row,
                         high - i < ROWS ? high - i : ROWS, wide, add || from);
            }
        }
    }
    free(made);
    return 0;
}

#if defined(FAST)
FAST static int product_fast(const product_t *of, size_t begin, size_t end, int add) { return product(of, begin, end, add); }
#endif

EXPORT const char sordino_source[] = SORDINO_SOURCE;

EXPORT int sordino_level(int most) { return best(most); }

/* 0, or 1 where memory is short. */
EXPORT int sordino_product(int level, const product_t *of, uint64_t begin, uint64_t end, int add) {
#if defined(FAST)
    if (best(level) == AVX2) return product_fast(of, begin, end, add);
#endif
    return product(of, begin, end, add);
}

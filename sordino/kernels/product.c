/* Products of a linear map's inputs and output gradients: out += sum over rows k of w_k g_k a_k^T for all samples together, or each
 * sample's own, with the sum of its squares taken while a tile is in the registers.
 *
 * Rows of g are scaled while they are packed, so nothing is written out for it. DEEP rows are added up before the next, and a
 * block of HIGH rows of `out` is worked on while its part of g is in the cache. Each element is added up in the same order whatever
 * part of `out` a call is asked for.
 */
#include "gemm.h"

#define DEEP 256
#define HIGH (90 * ROWS)
#define AHEAD 4                  /* rows of g that are asked for before they are packed */
#define PANEL (DEEP * ROWS + 16) /* floats from one to the next: at a power of two they would compete for lines of the cache */

typedef struct {
    const float *g, *a, *w;           /* (rows, p), (rows, d) by strides in elements, the last dense; (rows) or NULL: ones */
    int64_t g_row, a_row;
    uint64_t rows, p, d;
    float *out;                       /* (p, d), the last dense */
    int64_t out_row;
} product_t;

/* How far apart samples are, in elements. */
typedef struct {
    int64_t g, a, out;
} apart_t;

/* Panels of ROWS columns of g, scaled: k rows of ROWS each; zeros beyond its last column. */
INLINE void scaled(const product_t *of, size_t from, size_t k, size_t first, size_t high, float *to) {
    for (size_t t = 0; t < k; t++) {
        const float *row = of->g + (int64_t)(from + t) * of->g_row + (int64_t)first;
        float w = of->w ? of->w[from + t] : 1.0f, *at = to + t * ROWS;
        for (size_t ahead = 0; ahead < high; ahead += LINE) __builtin_prefetch(row + AHEAD * of->g_row + (int64_t)ahead, 0, 3);
        size_t i = 0; /* two values spill over, to where the next row goes */
        for (; i + LANES <= high; i += ROWS, at += PANEL) PUT(at) = AT(row + i) * ALL(w);
        for (; i < high; i += ROWS, at += PANEL)
            for (size_t j = 0; j < ROWS; j++) at[j] = i + j < high ? row[i + j] * w : 0.0f;
    }
}

static float *space(void) { return allocated(((HIGH / ROWS) * PANEL + COLUMNS * DEEP) * sizeof(float)); }

/* Rows begin..end of out = (add ? out : 0) + product; the sum of their squares, if asked for. */
INLINE d4 product(const product_t *of, size_t begin, size_t end, int add, int squares, float *made) {
    float *panel = made + (HIGH / ROWS) * PANEL;
    d4 square = {0};
    if (begin >= end) return square;
    size_t blocks = (end - begin + HIGH - 1) / HIGH, even = rounded((end - begin + blocks - 1) / blocks, ROWS);
    for (size_t first = begin; first < end; first += even) {
        size_t high = end - first < even ? end - first : even;
        for (size_t from = 0; from < of->rows; from += DEEP) {
            size_t k = of->rows - from < DEEP ? of->rows - from : DEEP;
            int last = squares && from + k == of->rows;
            scaled(of, from, k, first, high, made);
            for (size_t j = 0; j < of->d; j += COLUMNS) {
                size_t wide = of->d - j < COLUMNS ? of->d - j : COLUMNS;
                panel_of(of->a + (int64_t)from * of->a_row + (int64_t)j, of->a_row, k, wide, panel);
                for (size_t t = 0; t < k && j + COLUMNS < of->d; t++) /* lines of the next panel, which lie far apart */
                    __builtin_prefetch(of->a + (int64_t)(from + t) * of->a_row + (int64_t)(j + COLUMNS), 0, 2);
                const float *left = made;
                float *out = of->out + (int64_t)first * of->out_row + (int64_t)j;
                for (size_t i = 0; i < high; i += ROWS, left += PANEL, out += ROWS * of->out_row) {
                    size_t rows = high - i < ROWS ? high - i : ROWS;
                    out_t to = out_rows(out, of->out_row, add || from);
                    if (rows == ROWS) await_rows(out, of->out_row);
                    if (last)
                        square += tile(ROWS, left, 1, ROWS, panel, k, to, rows, wide, 1);
                    else
                        tile(ROWS, left, 1, ROWS, panel, k, to, rows, wide, 0);
                }
            }
        }
    }
    return square;
}

/* Rows begin..end of the product of all samples, added to what is there or not. */
INLINE int whole(const product_t *of, uint64_t begin, uint64_t end, int add) {
    float *made = space();
    if (!made) return 1;
    product(of, begin, end, add, 0, made);
    freed(made);
    return 0;
}

/* The products of samples begin..end, each with its sum of squares; `first` says where sample 0 is. */
INLINE int samples(const product_t *first, const apart_t *apart, uint64_t begin, uint64_t end, double *squared) {
    float *made = space();
    if (!made) return 1;
    for (size_t i = begin; i < end; i++) {
        product_t of = *first;
        of.g += (int64_t)i * apart->g, of.a += (int64_t)i * apart->a, of.out += (int64_t)i * apart->out;
        squared[i] = total(product(&of, 0, of.p, 0, 1, made));
    }
    freed(made);
    return 0;
}

/* Both return 0, or 1 where memory is short. */
BY_LEVEL(sordino_product, whole, (const product_t *of, uint64_t begin, uint64_t end, int add), (of, begin, end, add))
BY_LEVEL(sordino_samples, samples,
         (const product_t *of, const apart_t *apart, uint64_t begin, uint64_t end, double *squared),
         (of, apart, begin, end, squared))

/* A linear map and its transpose on many rows: out = x m + b, for x (rows, k) with dense rows and a matrix m (k, n) by strides, one of which
 * is 1: the weight's transpose in the forward pass, the weight itself for the gradient at the input.
 *
 * m is packed once into panels of COLUMNS columns and DEEP rows; a block of HIGH rows of x is copied to a stretch where its rows do
 * not compete for the same lines of the cache, and is used where it lies, since tiles read it value by value. Each element is
 * added up in the same order whatever part of `out` a call is asked for.
 */
#include "gemm.h"

#define DEEP 256
#define HIGH 256
#define STRIDE (DEEP + 16)  /* floats from one copied row to the next */
#define PACKED (1 << 19)    /* floats of packed panels */
#define WIDE 1024           /* columns that are gone through at once where nothing need be kept packed */

typedef struct {
    const float *x, *m, *bias;        /* (rows, k), (k, n), (n) or NULL */
    int64_t x_row, m_row, m_column;   /* strides in elements */
    uint64_t rows, k, n;
    float *out;                       /* (rows, n), the last dense */
    int64_t out_row;
} affine_t;

/* Eight rows of eight to eight columns. */
INLINE void turned(const float *from, int64_t row, float *to) {
    v8 r[8], s[8];
    for (int i = 0; i < 8; i++) r[i] = AT8(from + i * row);
    for (int i = 0; i < 8; i += 2) {
        s[i] = SHUFFLE(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        s[i + 1] = SHUFFLE(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = SHUFFLE(s[i + j], s[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            r[i + 2 * j + 1] = SHUFFLE(s[i + j], s[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; i++) {
        PUT8(to + i * COLUMNS) = SHUFFLE(r[i], r[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        PUT8(to + (i + 4) * COLUMNS) = SHUFFLE(r[i], r[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* Rows from..from + k of `wide` columns of m, from `column` on. */
INLINE void packed(const affine_t *of, size_t from, size_t k, size_t column, size_t wide, float *to) {
    const float *m = of->m + (int64_t)from * of->m_row + (int64_t)column * of->m_column;
    size_t t = 0;
    if (of->m_column == 1) {
        panel_of(m, of->m_row, k, wide, to);
        return;
    }
    if (wide == COLUMNS && of->m_row == 1)
        for (; t + LINE <= k; t += LINE) /* a line of the cache at a time */
            for (int some = 0; some < COLUMNS; some += 8) {
                const float *corner = m + t + some * of->m_column;
                turned(corner, of->m_column, to + t * COLUMNS + some);
                turned(corner + 8, of->m_column, to + (t + 8) * COLUMNS + some);
            }
    for (; t < k; t++)
        for (size_t j = 0; j < COLUMNS; j++)
            to[t * COLUMNS + j] = j < wide ? m[(int64_t)t * of->m_row + (int64_t)j * of->m_column] : 0.0f;
}

/* As memcpy, for which the compiler would take an instruction that is slow to start. */
INLINE void copied(const float *from, size_t k, float *to) {
    size_t t = 0;
    for (; t + LANES <= k; t += LANES) PUT(to + t) = AT(from + t);
    for (; t < k; t++) to[t] = from[t];
}

/* Columns begin..end of out. */
INLINE int affine(const affine_t *of, uint64_t begin, uint64_t end) {
    size_t blocks = (of->rows + HIGH - 1) / HIGH, even = blocks ? rounded((of->rows + blocks - 1) / blocks, ROWS) : 0;
    size_t deep = (of->k + DEEP - 1) / DEEP, panel = COLUMNS * DEEP; /* floats of one */
    size_t step = blocks > 1 ? PACKED / (deep * panel) * COLUMNS : WIDE;
    if (begin >= end || !of->rows) return 0;
    if (step < 4 * COLUMNS) step = 4 * COLUMNS;
    size_t panels = blocks > 1 ? step / COLUMNS * deep : 1, most = (end - begin + COLUMNS - 1) / COLUMNS * deep;
    if (panels > most) panels = most;
    float *copy = allocated(((HIGH + ROWS) * STRIDE + panels * panel) * sizeof(float)), *kept = copy + (HIGH + ROWS) * STRIDE;
    if (!copy) return 1;
    memset(copy, 0, (HIGH + ROWS) * STRIDE * sizeof(float));
    for (size_t left = begin; left < end; left += step) {
        size_t right = end - left < step ? end : left + step;
        for (size_t first = 0; first < of->rows; first += even) {
            size_t high = of->rows - first < even ? of->rows - first : even;
            float *next = kept;
            for (size_t from = 0; from < of->k; from += DEEP) {
                size_t k = of->k - from < DEEP ? of->k - from : DEEP;
                for (size_t i = 0; i < high; i++) copied(of->x + (int64_t)(first + i) * of->x_row + (int64_t)from, k, copy + i * STRIDE);
                for (size_t j = left; j < right; j += COLUMNS) {
                    size_t wide = right - j < COLUMNS ? right - j : COLUMNS;
                    float *out = of->out + (int64_t)first * of->out_row + (int64_t)j;
                    if (!first) packed(of, from, k, j, wide, next);
                    for (size_t i = 0; i < high; i += ROWS, out += ROWS * of->out_row) {
                        size_t rows = high - i < ROWS ? high - i : ROWS;
                        out_t to = {out, of->out_row, of->bias ? of->bias + j : NULL, 0};
                        if (from) to = out_rows(out, of->out_row, 1);
                        if (rows == ROWS) await_rows(out, of->out_row);
                        tile(ROWS, copy + i * STRIDE, STRIDE, 1, next, k, to, rows, wide, 0);
                    }
                    if (blocks > 1) next += panel;
                }
            }
        }
    }
    freed(copy);
    return 0;
}

/* Columns begin..end, which begin at a multiple of COLUMNS. 0, or 1 where memory is short. */
BY_LEVEL(sordino_affine, affine, (const affine_t *of, uint64_t begin, uint64_t end), (of, begin, end))

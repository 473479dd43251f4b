/* What layers with one position per sample need of their inputs and output gradients, for all of them in one call: sums of
 * squares by row, and rows weighted and added up. Small layers cost less than the calls that would do it one by one.
 *
 * Sums of squares run over 1,024 elements in single precision, in 32 parts, and on in double: good to 1e-7. A square below the
 * smallest normal number may vanish, and every element counts as if one had: a sum never reads low.
 */
#include "vectors.h"

#define RUN 1024
#define VANISHED 0x1p-126
#define MOST 64 /* matrices in one call */

/* B rows of `width` elements, `stride` apart. */
typedef struct {
    const float *from;
    uint64_t width, stride;
    float *weighted, *sum; /* where the weighted rows go, one after the other, and their sum; NULL: not asked for */
} matrix_t;

INLINE double squares(const float *x, uint64_t n) {
    double total = (double)n * VANISHED;
    while (n) {
        uint64_t run = n < RUN ? n : RUN, i = 0;
        v8 s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
        for (; i + 32 <= run; i += 32) {
            const v8 *v = (const v8 *)(x + i);
            s0 += v[0] * v[0], s1 += v[1] * v[1], s2 += v[2] * v[2], s3 += v[3] * v[3];
        }
        for (; i + 8 <= run; i += 8) {
            v8 v = *(const v8 *)(x + i);
            s0 += v * v;
        }
        s0 = (s0 + s1) + (s2 + s3);
        float rest = 0;
        for (; i < run; i++) rest += x[i] * x[i];
        for (int l = 0; l < 8; l++) total += (double)s0[l];
        total += (double)rest;
        x += run, n -= run;
    }
    return total;
}

/* Row by row, the sums of squares of some matrices; column p of `out` is the product of those of pairs[2p] and
 * pairs[2p + 1], or that of pairs[2p] alone where the other is < 0; `sums` are those of a row of `out`. Returns whether all of them are finite. */
INLINE int squared(uint64_t rows, uint64_t count, const matrix_t *matrices, uint64_t columns, const int32_t *pairs,
                   float *out, float *sums) {
    double found[MOST];
    float all = 0;
    for (uint64_t row = 0; row < rows; row++, out += columns) {
        for (uint64_t k = 0; k < count; k++)
            found[k] = squares(matrices[k].from + row * matrices[k].stride, matrices[k].width);
        double sum = 0;
        for (uint64_t p = 0; p < columns; p++) {
            double product = found[pairs[2 * p]] * (pairs[2 * p + 1] < 0 ? 1.0 : found[pairs[2 * p + 1]]);
            out[p] = (float)product;
            sum += product;
        }
        sums[row] = (float)sum;
        all += sums[row] * 0.0f; /* not a number once one is not finite */
    }
    return all == 0;
}

INLINE int finite_array(uint64_t n, const float *x) {
    v8 s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0}; /* not a number once one is not finite */
    float rest = 0;
    uint64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const v8 *v = (const v8 *)(x + i);
        s0 += v[0] * 0.0f, s1 += v[1] * 0.0f, s2 += v[2] * 0.0f, s3 += v[3] * 0.0f;
    }
    for (; i < n; i++) rest += x[i] * 0.0f;
    s0 = (s0 + s1) + (s2 + s3);
    for (int l = 0; l < 8; l++) rest += s0[l];
    return rest == 0;
}

INLINE int all_finite(uint64_t count, const float *const *arrays, const uint64_t *sizes) {
    for (uint64_t k = 0; k < count; k++)
        if (!finite_array(sizes[k], arrays[k])) return 0;
    return 1;
}

INLINE void weigh(uint64_t rows, const float *weights, uint64_t step, const matrix_t *m) {
    float *restrict sum = m->sum, *restrict to = m->weighted;
    for (uint64_t row = 0; row < rows; row++) {
        const float *restrict x = m->from + row * m->stride;
        float w = weights[row * step];
        if (to && sum) {
            for (uint64_t j = 0; j < m->width; j++) {
                float value = w * x[j];
                to[j] = value, sum[j] += value;
            }
        } else if (to) {
            for (uint64_t j = 0; j < m->width; j++) to[j] = w * x[j];
        } else {
            for (uint64_t j = 0; j < m->width; j++) sum[j] += w * x[j];
        }
        if (to) to += m->width;
    }
}

INLINE int weighted(uint64_t rows, const float *weights, uint64_t step, uint64_t count, const matrix_t *matrices, int anew) {
    for (uint64_t k = 0; k < count; k++) {
        if (!matrices[k].sum && !matrices[k].weighted) continue;
        for (uint64_t j = 0; anew && matrices[k].sum && j < matrices[k].width; j++) matrices[k].sum[j] = 0;
        weigh(rows, weights, step, matrices + k);
    }
    return 0;
}

INLINE int joined(uint64_t n, const float *restrict x, const float *restrict y, float *restrict z, double factor) {
    for (uint64_t i = 0; i < n; i++) z[i] = (float)((((double)x[i] + (double)y[i]) + (double)z[i]) * factor);
    return 0;
}

EXPORT const uint64_t sordino_most = MOST;

BY_LEVEL(sordino_squared, squared,
         (uint64_t rows, uint64_t count, const matrix_t *matrices, uint64_t columns, const int32_t *pairs, float *out, float *sums),
         (rows, count, matrices, columns, pairs, out, sums))

/* Is every number of these finite? */
BY_LEVEL(sordino_finite, all_finite, (uint64_t count, const float *const *arrays, const uint64_t *sizes), (count, arrays, sizes))

/* For each matrix, its rows times `weights`, which are `step` apart: written out, added up, or both. Sums begin `anew`, or
 * are added to what is there. */
BY_LEVEL(sordino_weighted, weighted,
         (uint64_t rows, const float *weights, uint64_t step, uint64_t count, const matrix_t *matrices, int anew),
         (rows, weights, step, count, matrices, anew))

/* z = (x + y + z) * factor in double precision, rounded once. */
BY_LEVEL(sordino_joined, joined, (uint64_t n, const float *restrict x, const float *restrict y, float *restrict z, double factor),
         (n, x, y, z, factor))

/* min(1, C / sqrt(s)), in the order torch has it: 1 / sqrt(s) first. Of 1 and what is not a number, 1. */
EXPORT void sordino_shortened(uint64_t n, const float *restrict squared, float bound, float *restrict out) {
    for (uint64_t i = 0; i < n; i++) {
        float ratio = 1.0f / __builtin_sqrtf(squared[i]) * bound;
        out[i] = ratio < 1.0f ? ratio : 1.0f;
    }
}

/* Is 0 <= w * (sqrt(s) + floor) <= limit for all of these? Weights are `step` apart. */
EXPORT int sordino_within(uint64_t n, const float *weights, uint64_t step, const float *squared, float floor, float limit) {
    int fine = 1;
    for (uint64_t i = 0; i < n; i++) {
        float reach = weights[i * step] * (__builtin_sqrtf(squared[i]) + floor);
        fine &= reach >= 0.0f && reach <= limit;
    }
    return fine;
}

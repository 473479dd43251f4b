/* What the kernels of per-sample weight gradients have in common: what a call is asked for, and their two functions. A kernel
 * defines `work`. */

typedef struct {
    int64_t first, last;   /* samples */
    const float *a, *g;
    const float *weights;  /* NULL: one */
    float *rows;           /* (samples, size) or NULL: not wanted; or one of it, added to */
    float *squared;        /* (samples,), or NULL: add up */
} work_t;

#define RUN 512 /* squares added in single precision before they go to the double sum */

/* The part of the input that is read, with its borders of zeros. */
INLINE int64_t read_size(const shape_t *s, int along) {
    int64_t outputs = along ? s->columns : s->rows;
    return (outputs - 1) * s->stride[along] + s->dilation[along] * (s->kernel[along] - 1) + 1;
}

INLINE double squares(const float *x, int64_t n) {
    double total = 0;
    for (int64_t begin = 0; begin < n; begin += RUN) {
        int64_t end = begin + RUN < n ? begin + RUN : n, i = begin;
        vec some[4] = {{0}};
        for (; i + 4 * LANES <= end; i += 4 * LANES)
            for (int k = 0; k < 4; k++) {
                vec v = AT(x + i + k * LANES);
                some[k] += v * v;
            }
        some[0] += some[1] + (some[2] + some[3]);
        float rest = 0;
        for (; i < end; i++) rest += x[i] * x[i];
        for (int l = 0; l < LANES; l++) rest += some[0][l];
        total += rest;
    }
    return total;
}

INLINE int work(const shape_t *s, const work_t *w);

INLINE int rows_of(const int64_t *shape, int64_t first, int64_t last, const float *a, const float *g, float *rows,
                   float *squared) {
    const work_t w = {first, last, a, g, NULL, rows, squared};
    return work((const shape_t *)shape, &w);
}

/* Sums first..last-1 of `parts` of the samples, (parts, size). */
INLINE int sums_of(const int64_t *shape, int64_t first, int64_t last, const float *a, const float *g, const float *weights,
                   float *sums, int64_t samples, int64_t parts, int64_t size) {
    int problem = 0;
    for (int64_t k = first; k < last && !problem; k++) {
        const work_t w = {samples * k / parts, samples * (k + 1) / parts, a, g, weights, sums + k * size, NULL};
        problem = work((const shape_t *)shape, &w);
    }
    return problem;
}

/* Squared norms of samples first..last-1, and their gradients unless `rows` is NULL. Not 0: there was no memory. */
BY_LEVEL(sordino_rows, rows_of,
         (const int64_t *shape, int64_t first, int64_t last, const float *a, const float *g, float *rows, float *squared),
         (shape, first, last, a, g, rows, squared))

/* Adds the weighted gradients of each of the parts first..last-1 of the samples to its sum. A sample of weight 0 is not read. */
BY_LEVEL(sordino_sums, sums_of,
         (const int64_t *shape, int64_t first, int64_t last, const float *a, const float *g, const float *weights, float *sums,
          int64_t samples, int64_t parts, int64_t size),
         (shape, first, last, a, g, weights, sums, samples, parts, size))

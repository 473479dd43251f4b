/* What the kernels of per-sample weight gradients have in common: what a call is asked for, and their two functions. A kernel
 * defines `work`. */

typedef struct {
    int64_t first, last;   /* samples */
    const float *a, *g;
    const float *weights;  /* NULL: one */
    float *rows;           /* (samples, size) or NULL: not wanted; or one of it, added to */
    float *squared;        /* (samples,), or NULL: add up */
} work_t;

INLINE int work(const shape_t *s, const work_t *w);

INLINE int rows_of(const int64_t *shape, int64_t first, int64_t last, const float *a, const float *g, float *rows,
                   float *squared) {
    const work_t w = {first, last, a, g, NULL, rows, squared};
    return work((const shape_t *)shape, &w);
}

INLINE int sum_of(const int64_t *shape, int64_t first, int64_t last, const float *a, const float *g, const float *weights,
                  float *sum) {
    const work_t w = {first, last, a, g, weights, sum, NULL};
    return work((const shape_t *)shape, &w);
}

/* Squared norms of samples first..last-1, and their gradients unless `rows` is NULL. Not 0: there was no memory. */
BY_LEVEL(sordino_rows, rows_of,
         (const int64_t *shape, int64_t first, int64_t last, const float *a, const float *g, float *rows, float *squared),
         (shape, first, last, a, g, rows, squared))

/* Adds the weighted gradients of samples first..last-1 to `sum`. A sample of weight 0 is not read. */
BY_LEVEL(sordino_sum, sum_of,
         (const int64_t *shape, int64_t first, int64_t last, const float *a, const float *g, const float *weights, float *sum),
         (shape, first, last, a, g, weights, sum))

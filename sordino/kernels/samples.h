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

static int work_plain(const shape_t *s, const work_t *w) { return work(s, w); }

#if defined(FAST)
FAST static int work_fast(const shape_t *s, const work_t *w) { return work(s, w); }
#endif

static int at_level(int level, const shape_t *s, const work_t *w) {
#if defined(FAST)
    if (best(level) == AVX2) return work_fast(s, w);
#endif
    return work_plain(s, w);
}

/* Squared norms of samples first..last-1, and their gradients unless `rows` is NULL. Not 0: there was no memory. */
EXPORT int sordino_rows(int level, const int64_t *shape, int64_t first, int64_t last, const float *a, const float *g,
                        float *rows, float *squared) {
    const work_t w = {first, last, a, g, NULL, rows, squared};
    return at_level(level, (const shape_t *)shape, &w);
}

/* Adds the weighted gradients of samples first..last-1 to `sum`. A sample of weight 0 is not read. */
EXPORT int sordino_sum(int level, const int64_t *shape, int64_t first, int64_t last, const float *a, const float *g,
                       const float *weights, float *sum) {
    const work_t w = {first, last, a, g, weights, sum, NULL};
    return at_level(level, (const shape_t *)shape, &w);
}

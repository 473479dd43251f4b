/* A convolution's output and the gradient at its input, channels innermost: y[t, p] = b[p] + sum over taps k and channels c of
 * a[t + k, c] w[k, c, p].
 *
 * Both are one product of the same form. The gradient at the input of a convolution with stride s falls into s x s such
 * products, one for every remainder of a pixel's place by the stride, each with the taps that reach those pixels. A tile of
 * TALL positions by WIDE vectors of output channels stays in the registers over all taps; what it reads of the input is never
 * copied, but for the borders.
 *
 * Built by build.py. SORDINO_SOURCE is the hash of the sources, by which a library older than its source is recognised.
 */
#include "frame.h"

#define TALL 6
#define WIDE 2
#define PANEL (WIDE * LANES) /* output channels of a tile */

/* One product: what it reads, what it writes. */
typedef struct {
    const float *a;
    const ptrdiff_t *from;     /* of every position: its first pixel */
    const ptrdiff_t *runs;     /* of every run of taps that lie side by side, from a position's first pixel on */
    int64_t count, length;     /* of the runs */
    const float *weights;      /* panels of (count x length, PANEL) */
    const float *bias;         /* PANEL per panel */
    float *out;
    const ptrdiff_t *to;       /* of every position: its first channel */
    int64_t positions, channels;
} product_t;

INLINE void tile(const product_t *w, int64_t first, int64_t panel, const int tall) {
    v8 sum[TALL][WIDE];
    const float *a[TALL], *b = w->weights + panel * w->count * w->length * PANEL, *start = w->bias + panel * PANEL;
    for (int i = 0; i < tall; i++) {
        a[i] = w->a + w->from[first + i];
        for (int j = 0; j < WIDE; j++) sum[i][j] = *(const v8 *)(start + j * LANES);
    }
    for (int64_t run = 0; run < w->count; run++) {
        ptrdiff_t at = w->runs[run];
        for (int64_t l = 0; l < w->length; l++, at++, b += PANEL) {
            v8 v[WIDE];
            for (int j = 0; j < WIDE; j++) v[j] = *(const v8 *)(b + j * LANES);
            for (int i = 0; i < tall; i++)
                for (int j = 0; j < WIDE; j++) sum[i][j] += a[i][at] * v[j];
        }
    }
    int64_t left = w->channels - panel * PANEL;
    for (int i = 0; i < tall; i++) {
        float *out = w->out + w->to[first + i] + panel * PANEL;
        if (left >= PANEL)
            for (int j = 0; j < WIDE; j++) *(v8 *)(out + j * LANES) = sum[i][j];
        else
            memcpy(out, sum[i], left * sizeof *out);
    }
}

INLINE void product(const product_t *w) {
    for (int64_t panel = 0; panel * PANEL < w->channels; panel++) {
        int64_t first = 0;
        for (; first + TALL <= w->positions; first += TALL) tile(w, first, panel, TALL);
        switch (w->positions - first) {
            case 5: tile(w, first, panel, 5); break;
            case 4: tile(w, first, panel, 4); break;
            case 3: tile(w, first, panel, 3); break;
            case 2: tile(w, first, panel, 2); break;
            case 1: tile(w, first, panel, 1); break;
        }
    }
}

INLINE int64_t up(int64_t n, int64_t by) { return (n + by - 1) / by * by; }

/* The forward pass of samples first..last-1. */
INLINE int forward(const shape_t *s, int64_t first, int64_t last, const float *a, const float *w, const float *bias, float *y) {
    int64_t c = s->channels, p = s->outputs, panels = up(p, PANEL) / PANEL, positions = s->rows * s->columns;
    int joined = s->dilation[1] == 1;
    int64_t runs = s->kernel[0] * (joined ? 1 : s->kernel[1]), length = joined ? s->kernel[1] * c : c;
    int64_t high = (s->rows - 1) * s->stride[0] + s->dilation[0] * (s->kernel[0] - 1) + 1;
    int64_t wide = (s->columns - 1) * s->stride[1] + s->dilation[1] * (s->kernel[1] - 1) + 1;
    int in_place = s->a[1] == 1 && s->a[3] == c && !s->padding[0] && !s->padding[1];
    int64_t line = in_place ? s->a[2] : wide * c;
    size_t bytes[6] = {in_place ? 0 : high * line * sizeof(float), panels * runs * length * PANEL * sizeof(float),
                       panels * PANEL * sizeof(float), runs * sizeof(ptrdiff_t), positions * sizeof(ptrdiff_t),
                       positions * sizeof(ptrdiff_t)};
    char *parts[6];
    if (!room_for(bytes, parts, 6)) return 1;
    float *border = (float *)parts[0], *packed = (float *)parts[1], *start = (float *)parts[2];
    ptrdiff_t *run = (ptrdiff_t *)parts[3], *from = (ptrdiff_t *)parts[4], *to = (ptrdiff_t *)parts[5];
    memset(packed, 0, bytes[1]);
    memset(start, 0, bytes[2]);
    for (int64_t q = 0; q < p; q++) {
        float *panel = packed + q / PANEL * runs * length * PANEL + q % PANEL;
        for (int64_t i = 0; i < s->kernel[0]; i++)
            for (int64_t j = 0; j < s->kernel[1]; j++)
                for (int64_t k = 0; k < c; k++, panel += PANEL) *panel = w[q * s->w[0] + k * s->w[1] + i * s->w[2] + j * s->w[3]];
        start[q] = bias ? bias[q] : 0;
    }
    for (int64_t r = 0; r < runs; r++)
        run[r] = joined ? r * s->dilation[0] * line
                        : r / s->kernel[1] * s->dilation[0] * line + r % s->kernel[1] * s->dilation[1] * c;
    for (int64_t i = 0, k = 0; i < s->rows; i++)
        for (int64_t j = 0; j < s->columns; j++, k++) {
            from[k] = i * s->stride[0] * line + j * s->stride[1] * c;
            to[k] = i * s->y[2] + j * s->y[3];
        }
    for (int64_t n = first; n < last; n++) {
        const float *sample = a + n * s->a[0];
        if (!in_place) {
            const image_t image = {sample, c, s->height, s->width, s->a[1], s->a[2], s->a[3]};
            framed(&image, s->padding[0], s->padding[1], high, wide, border);
            sample = border;
        }
        const product_t one = {sample, from, run, runs, length, packed, start, y + n * s->y[0], to, positions, p};
        product(&one);
    }
    return 0;
}

/* Of the taps that reach the pixels of one remainder: the first, how many, and by how much the first position they come from
 * lies before the pixel's own place. */
typedef struct {
    int64_t first, count, before;
} reach_t;

INLINE reach_t reach(const shape_t *s, int along, int64_t remainder) {
    int64_t step = s->stride[along], place = (remainder + s->padding[along]) % step;
    reach_t found = {place, place < s->kernel[along] ? (s->kernel[along] - place + step - 1) / step : 0,
                     (remainder + s->padding[along]) / step};
    return found;
}

/* The gradient at the input of samples first..last-1, g having the steps of y and the result those of a. No dilation. */
INLINE int backward(const shape_t *s, int64_t first, int64_t last, const float *g, const float *w, float *a) {
    int64_t c = s->channels, p = s->outputs, panels = up(c, PANEL) / PANEL;
    /* Zeros around the output gradient, as far as any tap reaches. */
    int64_t above = (s->kernel[0] - 1) / s->stride[0], left = (s->kernel[1] - 1) / s->stride[1];
    int64_t high = above + (s->height + s->padding[0] - 1) / s->stride[0] + 1;
    int64_t wide = left + (s->width + s->padding[1] - 1) / s->stride[1] + 1, line = wide * p;
    int64_t taps = s->kernel[0] * s->kernel[1], pixels = s->height * s->width;
    size_t bytes[7] = {high * line * sizeof(float), panels * taps * p * PANEL * sizeof(float), panels * PANEL * sizeof(float),
                       taps * sizeof(ptrdiff_t), pixels * sizeof(ptrdiff_t), pixels * sizeof(ptrdiff_t),
                       s->stride[0] * s->stride[1] * sizeof(product_t)};
    char *parts[7];
    if (!room_for(bytes, parts, 7)) return 1;
    float *border = (float *)parts[0], *packed = (float *)parts[1], *start = (float *)parts[2];
    ptrdiff_t *run = (ptrdiff_t *)parts[3], *from = (ptrdiff_t *)parts[4], *to = (ptrdiff_t *)parts[5];
    memset(packed, 0, bytes[1]);
    memset(start, 0, bytes[2]);
    product_t *products = (product_t *)parts[6];
    int64_t kinds = 0;
    for (int64_t r = 0; r < s->stride[0]; r++)
        for (int64_t q = 0; q < s->stride[1]; q++) {
            reach_t y = reach(s, 0, r), x = reach(s, 1, q);
            int64_t count = y.count * x.count, positions = 0;
            for (int64_t i = 0; i < y.count; i++)
                for (int64_t j = 0; j < x.count; j++) {
                    /* The last tap comes from the earliest position: in the order of memory it is first. */
                    int64_t row = y.first + (y.count - 1 - i) * s->stride[0], column = x.first + (x.count - 1 - j) * s->stride[1];
                    const float *one = w + row * s->w[2] + column * s->w[3];
                    run[i * x.count + j] = i * line + j * p;
                    for (int64_t k = 0; k < c; k++) {
                        float *panel = packed + (k / PANEL * count + i * x.count + j) * p * PANEL + k % PANEL;
                        for (int64_t o = 0; o < p; o++) panel[o * PANEL] = one[o * s->w[0] + k * s->w[1]];
                    }
                }
            for (int64_t i = r; i < s->height; i += s->stride[0])
                for (int64_t j = q; j < s->width; j += s->stride[1], positions++) {
                    int64_t row = i / s->stride[0] + y.before - (y.count - 1) + above;
                    int64_t column = j / s->stride[1] + x.before - (x.count - 1) + left;
                    from[positions] = row * line + column * p;
                    to[positions] = i * s->a[2] + j * s->a[3];
                }
            products[kinds++] = (product_t){border, from, run, count, p, packed, start, NULL, to, positions, c};
            packed += panels * count * p * PANEL, run += count, from += positions, to += positions;
        }
    for (int64_t n = first; n < last; n++) {
        const image_t image = {g + n * s->y[0], p, s->rows, s->columns, s->y[1], s->y[2], s->y[3]};
        framed(&image, above, left, high, wide, border);
        for (int64_t k = 0; k < kinds; k++) {
            products[k].out = a + n * s->a[0];
            product(&products[k]);
        }
    }
    return 0;
}

static int forward_plain(const shape_t *s, int64_t first, int64_t last, const float *a, const float *w, const float *b, float *y) {
    return forward(s, first, last, a, w, b, y);
}

static int backward_plain(const shape_t *s, int64_t first, int64_t last, const float *g, const float *w, float *a) {
    return backward(s, first, last, g, w, a);
}

#if defined(__x86_64__)
FAST static int forward_avx2(const shape_t *s, int64_t first, int64_t last, const float *a,
                                                            const float *w, const float *b, float *y) {
    return forward(s, first, last, a, w, b, y);
}

FAST static int backward_avx2(const shape_t *s, int64_t first, int64_t last, const float *g,
                                                             const float *w, float *a) {
    return backward(s, first, last, g, w, a);
}
#endif

/* Not 0: there was no memory. */
EXPORT int sordino_correlation(int level, const int64_t *shape, int64_t first, int64_t last, const float *a, const float *w,
                               const float *bias, float *y) {
    const shape_t *s = (const shape_t *)shape;
#if defined(__x86_64__)
    if (best(level) == AVX2) return forward_avx2(s, first, last, a, w, bias, y);
#endif
    return forward_plain(s, first, last, a, w, bias, y);
}

EXPORT int sordino_correlation_input(int level, const int64_t *shape, int64_t first, int64_t last, const float *g, const float *w,
                                     float *a) {
    const shape_t *s = (const shape_t *)shape;
#if defined(__x86_64__)
    if (best(level) == AVX2) return backward_avx2(s, first, last, g, w, a);
#endif
    return backward_plain(s, first, last, g, w, a);
}

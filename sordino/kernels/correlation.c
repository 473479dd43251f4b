/* A convolution's output and the gradient at its input, channels innermost: y[t, p] = b[p] + sum over taps k and channels c of
 * a[t + k, c] w[k, c, p].
 *
 * Both are one product of the same form. The gradient at the input of a convolution with stride s falls into s x s such
 * products, one for every remainder of a pixel's place by the stride, each with the taps that reach those pixels. A tile of
 * ROWS positions by WIDE vectors of output channels stays in the registers over all taps; what it reads of the input is never
 * copied, but for the borders.
 */
#include "gemm.h"
#include "image.h"

#define WIDE 2
#define PANEL COLUMNS /* output channels of a tile */

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

/* Sums begin at the bias, and the positions of a tile may lie anywhere: a tile of its own around the common loop. */
INLINE void position_tile(const product_t *w, int64_t first, int64_t panel, const int tall) {
    vec sum[ROWS][WIDE];
    const float *a[ROWS], *b = w->weights + panel * w->count * w->length * PANEL, *start = w->bias + panel * PANEL;
    for (int i = 0; i < tall; i++) {
        a[i] = w->a + w->from[first + i];
        for (int j = 0; j < WIDE; j++) sum[i][j] = AT(start + j * LANES);
    }
    for (int64_t run = 0; run < w->count; run++, b += w->length * PANEL) {
        ptrdiff_t at = w->runs[run];
        ADD_PRODUCTS(sum, tall, WIDE, w->length, ALL(a[i][at + t]), AT(b + t * PANEL + j * LANES));
    }
    int64_t left = w->channels - panel * PANEL;
    for (int i = 0; i < tall; i++) {
        float *out = w->out + w->to[first + i] + panel * PANEL;
        if (left >= PANEL)
            for (int j = 0; j < WIDE; j++) PUT(out + j * LANES) = sum[i][j];
        else
            memcpy(out, sum[i], left * sizeof *out);
    }
}

INLINE void product(const product_t *w) {
    for (int64_t panel = 0; panel * PANEL < w->channels; panel++) {
        int64_t first = 0;
#define TILE(tall) position_tile(w, first, panel, tall)
        for (; first + ROWS <= w->positions; first += ROWS) TILE(ROWS);
        WITH_CONSTANT(w->positions - first, TILE)
#undef TILE
    }
}

/* The forward pass of samples first..last-1. */
INLINE int forward(const int64_t *shape, int64_t first, int64_t last, const float *a, const float *w, const float *bias, float *y) {
    const shape_t *s = (const shape_t *)shape;
    int64_t c = s->channels, p = s->outputs, panels = (int64_t)rounded(p, PANEL) / PANEL, positions = s->rows * s->columns;
    int joined = s->dilation[1] == 1;
    int64_t runs = s->kernel[0] * (joined ? 1 : s->kernel[1]), length = joined ? s->kernel[1] * c : c;
    int64_t high = (s->rows - 1) * s->stride[0] + s->dilation[0] * (s->kernel[0] - 1) + 1;
    int64_t wide = (s->columns - 1) * s->stride[1] + s->dilation[1] * (s->kernel[1] - 1) + 1;
    int in_place = s->a[CHANNEL] == 1 && s->a[COLUMN] == c && !s->padding[0] && !s->padding[1];
    int64_t line = in_place ? s->a[ROW] : wide * c;
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
            to[k] = i * s->y[ROW] + j * s->y[COLUMN];
        }
    for (int64_t n = first; n < last; n++) {
        const float *sample = a + n * s->a[SAMPLE];
        if (!in_place) {
            const image_t image = {sample, c, s->height, s->width, s->a[CHANNEL], s->a[ROW], s->a[COLUMN]};
            bordered(&image, s->padding[0], s->padding[1], high, wide, border);
            sample = border;
        }
        const product_t one = {sample, from, run, runs, length, packed, start, y + n * s->y[SAMPLE], to, positions, p};
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
INLINE int backward(const int64_t *shape, int64_t first, int64_t last, const float *g, const float *w, float *a) {
    const shape_t *s = (const shape_t *)shape;
    int64_t c = s->channels, p = s->outputs, panels = (int64_t)rounded(c, PANEL) / PANEL;
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
                    to[positions] = i * s->a[ROW] + j * s->a[COLUMN];
                }
            products[kinds++] = (product_t){border, from, run, count, p, packed, start, NULL, to, positions, c};
            packed += panels * count * p * PANEL, run += count, from += positions, to += positions;
        }
    for (int64_t n = first; n < last; n++) {
        const image_t image = {g + n * s->y[SAMPLE], p, s->rows, s->columns, s->y[CHANNEL], s->y[ROW], s->y[COLUMN]};
        bordered(&image, above, left, high, wide, border);
        for (int64_t k = 0; k < kinds; k++) {
            products[k].out = a + n * s->a[SAMPLE];
            product(&products[k]);
        }
    }
    return 0;
}

/* Both return 0, or 1 where memory is short. */
BY_LEVEL(sordino_correlation, forward,
         (const int64_t *shape, int64_t first, int64_t last, const float *a, const float *w, const float *bias, float *y),
         (shape, first, last, a, w, bias, y))
BY_LEVEL(sordino_correlation_input, backward,
         (const int64_t *shape, int64_t first, int64_t last, const float *g, const float *w, float *a),
         (shape, first, last, g, w, a))

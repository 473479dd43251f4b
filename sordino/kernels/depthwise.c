/* The weight gradients of a depthwise convolution, one per sample: rows of (channels, taps) and their squared norms.
 *
 * For sample i, channel c and tap k:  G_i[c, k] = sum over positions t of g_i[t, c] a_i[t + k, c].
 * No two channels meet, so the channels are the lanes of vectors: one vector of g is multiplied with what each tap of a kernel
 * row meets, and the sums of these taps stay in the registers.
 */
#include "image.h"
#include "sample_gradients.h"

#define TAPS 7        /* of a kernel row at a time */
#define POSITIONS 256 /* added up before they go to the result */

typedef struct {
    const float *a, *g;                    /* from a channel on, pixels `channels` apart */
    ptrdiff_t down, right, tap;            /* in a: to the next row of positions, the next position, the next tap */
    int64_t channels, rows, columns;
    int64_t lanes;                         /* of a vector that count */
} strip_t;

/* out[l * taps_in_all + j] += weight * (the sum of tap j), for some rows of positions. */
INLINE void strip(const strip_t *s, const int taps, float weight, float *out, int64_t taps_in_all) {
    vec sum[TAPS];
    for (int j = 0; j < taps; j++) sum[j] = ALL(0.0f);
    for (int64_t y = 0; y < s->rows; y++) {
        const float *a = s->a + y * s->down, *g = s->g + y * s->columns * s->channels;
        for (int64_t x = 0; x < s->columns; x++, a += s->right, g += s->channels) {
            const vec one = AT(g);
            for (int j = 0; j < taps; j++) sum[j] += one * AT(a + j * s->tap);
        }
    }
    for (int64_t l = 0; l < s->lanes; l++)
        for (int j = 0; j < taps; j++) out[l * taps_in_all + j] += weight * sum[j][l];
}

INLINE void any_strip(const strip_t *s, int64_t taps, float weight, float *out, int64_t taps_in_all) {
#define CASE(n) case n: strip(s, n, weight, out, taps_in_all); return
    switch (taps) { CASE(7); CASE(6); CASE(5); CASE(4); CASE(3); CASE(2); CASE(1); }
#undef CASE
}

INLINE int work(const shape_t *s, const work_t *w) {
    int64_t c = s->channels, taps = s->kernel[0] * s->kernel[1], size = c * taps, high = read_size(s, 0), wide = read_size(s, 1);
    int keep = w->rows != NULL, add = w->squared == NULL;
    int64_t some = least(s->rows, POSITIONS / s->columns > 1 ? POSITIONS / s->columns : 1);
    size_t bytes[3] = {(high * wide * c + LANES) * sizeof(float), (s->rows * s->columns * c + LANES) * sizeof(float),
                       keep ? 0 : size * sizeof(float)};
    char *parts[3];
    if (!room_for(bytes, parts, 3)) return 1;
    float *pixels = (float *)parts[0], *grads = (float *)parts[1], *one = keep ? w->rows : (float *)parts[2];
    /* Read by the lanes that do not count. */
    memset(pixels + high * wide * c, 0, LANES * sizeof *pixels);
    memset(grads + s->rows * s->columns * c, 0, LANES * sizeof *grads);
    for (int64_t i = w->first; i < w->last; i++) {
        float weight = w->weights ? w->weights[i] : 1;
        if (add && weight == 0) continue;
        const image_t a = {w->a + i * s->a[SAMPLE], c, s->height, s->width, s->a[CHANNEL], s->a[ROW], s->a[COLUMN]};
        const image_t g = {w->g + i * s->y[SAMPLE], c, s->rows, s->columns, s->y[CHANNEL], s->y[ROW], s->y[COLUMN]};
        bordered(&a, s->padding[0], s->padding[1], high, wide, pixels);
        bordered(&g, 0, 0, s->rows, s->columns, grads);
        float *out = keep && !add ? one + i * size : one;
        if (!add) memset(out, 0, size * sizeof *out);
        for (int64_t first = 0; first < s->rows; first += some)
            for (int64_t from = 0; from < c; from += LANES)
                for (int64_t ky = 0; ky < s->kernel[0]; ky++)
                    for (int64_t kx = 0; kx < s->kernel[1]; kx += TAPS) {
                        int64_t row = first * s->stride[0] + ky * s->dilation[0];
                        const strip_t of = {.a = pixels + (row * wide + kx * s->dilation[1]) * c + from,
                                            .g = grads + first * s->columns * c + from,
                                            .down = s->stride[0] * wide * c,
                                            .right = s->stride[1] * c,
                                            .tap = s->dilation[1] * c,
                                            .channels = c,
                                            .rows = least(some, s->rows - first),
                                            .columns = s->columns,
                                            .lanes = least(LANES, c - from)};
                        any_strip(&of, least(TAPS, s->kernel[1] - kx), weight, out + from * taps + ky * s->kernel[1] + kx, taps);
                    }
        if (!add) w->squared[i] = (float)squares(out, size);
    }
    return 0;
}

/* Maxima of windows of an image, and the gradient at its input, with channels last: the channels of a pixel are the lanes.
 *
 * Which tap of its window was the largest is kept in two bytes for each output, where torch keeps eight. Of equal values it is the
 * first, and what is not a number is larger than any number, as in torch. At the input every pixel adds up what comes from the windows
 * it lies in, in their order: the same sums as torch's, to the last bit.
 */
#include "vectors.h"

typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef int16_t shorts __attribute__((vector_size(2 * LANES)));
typedef shorts unaligned_shorts __attribute__((aligned(2)));

/* As pool.py lays it out. */
typedef struct {
    int64_t channels, height, width, rows, columns, kernel[2], stride[2], padding[2];
} window_t;

INLINE int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE vec chosen(ivec where, vec yes, vec no) { return (vec)((where & (ivec)yes) | (~where & (ivec)no)); }

/* One output pixel: its window has high x wide taps from `x` on, which is tap `first`. Sizes are constants where they are usual. */
INLINE void largest(const window_t *s, const float *x, int64_t first, const int64_t high, const int64_t wide, int64_t run, float *y,
                    int16_t *taps) {
    const int64_t c = s->channels, down = s->width * c;
    const int32_t across = (int32_t)s->kernel[1];
    int64_t k = 0;
    for (; k + LANES <= run; k += LANES) {
        vec most = AT(x + k);
        ivec where = (ivec){0} + (int32_t)first;
        for (int64_t i = 0; i < high; i++)
            for (int64_t j = 0; j < wide; j++) {
                const vec value = AT(x + i * down + j * c + k);
                const ivec more = (ivec)(value > most) | (ivec)(value != value);
                most = chosen(more, value, most);
                where = (more & ((ivec){0} + ((int32_t)first + (int32_t)i * across + (int32_t)j))) | (~more & where);
            }
        PUT(y + k) = most;
        *(unaligned_shorts *)(taps + k) = __builtin_convertvector(where, shorts);
    }
    for (; k < run; k++) {
        float most = x[k];
        int64_t where = first;
        for (int64_t i = 0; i < high; i++)
            for (int64_t j = 0; j < wide; j++) {
                const float value = x[i * down + j * c + k];
                if (value > most || value != value) most = value, where = first + i * across + j;
            }
        y[k] = most, taps[k] = (int16_t)where;
    }
}

INLINE int pooled(const int64_t *shape, int64_t first, int64_t last, const float *x, float *y, int16_t *taps) {
    const window_t *s = (const window_t *)shape;
    const int64_t c = s->channels, image = s->height * s->width * c, size = s->rows * s->columns * c;
    for (int64_t n = first; n < last; n++)
        for (int64_t row = 0; row < s->rows; row++)
            for (int64_t column = 0, many; column < s->columns; column += many) {
                const int64_t top = row * s->stride[0] - s->padding[0], left = column * s->stride[1] - s->padding[1];
                const int64_t i = at_least(0, -top), j = at_least(0, -left), tap = i * s->kernel[1] + j;
                const int64_t high = at_most(s->kernel[0], s->height - top) - i, wide = at_most(s->kernel[1], s->width - left) - j;
                const float *at = x + n * image + ((top + i) * s->width + left + j) * c;
                const int64_t out = n * size + (row * s->columns + column) * c;
                /* Windows side by side, all inside the image, are one with more channels. */
                many = s->stride[1] == 1 && wide == s->kernel[1] ? at_most(s->columns - column, s->width - left - wide + 1) : 1;
                if (high == 2 && wide == 2)
                    largest(s, at, tap, 2, 2, many * c, y + out, taps + out);
                else if (high == 3 && wide == 3)
                    largest(s, at, tap, 3, 3, many * c, y + out, taps + out);
                else
                    largest(s, at, tap, high, wide, many * c, y + out, taps + out);
            }
    return 0;
}

/* One input pixel, in high x wide windows: `g` and `taps` are those of the first, of which the pixel is tap `first`. */
INLINE void gathered(const window_t *s, const float *g, const int16_t *taps, int64_t first, const int64_t high, const int64_t wide,
                     int64_t run, float *x) {
    const int64_t c = s->channels, down = s->columns * c;
    const int32_t up = (int32_t)(s->stride[0] * s->kernel[1]), back = (int32_t)s->stride[1];
    int64_t k = 0;
    for (; k + LANES <= run; k += LANES) {
        vec sum = {0};
        for (int64_t i = 0; i < high; i++)
            for (int64_t j = 0; j < wide; j++) {
                const int64_t out = i * down + j * c + k;
                const ivec found = __builtin_convertvector(*(const unaligned_shorts *)(taps + out), ivec);
                const ivec mine = found == ((ivec){0} + ((int32_t)first - (int32_t)i * up - (int32_t)j * back));
                sum += (vec)((ivec)AT(g + out) & mine);
            }
        PUT(x + k) = sum;
    }
    for (; k < run; k++) {
        float sum = 0;
        for (int64_t i = 0; i < high; i++)
            for (int64_t j = 0; j < wide; j++) {
                const int64_t out = i * down + j * c + k;
                if (taps[out] == first - i * up - j * back) sum += g[out];
            }
        x[k] = sum;
    }
}

INLINE int64_t first_window(int64_t place, int64_t kernel, int64_t stride) {
    return place < kernel ? 0 : (place - kernel) / stride + 1;
}

INLINE int spread(const int64_t *shape, int64_t first, int64_t last, const float *g, const int16_t *taps, float *x) {
    const window_t *s = (const window_t *)shape;
    const int64_t c = s->channels, image = s->height * s->width * c, size = s->rows * s->columns * c;
    for (int64_t n = first; n < last; n++)
        for (int64_t row = 0; row < s->height; row++) {
            const int64_t down = row + s->padding[0], from = first_window(down, s->kernel[0], s->stride[0]);
            const int64_t high = at_most(s->rows, down / s->stride[0] + 1) - from;
            for (int64_t column = 0, many; column < s->width; column += many) {
                const int64_t right = column + s->padding[1], begin = first_window(right, s->kernel[1], s->stride[1]);
                const int64_t wide = at_most(s->columns, right / s->stride[1] + 1) - begin;
                const int64_t out = n * size + (from * s->columns + begin) * c;
                const int64_t tap = (down - from * s->stride[0]) * s->kernel[1] + right - begin * s->stride[1];
                float *at = x + n * image + (row * s->width + column) * c;
                /* So are pixels side by side, each in as many windows as the kernel is wide. */
                many = s->stride[1] == 1 && wide == s->kernel[1] ? at_most(s->width - column, s->columns - begin - wide + 1) : 1;
                if (high == 1 && wide == 1)
                    gathered(s, g + out, taps + out, tap, 1, 1, many * c, at);
                else if (high == 2 && wide == 2)
                    gathered(s, g + out, taps + out, tap, 2, 2, many * c, at);
                else
                    gathered(s, g + out, taps + out, tap, high, wide, many * c, at);
            }
        }
    return 0;
}

/* Samples first..last-1: outputs y and the taps they are from; gradients at the input x from those at the outputs. Both return 0. */
BY_LEVEL(sordino_pool, pooled, (const int64_t *shape, int64_t first, int64_t last, const float *x, float *y, int16_t *taps),
         (shape, first, last, x, y, taps))
BY_LEVEL(sordino_pool_input, spread,
         (const int64_t *shape, int64_t first, int64_t last, const float *g, const int16_t *taps, float *x),
         (shape, first, last, g, taps, x))

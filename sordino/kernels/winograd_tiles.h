/* Winograd's minimal filtering F(2x2, 3x3) (Lavin & Gray 2016): what goes from images to tiles, and the product in between.
 *
 * An output tile of 2 x 2 pixels comes from 4 x 4 pixels d, and three taps in a row from 4 products in place of 6:
 *
 *     y = A'[(G w G') . (B'd B)]A     and so, for a gradient g at the output,     dw = G'[(A g A') . (B'd B)]G
 *
 *     B' = 1  0 -1  0     G =  1    0    0      A' = 1  1  1  0
 *          0  1  1  0         1/2  1/2  1/2         0  1 -1 -1
 *          0 -1  1  0         1/2 -1/2  1/2
 *          0  1  0 -1          0    0    1
 *
 * With channels innermost each transform works on a vector of channels at a time, and what is left are POINTS matrix products.
 */
#include "gemm.h"
#include "image.h"

#define SIDE 4
#define POINTS (SIDE * SIDE)
#define PANEL COLUMNS /* channels that are computed at once */

/* Blocks of nearly the same size, multiples of ROWS, none larger than `most`. */
INLINE int64_t even(int64_t total, int64_t most) {
    int64_t blocks = (total + most - 1) / most;
    return (int64_t)rounded((total + blocks - 1) / blocks, ROWS);
}

/* Which tile of which image: they are numbered through all samples. */
typedef struct {
    int64_t sample, top, left; /* of the output */
} place_t;

INLINE place_t place(const shape_t *s, int64_t number) {
    int64_t wide = (s->columns + 1) / 2, each = (s->rows + 1) / 2 * wide, tile = number % each;
    return (place_t){number / each, tile / wide * 2, tile % wide * 2};
}

/* Pixels of a patch and the steps between them. */
typedef struct {
    const float *pixels;
    int64_t row, column;
} patch_t;

/* side x side pixels from (top, left) on: where they lie, or copied to `border` with zeros around the image and after its last
 * channel, whose room beyond the channels is zero already. */
INLINE patch_t patch(const image_t *image, int64_t top, int64_t left, int64_t side, int64_t channels, float *border) {
    if (top >= 0 && left >= 0 && top + side <= image->height && left + side <= image->width && channels == image->channels)
        return (patch_t){image->pixels + top * image->row + left * image->column, image->row, image->column};
    float *to = border;
    for (int64_t y = top; y < top + side; y++)
        for (int64_t x = left; x < left + side; x++, to += channels)
            if (y >= 0 && y < image->height && x >= 0 && x < image->width)
                memcpy(to, image->pixels + y * image->row + x * image->column, image->channels * sizeof *to);
            else
                memset(to, 0, channels * sizeof *to);
    return (patch_t){border, side * channels, channels};
}

/* Where the transform of a tile goes: vector v of a point to v / 2 * panel + v % 2 * LANES. */
typedef struct {
    float *first;
    int64_t point, panel;
} target_t;

/* B'd B. */
INLINE void spread_input(patch_t from, int64_t channels, target_t to) {
    for (int64_t c = 0; c < channels; c += LANES) {
        const float *d = from.pixels + c;
        float *out = to.first + c / PANEL * to.panel + c % PANEL;
        vec half[SIDE][SIDE];
        for (int x = 0; x < SIDE; x++, d += from.column) {
            vec a = AT(d), b = AT(d + from.row), e = AT(d + 2 * from.row), f = AT(d + 3 * from.row);
            half[0][x] = a - e, half[1][x] = b + e, half[2][x] = e - b, half[3][x] = b - f;
        }
        for (int y = 0; y < SIDE; y++, out += SIDE * to.point) {
            PUT(out) = half[y][0] - half[y][2];
            PUT(out + to.point) = half[y][1] + half[y][2];
            PUT(out + 2 * to.point) = half[y][2] - half[y][1];
            PUT(out + 3 * to.point) = half[y][1] - half[y][3];
        }
    }
}

/* A g A', times a weight. */
INLINE void spread_gradient(patch_t from, int64_t channels, float weight, target_t to) {
    for (int64_t c = 0; c < channels; c += LANES) {
        const float *g = from.pixels + c;
        float *out = to.first + c / PANEL * to.panel + c % PANEL;
        vec half[SIDE][2];
        for (int x = 0; x < 2; x++, g += from.column) {
            vec a = AT(g) * ALL(weight), b = AT(g + from.row) * ALL(weight);
            half[0][x] = a, half[1][x] = a + b, half[2][x] = a - b, half[3][x] = -b;
        }
        for (int y = 0; y < SIDE; y++, out += SIDE * to.point) {
            PUT(out) = half[y][0];
            PUT(out + to.point) = half[y][0] + half[y][1];
            PUT(out + 2 * to.point) = half[y][0] - half[y][1];
            PUT(out + 3 * to.point) = -half[y][1];
        }
    }
}

/* A 3 x 3 convolution's output by Winograd's F(2x2, 3x3): 16 products where 36 are multiplied out (winograd_tiles.h).
 *
 * The gradient at the input is the same, of the output gradient, with the weights turned around. A block of tiles is transformed
 * into the second-level cache; for a panel of output channels its POINTS products follow, and at once the way back to pixels. So
 * nothing larger than the block is ever written out. Each element is added up in the same order whatever block its tile is in.
 */
#include "winograd_tiles.h"

#define BLOCK (1 << 17) /* floats of a block's transform, three times as many where there are more channels than DEEP: then */
                        /* the weights, which every block reads, come from memory */
#define SOME 16         /* channels whose weights are transformed at once */
#define DEEP 256        /* input channels added up before the next: their weights stay in the first-level cache */
#define PITCH (POINTS * PANEL + PANEL) /* of a tile's products; the last panel keeps them apart */
#define POINT(s) (((s)->channels + 1) * PANEL) /* of the weights, likewise: powers of two would meet in one set of a cache */

/* The weights of a panel of outputs, G w G': (POINTS, channels + 1, PANEL), the last channel to keep points apart. Outputs past
 * the last are zero. */
INLINE void pack_panel(const shape_t *s, int64_t first, const float *w, float *to) {
    int64_t point = POINT(s), count = least(PANEL, s->outputs - first);
    float taps[9][SOME][PANEL] = {{{0}}}; /* a few channels at a time, read in runs of memory where there are any */
    for (int64_t begin = 0; begin < s->channels; begin += SOME) {
        int64_t some = least(SOME, s->channels - begin);
        for (int k = 0; k < 9; k++) {
            const float *from = w + first * s->w[0] + begin * s->w[1] + k / 3 * s->w[2] + k % 3 * s->w[3];
            if (s->w[0] == 1)
                for (int64_t c = 0; c < some; c++) memcpy(taps[k][c], from + c * s->w[1], count * sizeof *from);
            else
                for (int64_t p = 0; p < count; p++)
                    for (int64_t c = 0; c < some; c++) taps[k][c][p] = from[p * s->w[0] + c * s->w[1]];
        }
        for (int64_t c = 0; c < some; c++)
            for (int p = 0; p < PANEL; p += LANES) {
                vec half[SIDE][3];
                for (int x = 0; x < 3; x++) {
                    vec above = AT(taps[x][c] + p), middle = AT(taps[3 + x][c] + p), below = AT(taps[6 + x][c] + p);
                    half[0][x] = above, half[3][x] = below;
                    half[1][x] = ALL(0.5f) * (above + below + middle), half[2][x] = ALL(0.5f) * (above + below - middle);
                }
                float *out = to + (begin + c) * PANEL + p;
                for (int y = 0; y < SIDE; y++, out += SIDE * point) {
                    vec ends = half[y][0] + half[y][2];
                    PUT(out) = half[y][0];
                    PUT(out + point) = ALL(0.5f) * (ends + half[y][1]);
                    PUT(out + 2 * point) = ALL(0.5f) * (ends - half[y][1]);
                    PUT(out + 3 * point) = half[y][2];
                }
            }
    }
}

/* A'm A + bias to the pixels of one tile that are there. */
INLINE void collect(const shape_t *s, place_t at, const float *m, int64_t first, const float *bias, float *y) {
    int64_t high = least(2, s->rows - at.top), wide = least(2, s->columns - at.left), count = least(PANEL, s->outputs - first);
    float *to = y + at.sample * s->y[SAMPLE] + at.top * s->y[ROW] + at.left * s->y[COLUMN] + first;
    for (int64_t p = 0; p < count; p += LANES) {
        vec half[2][SIDE], out[2][2];
        for (int x = 0; x < SIDE; x++) {
            const float *at = m + x * PANEL + p;
            vec a = AT(at), b = AT(at + SIDE * PANEL), c = AT(at + 2 * SIDE * PANEL), d = AT(at + 3 * SIDE * PANEL);
            half[0][x] = a + (b + c), half[1][x] = (b - c) - d;
        }
        for (int i = 0; i < 2; i++) {
            out[i][0] = AT(bias + p) + (half[i][0] + (half[i][1] + half[i][2]));
            out[i][1] = AT(bias + p) + ((half[i][1] - half[i][2]) - half[i][3]);
        }
        for (int64_t i = 0; i < high; i++)
            for (int64_t j = 0; j < wide; j++) {
                float *pixel = to + i * s->y[ROW] + j * s->y[COLUMN] + p;
                if (p + LANES <= count)
                    PUT(pixel) = out[i][j];
                else
                    memcpy(pixel, &out[i][j], (count - p) * sizeof *pixel);
            }
    }
}

/* The output of samples first..last-1. */
INLINE int forward(const int64_t *shape, int64_t first, int64_t last, const float *a, const float *packed, const float *bias,
                   float *y) {
    const shape_t *s = (const shape_t *)shape;
    int64_t channels = rounded(s->channels, LANES), each = ((s->rows + 1) / 2) * ((s->columns + 1) / 2);
    int64_t begin = first * each, end = last * each;
    int64_t most = (channels > DEEP ? 3 * BLOCK : BLOCK) / (POINTS * channels) / ROWS * ROWS;
    int64_t block = even(end - begin, most < ROWS ? ROWS : most), point = block * channels + PANEL;
    size_t bytes[4] = {POINTS * point * sizeof(float), block * PITCH * sizeof(float), POINTS * channels * sizeof(float),
                       rounded(s->outputs, PANEL) * sizeof(float)};
    char *parts[4];
    if (!room_for(bytes, parts, 4)) return 1;
    float *spread = (float *)parts[0], *products = (float *)parts[1], *border = (float *)parts[2], *start = (float *)parts[3];
    memset(border, 0, bytes[2]);
    memset(start, 0, bytes[3]);
    if (bias) memcpy(start, bias, s->outputs * sizeof *bias);
    for (int64_t from = begin; from < end; from += block) {
        int64_t count = least(block, end - from);
        for (int64_t t = 0; t < count; t++) {
            place_t at = place(s, from + t);
            const image_t image = {a + at.sample * s->a[SAMPLE], s->channels, s->height, s->width, 1, s->a[ROW], s->a[COLUMN]};
            patch_t pixels = patch(&image, at.top - s->padding[0], at.left - s->padding[1], SIDE, channels, border);
            spread_input(pixels, channels, (target_t){spread + t * channels, point, PANEL});
        }
        for (int64_t p = 0; p < s->outputs; p += PANEL) {
            const float *weights = packed + p / PANEL * POINTS * POINT(s);
            for (int k = 0; k < POINTS; k++, weights += POINT(s))
                for (int64_t c = 0; c < s->channels; c += DEEP)
                    for (int64_t n = 0; n < count; n += ROWS) {
                        const float *left = spread + k * point + n * channels + c;
                        out_t to = out_rows(products + n * PITCH + k * PANEL, PITCH, c > 0);
#define TILE(rows) tile(rows, left, channels, 1, weights + c * PANEL, least(DEEP, s->channels - c), to, rows, COLUMNS, 0)
                        WITH_CONSTANT(least(ROWS, count - n), TILE)
#undef TILE
                    }
            for (int64_t t = 0; t < count; t++) collect(s, place(s, from + t), products + t * PITCH, p, start + p, y);
        }
    }
    return 0;
}

INLINE int pack(const int64_t *shape, int64_t first, int64_t last, const float *w, float *to) {
    const shape_t *s = (const shape_t *)shape;
    for (int64_t n = first; n < last; n++) pack_panel(s, n * PANEL, w, to + n * POINTS * POINT(s));
    return 0;
}

/* The transformed weights of panels first..last-1 of PANEL outputs, each of POINTS * PANEL times the input channels and one more. */
BY_LEVEL(sordino_winograd_weights, pack, (const int64_t *shape, int64_t first, int64_t last, const float *w, float *packed),
         (shape, first, last, w, packed))

/* The output of samples first..last-1; bias may be NULL. Not 0: there was no memory. */
BY_LEVEL(sordino_winograd, forward,
         (const int64_t *shape, int64_t first, int64_t last, const float *a, const float *packed, const float *bias, float *y),
         (shape, first, last, a, packed, bias, y))

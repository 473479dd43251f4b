/* The weight gradients of a convolution, one per sample: rows of (outputs, taps, channels) and their squared norms.
 *
 * For sample i, output channel p, tap k and input channel c:  G_i[p, k, c] = sum over positions t of g_i[t, p] a_i[t + k, c].
 * That is a matrix product whose second factor is never written out: with channels innermost, what a tap meets at a position
 * lies in one piece, and at the next position one stride further. A tile of TALL output channels by WIDE vectors stays in the
 * registers over a block of positions, which stays in the first-level cache.
 */
#include "gemm.h"
#include "image.h"
#include "sample_gradients.h"

#define TALL 4
#define WIDE 3
#define POSITIONS 256 /* of a block */

/* One vector of a tile: where its first lane lies from the first pixel of a patch on, where in a row of the result it goes,
 * and how many of its lanes count. */
typedef struct {
    ptrdiff_t from, to, lanes;
} piece_t;

typedef struct {
    const float *a;           /* the first pixel of the first position */
    const ptrdiff_t *at;      /* from there to the first pixel of every position of the block */
    int64_t positions;
    const float *g;           /* TALL values per position, or fewer for the last output channels */
    const piece_t *pieces;
    float *out;
    ptrdiff_t step;           /* between the rows of the result */
    int more;                 /* add to what is there */
} tile_t;

/* The result of one tile. The constants tell the compiler what to keep in registers. */
INLINE void patch_tile(const tile_t *of, const int tall, const int wide) {
    vec sum[TALL][WIDE];
    ptrdiff_t from[WIDE], lanes = LANES;
    for (int j = 0; j < wide; j++) from[j] = of->pieces[j].from, lanes &= of->pieces[j].lanes;
    for (int i = 0; i < tall; i++)
        for (int j = 0; j < wide; j++) sum[i][j] = ALL(0.0f);
    ADD_PRODUCTS(sum, tall, wide, of->positions, ALL(of->g[t * tall + i]), AT(of->a + of->at[t] + from[j]));
    if (lanes == LANES) {
        if (of->more)
            for (int i = 0; i < tall; i++)
                for (int j = 0; j < wide; j++) sum[i][j] += AT(of->out + i * of->step + of->pieces[j].to);
        for (int i = 0; i < tall; i++)
            for (int j = 0; j < wide; j++) PUT(of->out + i * of->step + of->pieces[j].to) = sum[i][j];
        return;
    }
    for (int i = 0; i < tall; i++)
        for (int j = 0; j < wide; j++) {
            float *out = of->out + i * of->step + of->pieces[j].to;
            for (int l = 0; l < of->pieces[j].lanes; l++) out[l] = of->more ? out[l] + sum[i][j][l] : sum[i][j][l];
        }
}

INLINE void any_tile(const tile_t *t, int64_t tall, int64_t wide) {
#define CASE(m, n) case WIDE * m + n: patch_tile(t, m, n); return
    switch (WIDE * tall + wide) {
        CASE(4, 3); CASE(4, 2); CASE(4, 1);
        CASE(3, 3); CASE(3, 2); CASE(3, 1);
        CASE(2, 3); CASE(2, 2); CASE(2, 1);
        CASE(1, 3); CASE(1, 2); CASE(1, 1);
    }
#undef CASE
}

/* Whether a sample's input can be read where it lies: channels innermost, no borders, no lanes past its end. */
INLINE int lies_well(const shape_t *s) {
    int64_t own = s->channels / s->groups, run = s->groups == 1 && s->dilation[1] == 1 ? s->kernel[1] * own : own;
    return s->a[CHANNEL] == 1 && s->a[COLUMN] == s->channels && !s->padding[0] && !s->padding[1] && run % LANES == 0;
}

/* A sample's output gradient in panels of TALL channels, positions in order, times its weight. */
INLINE void panels(const shape_t *s, const float *g, float weight, int64_t first, int64_t outputs, float *out) {
    for (int64_t p = 0; p < outputs; p += TALL) {
        int64_t tall = outputs - p < TALL ? outputs - p : TALL;
        const float *from = g + (first + p) * s->y[CHANNEL];
        for (int64_t y = 0; y < s->rows; y++)
            for (int64_t x = 0; x < s->columns; x++, out += tall) {
                const float *one = from + y * s->y[ROW] + x * s->y[COLUMN];
                if (tall == TALL)
                    for (int i = 0; i < TALL; i++) out[i] = weight * one[i * s->y[CHANNEL]];
                else
                    for (int i = 0; i < tall; i++) out[i] = weight * one[i * s->y[CHANNEL]];
            }
    }
}

/* The vectors a row of the result is made of. Without groups and dilation the taps of a kernel row lie side by side. */
INLINE int64_t cut(const shape_t *s, ptrdiff_t line, piece_t *pieces) {
    int64_t own = s->channels / s->groups, count = 0;
    int joined = s->groups == 1 && s->dilation[1] == 1;
    int64_t runs = joined ? 1 : s->kernel[1], length = joined ? s->kernel[1] * own : own;
    /* Three taps side by side share the pixels they read: vectors of equal channels go next to each other. */
    int across = joined && s->kernel[1] == WIDE && own % LANES == 0;
    for (int64_t y = 0; y < s->kernel[0]; y++)
        for (int64_t x = 0; x < runs; x++) {
            ptrdiff_t from = y * s->dilation[0] * line + x * s->dilation[1] * s->channels;
            ptrdiff_t to = (y * runs + x) * length;
            if (across)
                for (int64_t l = 0; l < own; l += LANES)
                    for (int64_t k = 0; k < WIDE; k++) pieces[count++] = (piece_t){from + k * own + l, to + k * own + l, LANES};
            else
                for (int64_t l = 0; l < length; l += LANES)
                    pieces[count++] = (piece_t){from + l, to + l, length - l < LANES ? length - l : LANES};
        }
    return count;
}

INLINE int work(const shape_t *s, const work_t *w) {
    int64_t own_outputs = s->outputs / s->groups, own = s->channels / s->groups, positions = s->rows * s->columns;
    int64_t row = own * s->kernel[0] * s->kernel[1], size = s->outputs * row;
    int keep = w->rows != NULL, add = w->squared == NULL, in_place = lies_well(s);
    int64_t wide = read_size(s, 1), line = in_place ? s->a[ROW] : wide * s->channels;
    int64_t padded = in_place ? 0 : read_size(s, 0) * line + LANES;
    int64_t most = s->kernel[0] * s->kernel[1] * (own / LANES + 1);
    size_t bytes[5] = {padded * sizeof(float), positions * own_outputs * sizeof(float), keep ? 0 : size * sizeof(float),
                       most * sizeof(piece_t), positions * sizeof(ptrdiff_t)};
    char *parts[5];
    if (!room_for(bytes, parts, 5)) return 1;
    float *border = (float *)parts[0], *grads = (float *)parts[1], *one = keep ? w->rows : (float *)parts[2];
    piece_t *pieces = (piece_t *)parts[3];
    ptrdiff_t *at = (ptrdiff_t *)parts[4];
    int64_t count = cut(s, line, pieces);
    for (int64_t y = 0, k = 0; y < s->rows; y++)
        for (int64_t x = 0; x < s->columns; x++) at[k++] = y * s->stride[0] * line + x * s->stride[1] * s->channels;
    for (int64_t i = w->first; i < w->last; i++) {
        float weight = w->weights ? w->weights[i] : 1;
        if (add && weight == 0) continue;
        const float *a = w->a + i * s->a[SAMPLE];
        if (!in_place) {
            const image_t image = {a, s->channels, s->height, s->width, s->a[CHANNEL], s->a[ROW], s->a[COLUMN]};
            bordered(&image, s->padding[0], s->padding[1], read_size(s, 0), wide, border);
            memset(border + padded - LANES, 0, LANES * sizeof *border); /* read by the lanes that do not count */
            a = border;
        }
        float *out = keep && !add ? one + i * size : one;
        for (int64_t group = 0; group < s->groups; group++) {
            panels(s, w->g + i * s->y[SAMPLE], weight, group * own_outputs, own_outputs, grads);
            for (int64_t first = 0; first < positions; first += POSITIONS) {
                tile_t t = {.a = a + group * own,
                            .at = at + first,
                            .positions = positions - first < POSITIONS ? positions - first : POSITIONS,
                            .step = row,
                            .more = add || first > 0};
                for (int64_t n = 0; n < count; n += WIDE)
                    for (int64_t p = 0; p < own_outputs; p += TALL) {
                        int64_t tall = own_outputs - p < TALL ? own_outputs - p : TALL;
                        t.g = grads + p * positions + first * tall;
                        t.pieces = pieces + n;
                        t.out = out + (group * own_outputs + p) * row;
                        any_tile(&t, tall, count - n < WIDE ? count - n : WIDE);
                    }
            }
        }
        if (!add) w->squared[i] = (float)squares(out, size);
    }
    return 0;
}

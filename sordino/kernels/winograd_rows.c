/* Weight gradients of 3 x 3 convolutions, one per sample, by Winograd's F(3x3, 2x2): the transpose of the output's (winograd_tiles.h).
 *
 * Of every tile the gradient at the output and the pixels are transformed, POINTS products over tiles follow, and one way back
 * to nine taps: for each sample (rows and norms), or once for the weighted sum of all, with a sample's weight in its gradient.
 */
#include "winograd_tiles.h"
#include "sample_gradients.h"

#define CACHED (1 << 17) /* floats: products that stay in the second-level cache from block to block of tiles */
#define FEW 32           /* tiles of a block if so */
#define MANY 64          /* and if not: fewer would read and write them too often */
#define AHEAD 4          /* outputs whose rows are asked for before they are written: fresh lines come from memory */

/* What a call works with. */
typedef struct {
    int64_t channels, outputs, block; /* rounded up to panels; tiles of a block */
    int64_t a_point, g_point, m_point;
    float *a, *g, *m;                 /* (POINTS, panels, block, PANEL) twice, (POINTS, panels, outputs, PANEL) */
    float *border;
} store_t;

/* Tile number t of a block. */
INLINE void spread(const shape_t *s, const work_t *w, const store_t *r, int64_t number, int64_t t, float weight) {
    place_t at = place(s, number);
    int64_t up = at.top - s->padding[0], before = at.left - s->padding[1];
    /* Pixels that no output reads count as zeros: they may be anything. */
    const image_t image = {w->a + at.sample * s->a[SAMPLE], s->channels, least(s->height, s->rows + 2 - s->padding[0]),
                           least(s->width, s->columns + 2 - s->padding[1]), 1, s->a[ROW], s->a[COLUMN]};
    const image_t grads = {w->g + at.sample * s->y[SAMPLE], s->outputs, s->rows, s->columns, 1, s->y[ROW], s->y[COLUMN]};
    float *border = r->border;
    spread_input(patch(&image, up, before, SIDE, r->channels, border), r->channels,
                 (target_t){r->a + t * PANEL, r->a_point, r->block * PANEL});
    border += POINTS * r->channels;
    spread_gradient(patch(&grads, at.top, at.left, 2, r->outputs, border), r->outputs, weight,
                    (target_t){r->g + t * PANEL, r->g_point, r->block * PANEL});
}

/* The products of `count` tiles for one point and one panel of input channels. */
INLINE void multiply(const store_t *r, int point, int64_t panel, int64_t count, float *m, int more) {
    const float *a = r->a + point * r->a_point + panel * r->block * PANEL, *g = r->g + point * r->g_point;
    for (int64_t p = 0; p < r->outputs; p += PANEL, g += r->block * PANEL, m += PANEL * PANEL) {
#define TILE(first, rows) tile(rows, g + first, 1, PANEL, a, count, out_rows(m + first * PANEL, PANEL, more), rows, COLUMNS, 0)
#if LANES == 16
        TILE(0, 6), TILE(6, 6), TILE(12, 5), TILE(17, 5), TILE(22, 5), TILE(27, 5);
#else
        TILE(0, 6), TILE(6, 5), TILE(11, 5);
#endif
#undef TILE
    }
}

/* G'm G of one panel of input channels to rows (outputs, 9, channels), unless there are none; the sum of squares. */
INLINE double collect(const shape_t *s, const float *m, int64_t point, int64_t panel, float *rows, int add) {
    int64_t count = least(PANEL, s->channels - panel * PANEL);
    d4 all = {0};
    for (int64_t p = 0; p < s->outputs; p++, m += PANEL) {
        vec squares = ALL(0.0f);
        if (rows)
            for (int k = 0; k < 9; k++) __builtin_prefetch(rows + ((p + AHEAD) * 9 + k) * s->channels + panel * PANEL, 1);
        for (int64_t c = 0; c < count; c += LANES) {
            vec half[3][SIDE];
            for (int x = 0; x < SIDE; x++) {
                const float *at = m + x * point + c;
                vec b = AT(at + SIDE * point), d = AT(at + 2 * SIDE * point), both = ALL(0.5f) * (b + d);
                half[0][x] = AT(at) + both, half[1][x] = ALL(0.5f) * (b - d), half[2][x] = both + AT(at + 3 * SIDE * point);
            }
            for (int y = 0; y < 3; y++) {
                vec both = ALL(0.5f) * (half[y][1] + half[y][2]);
                vec out[3] = {half[y][0] + both, ALL(0.5f) * (half[y][1] - half[y][2]), both + half[y][3]};
                for (int x = 0; x < 3; x++) {
                    squares += out[x] * out[x];
                    if (!rows) continue;
                    float *to = rows + (p * 9 + y * 3 + x) * s->channels + panel * PANEL + c;
                    if (c + LANES <= count)
                        PUT(to) = add ? (vec)(out[x] + AT(to)) : out[x];
                    else
                        for (int64_t l = 0; l < count - c; l++) to[l] = add ? to[l] + out[x][l] : out[x][l];
                }
            }
        }
        all += doubled(squares);
    }
    return total(all);
}

INLINE int work(const shape_t *s, const work_t *w) {
    int64_t each = ((s->rows + 1) / 2) * ((s->columns + 1) / 2), size = s->outputs * 9 * s->channels;
    int add = w->squared == NULL;
    store_t r = {.channels = rounded(s->channels, PANEL), .outputs = rounded(s->outputs, PANEL)};
    int64_t panels = r.channels / PANEL, block = POINTS * r.channels * r.outputs <= CACHED ? FEW : MANY;
    r.block = add ? block : least(block, each);
    int whole = add || r.block < each; /* products of more than one block are added up */
    r.a_point = r.block * r.channels + PANEL, r.g_point = r.block * r.outputs + PANEL;
    r.m_point = (whole ? panels : 1) * r.outputs * PANEL + PANEL;
    size_t bytes[4] = {POINTS * r.a_point * sizeof(float), POINTS * r.g_point * sizeof(float), POINTS * r.m_point * sizeof(float),
                       POINTS * (r.channels + r.outputs) * sizeof(float)};
    char *parts[4];
    if (!room_for(bytes, parts, 4)) return 1;
    r.a = (float *)parts[0], r.g = (float *)parts[1], r.m = (float *)parts[2], r.border = (float *)parts[3];
    memset(r.border, 0, bytes[3]);
    int more = 0;
    int64_t tiles = 0;
    for (int64_t i = w->first; i < w->last; i++) {
        float weight = w->weights ? w->weights[i] : 1;
        if (!add) more = 0;
        for (int64_t t = 0; t < each && !(add && weight == 0); t++) {
            spread(s, w, &r, i * each + t, tiles++, weight);
            int full = tiles == r.block || (!add && t + 1 == each);
            if (!full || !whole) continue;
            for (int k = 0; k < POINTS; k++)
                for (int64_t panel = 0; panel < panels; panel++)
                    multiply(&r, k, panel, tiles, r.m + k * r.m_point + panel * r.outputs * PANEL, more);
            more = 1, tiles = 0;
        }
        if (add) continue;
        double square = 0;
        for (int64_t panel = 0; panel < panels; panel++) {
            const float *m = r.m + (whole ? panel * r.outputs * PANEL : 0);
            if (!whole)
                for (int k = 0; k < POINTS; k++) multiply(&r, k, panel, tiles, r.m + k * r.m_point, 0);
            square += collect(s, m, r.m_point, panel, w->rows ? w->rows + i * size : NULL, 0);
        }
        w->squared[i] = (float)square;
        tiles = 0;
    }
    if (!add || !(more || tiles)) return 0;
    for (int64_t panel = 0; panel < panels; panel++) {
        float *m = r.m + panel * r.outputs * PANEL;
        if (tiles)
            for (int k = 0; k < POINTS; k++) multiply(&r, k, panel, tiles, m + k * r.m_point, more);
        collect(s, m, r.m_point, panel, w->rows, 1);
    }
    return 0;
}

/* Squared norms of per-sample gradients of linear maps: sum over t, s of (a_t . a_s)(g_t . g_s), for each sample; with it the
 * part of it where t = s, and the sum of |a_t||g_t|, which are on the way.
 *
 * Both factors are symmetric, so only pairs t >= s are formed, in tiles of TALL x WIDE that stay in registers: half the
 * work of two matrix products, and no T x T matrix. Products are float32, the sum over pairs is float64. Several inputs a that
 * share one g (a recurrent layer's two) share its tiles. A sample's rows are first copied to a stretch of its own: rows
 * that lie a power of two apart would compete for the same lines of the cache.
 */
#include "gemm.h"

#define TALL 4
#define WIDE 3
#define NEAR (TALL + WIDE - 1)         /* ways a tile can lie on the diagonal */
#define WARM (1 << 16)                 /* floats of one factor that are gone through at once */
#define PAD 16                         /* floats between two rows of a copy */

/* One factor: (samples, T, width), the last dimension dense, the others by strides in elements; or the rows of all samples, one after the
 * other, with a stride of 0 between samples. */
typedef struct {
    const float *at;
    int64_t sample, row, width;
} factor_t;

/* Rows first..first + count of one sample. */
typedef struct {
    size_t sample, first, count;
} stretch_t;

/* The rows of one factor, copied; zeros up to a multiple of LANES, and rows of zeros after the last. */
typedef struct {
    float *at;
    size_t width, stride;
} copy_t;

static size_t room(size_t t, size_t width) { return (t + TALL) * (rounded(width, LANES) + PAD); }

INLINE const float *row_of(const factor_t *from, stretch_t at, size_t row) {
    return from->at + (int64_t)at.sample * from->sample + (int64_t)(at.first + row) * from->row;
}

INLINE void copied(const factor_t *from, stretch_t at, copy_t *to) {
    for (size_t row = 0; row < at.count; row++)
        memcpy(to->at + row * to->stride, row_of(from, at, row), (size_t)from->width * sizeof(float));
    memset(to->at + at.count * to->stride, 0, TALL * to->stride * sizeof(float)); /* a longer one may have been there */
}

/* Asks for rows of the next sample while this one is being worked on. */
INLINE void awaited(const factor_t *from, stretch_t at, size_t first, size_t last) {
    for (size_t row = first; row < last && row < at.count; row++)
        for (int64_t k = 0; k < from->width; k += LINE) __builtin_prefetch(row_of(from, at, row) + k, 0, 2);
}

/* Sample k: t rows of its own, or as many as ranges[k][1] from ranges[k][0] on. */
INLINE stretch_t stretch(size_t k, size_t t, const uint64_t (*ranges)[2]) {
    return ranges ? (stretch_t){k, ranges[k][0], ranges[k][1]} : (stretch_t){k, 0, t};
}

/* The sums over the lanes of four vectors, two each in both halves. */
INLINE v8 folded(v8 a, v8 b, v8 c, v8 d) {
    v8 ab = SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
    v8 cd = SHUFFLE(c, d, 0, 1, 2, 3, 8, 9, 10, 11) + SHUFFLE(c, d, 4, 5, 6, 7, 12, 13, 14, 15);
    return SHUFFLE(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) + SHUFFLE(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
}

INLINE v8 summed(v8 a, v8 b) {
    return SHUFFLE(a, b, 0, 2, 8, 10, 4, 6, 12, 14) + SHUFFLE(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
}

/* TALL x WIDE scalars, each the sum over one vector's lanes, in an order of no importance but always the same. */
INLINE void scalars(const v8 tile[TALL][WIDE], v8 *first, v8 *second) {
    v8 none = ALL8(0.0f);
    *first = summed(folded(tile[0][0], tile[0][1], tile[0][2], tile[1][0]),
                    folded(tile[1][1], tile[1][2], tile[2][0], tile[2][1]));
    *second = summed(folded(tile[2][2], tile[3][0], tile[3][1], tile[3][2]), none);
}

/* Products of TALL rows from `above` on with WIDE rows from `across` on. */
INLINE void tile_of(const copy_t *x, size_t above, size_t across, v8 *first, v8 *second) {
    const float *left = x->at + above * x->stride, *right = x->at + across * x->stride;
    size_t stride = x->stride, width = x->width;
    vec tile[TALL][WIDE];
    v8 eights[TALL][WIDE];
    for (int i = 0; i < TALL; i++)
        for (int j = 0; j < WIDE; j++) tile[i][j] = ALL(0.0f);
    ADD_PRODUCTS(tile, TALL, WIDE, width / LANES, AT(left + i * stride + t * LANES), AT(right + j * stride + t * LANES));
    for (int i = 0; i < TALL; i++)
        for (int j = 0; j < WIDE; j++) eights[i][j] = EIGHT(tile[i][j]);
    scalars((const v8(*)[WIDE])eights, first, second);
}

/* How often each pair of a tile counts whose first column is `ahead` rows after its first row, in the order of `scalars`. */
typedef struct {
    v8 whole[2], diagonal[2];
} count_t;

INLINE void counts(int ahead, count_t *found) {
    v8 whole[TALL][WIDE], diagonal[TALL][WIDE];
    for (int i = 0; i < TALL; i++)
        for (int j = 0; j < WIDE; j++) {
            int distance = ahead + j - i;
            whole[i][j] = diagonal[i][j] = ALL8(0.0f);
            whole[i][j][0] = distance > 0 ? 2.0f : distance == 0 ? 1.0f : 0.0f;
            diagonal[i][j][0] = distance == 0 ? 1.0f : 0.0f;
        }
    scalars((const v8(*)[WIDE])whole, &found->whole[0], &found->whole[1]);
    scalars((const v8(*)[WIDE])diagonal, &found->diagonal[0], &found->diagonal[1]);
}

/* |x_t| on the diagonal, of squares and how often they count, no less than `least`; what lies beside it may be negative. */
INLINE v8 lengths(v8 squares, v8 count, float least) {
    v8 found = squares * count + ALL8(least);
    for (int i = 0; i < 8; i++) found[i] = __builtin_sqrtf(found[i]);
    return found * count;
}

/* Samples begin..end of `factors` (g, then `inputs` inputs), T rows each, or at most T by `ranges`: out[sample][input] = {sum,
 * its diagonal part, sum of lengths}; each element of a factor adds `floor` to the square of a length. */
INLINE int grams(const factor_t *factors, uint64_t inputs, uint64_t begin, uint64_t end, uint64_t t, const uint64_t (*ranges)[2],
                 float floor, double *out) {
    size_t floats = 0;
    out += 3 * inputs * begin;
    copy_t copies[1 + inputs];
    for (size_t k = 0; k <= inputs; k++) floats += room(t, (size_t)factors[k].width);
    float *made = zeros(floats), *room_left = made;
    if (!made) return 1;
    for (size_t k = 0; k <= inputs; k++) {
        size_t width = rounded((size_t)factors[k].width, LANES);
        copies[k] = (copy_t){room_left, width, width + PAD};
        room_left += room(t, (size_t)factors[k].width);
    }
    count_t near[NEAR];
    for (int k = 0; k < NEAR; k++) counts(k - WIDE + 1, &near[k]);
    size_t block = rounded(WARM / copies[0].stride + 1, WIDE);
    for (size_t sample = begin; sample < end; sample++) {
        stretch_t here = stretch(sample, t, ranges), next = {0, 0, 0};
        if (sample + 1 < end) next = stretch(sample + 1, t, ranges);
        for (size_t k = 0; k <= inputs; k++) copied(&factors[k], here, &copies[k]);
        d4 sums[inputs], diagonals[inputs], long_by[inputs];
        memset(sums, 0, sizeof sums), memset(diagonals, 0, sizeof diagonals), memset(long_by, 0, sizeof long_by);
        for (size_t from = 0; from < here.count; from += block) { /* columns that stay in the cache while the rows go by */
            size_t to = from + block < here.count ? from + block : here.count;
            for (size_t row = 0; row < to; row += TALL) {
                if (row >= from)
                    for (size_t k = 0; k <= inputs; k++)
                        awaited(&factors[k], next, row, row + TALL < to ? row + TALL : to);
                size_t first = row / WIDE * WIDE;
                for (size_t column = first > from ? first : from; column < to; column += WIDE) {
                    v8 g[2], a[2];
                    tile_of(&copies[0], row, column, &g[0], &g[1]);
                    int ahead = (int)(column - row), on = ahead < TALL;
                    const float least = floor * (float)factors[0].width;
                    for (size_t k = 0; k < inputs; k++) {
                        tile_of(&copies[k + 1], row, column, &a[0], &a[1]);
                        for (int half = 0; on && half < 2; half++) {
                            v8 each = near[ahead + WIDE - 1].diagonal[half];
                            long_by[k] += doubled8(lengths(a[half], each, floor * (float)factors[k + 1].width) *
                                                   lengths(g[half], each, least));
                        }
                        a[0] *= g[0], a[1] *= g[1];
                        if (on) {
                            const count_t *count = &near[ahead + WIDE - 1];
                            sums[k] += doubled8(a[0] * count->whole[0]) + doubled8(a[1] * count->whole[1]);
                            diagonals[k] += doubled8(a[0] * count->diagonal[0]) + doubled8(a[1] * count->diagonal[1]);
                        } else {
                            sums[k] += 2.0 * (doubled8(a[0]) + doubled8(a[1]));
                        }
                    }
                }
            }
        }
        for (size_t k = 0; k < inputs; k++, out += 3) {
            out[0] = total(sums[k]);
            out[1] = total(diagonals[k]);
            out[2] = total(long_by[k]);
        }
    }
    freed(made);
    return 0;
}

/* 0, or 1 where memory is short. */
BY_LEVEL(sordino_grams, grams,
         (const factor_t *factors, uint64_t inputs, uint64_t begin, uint64_t end, uint64_t t, const uint64_t (*ranges)[2], float floor,
          double *out),
         (factors, inputs, begin, end, t, ranges, floor, out))

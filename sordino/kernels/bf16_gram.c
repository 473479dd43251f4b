/* Squared norms of per-sample gradients of linear maps from bfloat16: sum over t, s of (a_t . a_s)(g_t . g_s), for each sample;
 * with it the part of it where t = s, and the sum of |a_t||g_t|, which are on the way (gram.c has the same for float32).
 *
 * A sample's rows are first turned, so that WIDTH positions lie side by side for each pair of columns: a tile of WIDTH x WIDTH
 * positions then stays in registers, and no lanes are added up. Both factors are symmetric: tiles above the diagonal count
 * twice. At most 2 DEEP products are added up in float32 in one run; the sum over tiles is float64.
 */
#include "bf16.h"

#if defined(__x86_64__)
#define DEEP 64 /* pairs; in longer runs squares that are small beside their sum are lost, and the norm reads low */

/* One factor: (samples, T, width), the last dimension dense, the others by strides in elements. */
typedef struct {
    const uint16_t *at;
    int64_t sample, row, width;
} factor_t;

/* A factor's pairs of one sample, turned: (positions / WIDTH, pairs, WIDTH). */
typedef struct {
    uint32_t *at;
    size_t pairs;
} turned_t;

typedef struct {
    float at[WIDTH][WIDTH];
} tile_t;

LOW __m512i two(__m512i a, __m512i b, const int high) {
    const __m512i low_halves = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    const __m512i high_halves = _mm512_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    return _mm512_permutex2var_epi32(a, high ? high_halves : low_halves, b);
}

LOW __m512i quarters(__m512i a, __m512i b, const int high) {
    const __m512i even = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
    const __m512i odd = _mm512_setr_epi32(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    return _mm512_permutex2var_epi32(a, high ? odd : even, b);
}

/* Rows and columns of WIDTH x WIDTH pairs exchanged: halves, quarters, and so on, each of a row with those of another. */
LOW void exchanged(__m512i x[WIDTH]) {
    for (int i = 0; i < 8; i++) {
        __m512i a = x[i], b = x[i + 8];
        x[i] = two(a, b, 0), x[i + 8] = two(a, b, 1);
    }
    for (int k = 0; k < WIDTH; k += 8)
        for (int i = k; i < k + 4; i++) {
            __m512i a = x[i], b = x[i + 4];
            x[i] = quarters(a, b, 0), x[i + 4] = quarters(a, b, 1);
        }
    for (int k = 0; k < WIDTH; k += 4)
        for (int i = k; i < k + 2; i++) {
            __m512i a = x[i], b = x[i + 2];
            x[i] = _mm512_unpacklo_epi64(a, b), x[i + 2] = _mm512_unpackhi_epi64(a, b);
        }
    for (int i = 0; i < WIDTH; i += 2) { /* lanes 0 2 1 3 of both */
        __m512i a = _mm512_shuffle_epi32(x[i], _MM_PERM_DBCA), b = _mm512_shuffle_epi32(x[i + 1], _MM_PERM_DBCA);
        x[i] = _mm512_unpacklo_epi32(a, b), x[i + 1] = _mm512_unpackhi_epi32(a, b);
    }
}

/* One sample's t rows, turned; zeros beyond the last row and column. */
LOW void turned(const factor_t *from, size_t sample, size_t t, turned_t *to) {
    const uint16_t *first = from->at + (int64_t)sample * from->sample;
    uint32_t *at = to->at;
    for (size_t row = 0; row < t; row += WIDTH, at += to->pairs * WIDTH)
        for (size_t k = 0; k < to->pairs; k += WIDTH) {
            int64_t left = from->width - 2 * (int64_t)k;
            __mmask32 some = left >= 2 * WIDTH ? 0xffffffffu : (1u << left) - 1;
            __m512i x[WIDTH];
            for (size_t i = 0; i < WIDTH; i++)
                x[i] = row + i < t ? _mm512_maskz_loadu_epi16(some, first + (int64_t)(row + i) * from->row + 2 * (int64_t)k)
                                   : _mm512_setzero_si512();
            exchanged(x);
            for (size_t i = 0; i < WIDTH; i++) _mm512_store_si512(at + (k + i) * WIDTH, x[i]);
        }
}

/* The products of WIDTH positions with WIDTH others, by their places. */
LOW void tile_of(const turned_t *x, size_t above, size_t across, tile_t *to) {
    const uint32_t *left = x->at + above * x->pairs * WIDTH, *right = x->at + across * x->pairs * WIDTH;
    for (size_t from = 0; from < x->pairs; from += DEEP) {
        size_t depth = x->pairs - from < DEEP ? x->pairs - from : DEEP;
        __m512 sum[WIDTH];
        for (int i = 0; i < WIDTH; i++) sum[i] = _mm512_setzero_ps();
        for (size_t k = 0; k < depth; k++, left += WIDTH, right += WIDTH) {
            __m512i all = _mm512_load_si512(right);
            for (int i = 0; i < WIDTH; i++) sum[i] = with_products(sum[i], _mm512_set1_epi32((int)left[i]), all);
        }
        for (int i = 0; i < WIDTH; i++)
            _mm512_storeu_ps(to->at[i], from ? _mm512_add_ps(sum[i], _mm512_loadu_ps(to->at[i])) : sum[i]);
    }
}

/* {sum, its diagonal part, sum of lengths} of one sample's t positions; least[.] is added to the squares of lengths. */
LOW void gram(const turned_t *g, const turned_t *a, size_t t, const float least[2], double *out) {
    __m512d sum = _mm512_setzero_pd();
    out[1] = out[2] = 0.0;
    for (size_t row = 0; row < t; row += WIDTH)
        for (size_t column = row; column < t; column += WIDTH) {
            tile_t of_g, of_a;
            tile_of(g, row / WIDTH, column / WIDTH, &of_g);
            tile_of(a, row / WIDTH, column / WIDTH, &of_a);
            __m512d here = _mm512_setzero_pd();
            for (int i = 0; i < WIDTH; i++)
                here = _mm512_add_pd(here, doubled(_mm512_mul_ps(_mm512_loadu_ps(of_g.at[i]), _mm512_loadu_ps(of_a.at[i]))));
            sum = _mm512_add_pd(sum, column > row ? _mm512_add_pd(here, here) : here);
            for (size_t i = 0; column == row && i < WIDTH && row + i < t; i++) {
                float one = of_g.at[i][i], other = of_a.at[i][i];
                out[1] += (double)(one * other);
                out[2] += (double)(__builtin_sqrtf(one + least[0]) * __builtin_sqrtf(other + least[1]));
            }
        }
    out[0] = total(sum);
}

BF16 static int grams(const factor_t *g, const factor_t *a, uint64_t begin, uint64_t end, uint64_t t, float floor, double *out) {
    size_t high = rounded(t, WIDTH), of_g = rounded((size_t)g->width, 2 * WIDTH) / 2, of_a = rounded((size_t)a->width, 2 * WIDTH) / 2;
    uint32_t *made = allocated(high * (of_g + of_a) * sizeof(uint32_t));
    if (!made) return 1;
    turned_t left = {made, of_g}, right = {made + high * of_g, of_a};
    const float least[2] = {floor * (float)g->width, floor * (float)a->width};
    for (size_t sample = begin; sample < end; sample++) {
        turned(g, sample, t, &left);
        turned(a, sample, t, &right);
        gram(&left, &right, t, least, out + 3 * sample);
    }
    freed(made);
    return 0;
}

/* Samples begin..end: out[sample] = {sum, its diagonal part, sum of lengths}; each element of a factor adds `floor` to the
 * square of a length. 0, or 1 where memory is short or the level too low. */
EXPORT int sordino_bf16_grams(int level, const factor_t *g, const factor_t *a, uint64_t begin, uint64_t end, uint64_t t, float floor,
                              double *out) {
    return sordino_level(level) ? grams(g, a, begin, end, t, floor, out) : 1;
}
#else
EXPORT int sordino_bf16_grams(void) { return 1; }
#endif

/* Products of a linear map's inputs and output gradients in bfloat16: each sample's g_i^T a_i in float32 with the sum of its
 * squares, or out += sum over samples of w_i g_i^T a_i; and for a bias each sample's sum of g_i over positions.
 *
 * A sample's positions are added up, at most DEEP at a time, before its weight is multiplied in, which stays in float32. LONG
 * positions of all samples together make up a tile before it goes to `out`. Two positions lie side by side in a packed panel;
 * where their number is odd the last is followed by zeros. Each element is added up in the same order whatever part of `out` a
 * call is asked for.
 */
#include "bf16.h"

#if defined(__x86_64__)
#define ROWS 12
#define COLUMNS (2 * WIDTH)
#define DEEP 256
#define LONG 512
#define HIGH (32 * ROWS)
#define PANEL (LONG / 2 * ROWS + WIDTH) /* pairs from one to the next: at a power of two they would compete for lines of the cache */
#define AHEAD 4                         /* positions that are asked for before they are packed */

typedef struct {
    const uint16_t *g, *a; /* (samples, t, p), (samples, t, d) by strides in elements, the last dense */
    const float *w;        /* (samples) or NULL: ones */
    int64_t g_sample, g_row, a_sample, a_row;
    uint64_t samples, t, p, d;
    float *out;            /* (p, d), the last dense */
    int64_t out_row;
} product_t;

/* A matrix of one sample, from some position and column on. */
typedef struct {
    const uint16_t *at;
    int64_t row;
} place_t;

/* Positions of one sample that are added up together: `depth` pairs. */
typedef struct {
    size_t sample, from, count, depth;
} run_t;

LOW run_t run_of(const product_t *of, size_t number) {
    size_t each = (of->t + DEEP - 1) / DEEP, from = number % each * DEEP;
    size_t count = of->t - from < DEEP ? of->t - from : DEEP;
    return (run_t){number / each, from, count, (count + 1) / 2};
}

/* Sixteen columns, or as many as the mask says, of one position and the next, side by side. */
LOW __m512i side_by_side(const uint16_t *first, const uint16_t *second, __mmask16 some) {
    __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, first));
    if (!second) return low;
    return _mm512_or_si512(low, _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, second)), 16));
}

/* `wide` columns of a run to panels of `each` columns, `apart` pairs from one to the next; zeros beyond the last column. */
LOW void packed(place_t from, const run_t *run, size_t wide, const size_t each, size_t apart, uint32_t *to) {
    for (size_t t = 0; t < run->count; t += 2, to += each) {
        const uint16_t *first = from.at + (int64_t)t * from.row, *second = t + 1 < run->count ? first + from.row : NULL;
        for (size_t ahead = 0; t + AHEAD + 2 <= run->count && ahead < wide; ahead += 32) {
            __builtin_prefetch(first + AHEAD * from.row + (int64_t)ahead, 0, 3);
            __builtin_prefetch(first + (AHEAD + 1) * from.row + (int64_t)ahead, 0, 3);
        }
        uint32_t *at = to;
        for (size_t i = 0; i < wide; i += each, at += apart)
            for (size_t j = 0; j < each; j += WIDTH) {
                size_t held = each - j < WIDTH ? each - j : WIDTH;
                __mmask16 some = lanes(wide - i - j < held ? (int64_t)(wide - i) - (int64_t)j : (int64_t)held);
                const uint16_t *next = second ? second + i + j : NULL;
                _mm512_mask_storeu_epi32(at + j, lanes((int64_t)held), side_by_side(first + i + j, next, some));
            }
    }
}

/* sum += the products of ROWS columns of one panel with COLUMNS of the other. */
LOW void multiplied(const uint32_t *left, const uint32_t *right, size_t depth, __m512 sum[ROWS][2]) {
    for (int i = 0; i < ROWS; i++) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    for (size_t t = 0; t < depth; t++, left += ROWS, right += COLUMNS) {
        __m512i first = _mm512_loadu_si512(right), second = _mm512_loadu_si512(right + WIDTH);
        for (int i = 0; i < ROWS; i++) {
            __m512i all = _mm512_set1_epi32((int)left[i]);
            sum[i][0] = with_products(sum[i][0], all, first);
            sum[i][1] = with_products(sum[i][1], all, second);
        }
    }
}

/* Runs first..last, packed one after the other, to `high` x `wide` values of out; their squares are added to `square`, if asked for. */
LOW void tile(const product_t *of, size_t first, size_t last, const uint32_t *left, const uint32_t *right, float *out, size_t high,
              size_t wide, int add, __m512d *square) {
    float so_far[ROWS][COLUMNS];
    for (size_t number = first; number < last; number++) {
        run_t run = run_of(of, number);
        __m512 sum[ROWS][2];
        multiplied(left, right, run.depth, sum);
        left += run.depth * ROWS, right += run.depth * COLUMNS;
        const __m512 w = _mm512_set1_ps(of->w ? of->w[run.sample] : 1.0f);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < 2; j++) {
                float *held = so_far[i] + j * WIDTH;
                _mm512_storeu_ps(held, number == first ? _mm512_mul_ps(sum[i][j], w) : _mm512_fmadd_ps(sum[i][j], w, _mm512_loadu_ps(held)));
            }
    }
    const __mmask16 some[2] = {lanes((int64_t)wide), lanes((int64_t)wide - WIDTH)};
    __m512 squares = _mm512_setzero_ps();
    for (size_t i = 0; i < high; i++, out += of->out_row)
        for (int j = 0; j < 2; j++) {
            __m512 all = _mm512_loadu_ps(so_far[i] + j * WIDTH);
            if (add) all = _mm512_add_ps(all, _mm512_maskz_loadu_ps(some[j], out + j * WIDTH));
            _mm512_mask_storeu_ps(out + j * WIDTH, some[j], all);
            squares = _mm512_mask3_fmadd_ps(all, all, squares, some[j]);
        }
    if (square) *square = _mm512_add_pd(*square, doubled(squares));
}

static uint32_t *space(void) { return allocated((HIGH / ROWS * PANEL + LONG / 2 * COLUMNS) * sizeof(uint32_t)); }

/* Rows begin..end of out = (add ? out : 0) + product; the sum of their squares, if asked for. */
LOW double product(const product_t *of, size_t begin, size_t end, int add, int squares, uint32_t *made) {
    uint32_t *panel = made + HIGH / ROWS * PANEL;
    __m512d square = _mm512_setzero_pd();
    size_t runs = of->samples * ((of->t + DEEP - 1) / DEEP), together = LONG / rounded(of->t < DEEP ? of->t : DEEP, 2);
    for (size_t top = begin; top < end; top += HIGH) {
        size_t high = end - top < HIGH ? end - top : HIGH;
        for (size_t first = 0; first < runs; first += together) {
            size_t last = runs - first < together ? runs : first + together;
            uint32_t *to = made;
            for (size_t number = first; number < last; number++) {
                run_t run = run_of(of, number);
                const uint16_t *g = of->g + (int64_t)run.sample * of->g_sample + (int64_t)run.from * of->g_row + (int64_t)top;
                packed((place_t){g, of->g_row}, &run, high, ROWS, PANEL, to);
                to += run.depth * ROWS;
            }
            for (size_t j = 0; j < of->d; j += COLUMNS) {
                size_t wide = of->d - j < COLUMNS ? of->d - j : COLUMNS;
                to = panel;
                for (size_t number = first; number < last; number++) {
                    run_t run = run_of(of, number);
                    const uint16_t *a = of->a + (int64_t)run.sample * of->a_sample + (int64_t)run.from * of->a_row + (int64_t)j;
                    packed((place_t){a, of->a_row}, &run, wide, COLUMNS, COLUMNS, to);
                    to += run.depth * COLUMNS;
                }
                for (size_t i = 0; i < high; i += ROWS) {
                    float *out = of->out + (int64_t)(top + i) * of->out_row + (int64_t)j;
                    size_t tall = high - i < ROWS ? high - i : ROWS;
                    for (size_t row = 0; row < tall; row++) __builtin_prefetch(out + (int64_t)row * of->out_row, 1, 3);
                    tile(of, first, last, made + i / ROWS * PANEL, panel, out, tall, wide, add || first,
                         squares && last == runs ? &square : NULL);
                }
            }
        }
    }
    return total(square);
}

BF16 static int whole(const product_t *of, uint64_t begin, uint64_t end, int add) {
    uint32_t *made = space();
    if (!made) return 1;
    product(of, begin, end, add, 0, made);
    freed(made);
    return 0;
}

BF16 static int samples(const product_t *first, int64_t apart, uint64_t begin, uint64_t end, double *squared) {
    uint32_t *made = space();
    if (!made) return 1;
    for (size_t i = begin; i < end; i++) {
        product_t of = *first;
        of.samples = 1;
        of.g += (int64_t)i * of.g_sample, of.a += (int64_t)i * of.a_sample, of.out += (int64_t)i * apart;
        squared[i] = product(&of, 0, of.p, 0, 1, made);
    }
    freed(made);
    return 0;
}

/* The sums over positions of `wide` columns, four vectors of them or fewer. */
LOW void added(place_t from, size_t t, size_t wide, float *out) {
    __mmask16 some[4];
    __m512 all[4];
    for (int j = 0; j < 4; j++) some[j] = lanes((int64_t)wide - j * WIDTH), all[j] = _mm512_setzero_ps();
    for (size_t first = 0; first < t; first += DEEP) {
        __m512 sum[4];
        for (int j = 0; j < 4; j++) sum[j] = _mm512_setzero_ps();
        for (size_t row = first; row < t && row < first + DEEP; row++)
            for (int j = 0; j < 4; j++) {
                __m512i high = side_by_side(from.at + (int64_t)row * from.row + j * WIDTH, NULL, some[j]);
                sum[j] = _mm512_add_ps(sum[j], _mm512_castsi512_ps(_mm512_slli_epi32(high, 16)));
            }
        for (int j = 0; j < 4; j++) all[j] = _mm512_add_ps(all[j], sum[j]);
    }
    for (int j = 0; j < 4; j++) _mm512_mask_storeu_ps(out + j * WIDTH, some[j], all[j]);
}

BF16 static int columns(const product_t *of, uint64_t begin, uint64_t end) {
    for (size_t i = begin; i < end; i++)
        for (size_t j = 0; j < of->p; j += 4 * WIDTH) {
            place_t from = {of->g + (int64_t)i * of->g_sample + (int64_t)j, of->g_row};
            added(from, of->t, of->p - j < 4 * WIDTH ? of->p - j : 4 * WIDTH, of->out + (int64_t)i * of->out_row + (int64_t)j);
        }
    return 0;
}

/* Rows begin..end of the sum over all samples, added to what is there or not; 0, or 1 where memory is short or the level too low. */
EXPORT int sordino_bf16_sum(int level, const product_t *of, uint64_t begin, uint64_t end, int add) {
    return sordino_level(level) ? whole(of, begin, end, add) : 1;
}

/* The products of samples begin..end, `apart` floats from one to the next, each with its sum of squares. */
EXPORT int sordino_bf16_rows(int level, const product_t *of, int64_t apart, uint64_t begin, uint64_t end, double *squared) {
    return sordino_level(level) ? samples(of, apart, begin, end, squared) : 1;
}

/* The sums over positions of g of samples begin..end, one to each row of out; neither a nor w is read. */
EXPORT int sordino_bf16_columns(int level, const product_t *of, uint64_t begin, uint64_t end) {
    return sordino_level(level) ? columns(of, begin, end) : 1;
}
#else
EXPORT int sordino_bf16_columns(void) { return 1; }
EXPORT int sordino_bf16_sum(void) { return 1; }
EXPORT int sordino_bf16_rows(void) { return 1; }
#endif

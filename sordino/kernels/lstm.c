/* One direction of one LSTM layer, all steps of some samples, forward and backward.
 *
 *     (i, f, z, o) = act(W_ih x_t + W_hh h_{t-1} + b),  c_t = f c_{t-1} + i z,  h_t = o tanh(c_t)
 *
 * A step is one product of [x_t, h_{t-1}] with both weights at once, which are packed once for all steps, and one pass over
 * the gates while they are in the cache. A block of samples goes through all its steps before the next begins. The backward pass
 * writes the gradients at the gates' inputs over the gates. Float32; sums of products are fused where the processor can.
 */
#include "gemm.h"

#define DEEP 512               /* terms added up before the next columns' turn */
#define BLOCK 48               /* samples that go through time together */

typedef struct {
    uint64_t steps, batch, width, hidden;     /* T, B, d, H */
    const float *x;                           /* (T, B, d) by strides in elements, the last dense */
    int64_t x_step, x_sample;
    const float *w_ih, *w_hh, *bias;          /* (4H, d), (4H, H), (4H) */
    const float *h0, *c0;                     /* (B, H) */
    float *read;                              /* (T, B, d + H): x_t and h_{t-1} */
    float *gates;                             /* (T, B, 4H): i, f, z, o; after the backward pass their inputs' gradients */
    float *cells;                             /* (T + 1, B, H) */
    float *out;                               /* (T, B, H) */
    const float *dout;                        /* (T, B, H) by strides, the last dense */
    int64_t dout_step, dout_sample;
    const float *dlast;                       /* (B, H): gradient at the last cell state */
    float *dx;                                /* (T, B, d), or NULL */
    float *dh0, *dc0;                         /* (B, H) */
    float *sums;                              /* (B, 4H): gradients at the gates' inputs, added up over time */
} layer_t;

/* e^r - 1 for |r| <= ln 2 / 2, relative error 1.4e-8 before rounding; minimax, by iterated reweighting. */
INLINE float less_one(float r) {
    float q = 0x1.6bebdap-10f * r + 0x1.122886p-7f;
    q = q * r + 0x1.555676p-5f;
    q = q * r + 0x1.5554aep-3f;
    q = q * r + 0x1.fffffep-2f;
    return q * (r * r) + r;
}

/* y = n ln 2 + r: 2^n, and r by its address. |y| < 88. */
INLINE float power(float y, float *r) {
    float shifted = y * 0x1.715476p0f + 0x1.8p23f; /* the last bits of which are n */
    float n = shifted - 0x1.8p23f;
    *r = n * -0x1.7f7d1cp-20f + (n * -0x1.62e4p-1f + y);
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (int32_t)(((uint32_t)bits + 127u) << 23);
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

INLINE float clamped(float x, float most) { /* keeps nan */
    x = x > most ? most : x;
    return x < -most ? -most : x;
}

INLINE float sigmoid(float x) {
    float r, scale = power(clamped(-x, 87.0f), &r);
    return 1.0f / (1.0f + (scale * less_one(r) + scale));
}

/* (e^2x - 1) / (e^2x + 1): small x keep their digits. */
INLINE float hyperbolic(float x) {
    float r, scale = power(clamped(2.0f * x, 40.0f), &r);
    float above = scale * less_one(r) + (scale - 1.0f);
    return above / (above + 2.0f);
}

/* Panels of COLUMNS columns of a matrix (k, n), each k rows of COLUMNS, zeros beyond n; element (i, j) at i * down + j * right. */
INLINE void packed(const float *from, size_t k, size_t n, size_t down, size_t right, float *to, size_t depth, size_t at) {
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < k; i++) to[j / COLUMNS * depth * COLUMNS + (at + i) * COLUMNS + j % COLUMNS] = from[i * down + j * right];
}

static const float NOTHING[COLUMNS];

/* c (m, n) = add + a (m, k) times packed panels. A stride of 0 adds one row to all. */
INLINE void product(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *panels, float *c, size_t ldc,
                    const float *add, size_t ldadd) {
    for (size_t from = 0; from < k; from += DEEP) {
        size_t deep = k - from < DEEP ? k - from : DEEP;
        for (size_t j = 0; j < n; j += COLUMNS) {
            const float *panel = panels + (j / COLUMNS * k + from) * COLUMNS;
            const float *start = from ? c + j : add ? add + j : NOTHING;
            size_t lds = from ? ldc : add ? ldadd : 0, wide = n - j < COLUMNS ? n - j : COLUMNS;
            size_t i = 0;
#define TILE(rows) \
    tile(rows, a + i * lda + from, lda, 1, panel, deep, (out_t){c + i * ldc + j, ldc, start + i * lds, lds}, rows, wide, 0)
            for (; i + ROWS <= m; i += ROWS) TILE(ROWS);
            WITH_CONSTANT(m - i, TILE)
#undef TILE
        }
    }
}

INLINE void cell(size_t n, float *restrict i, float *restrict f, float *restrict z, float *restrict o,
                 const float *restrict before, float *restrict after, float *restrict h) {
    for (size_t j = 0; j < n; j++) {
        float a = sigmoid(i[j]), b = sigmoid(f[j]), c = hyperbolic(z[j]), d = sigmoid(o[j]);
        float state = b * before[j] + a * c;
        i[j] = a, f[j] = b, z[j] = c, o[j] = d;
        after[j] = state;
        h[j] = d * hyperbolic(state);
    }
}

INLINE void cell_back(size_t n, float *restrict i, float *restrict f, float *restrict z, float *restrict o,
                      const float *restrict before, const float *restrict after, const float *restrict dh,
                      float *restrict dc) {
    for (size_t j = 0; j < n; j++) {
        float a = i[j], b = f[j], c = z[j], d = o[j], y = hyperbolic(after[j]);
        float whole = dc[j] + dh[j] * d * (1.0f - y * y);
        dc[j] = whole * b;
        i[j] = whole * c * (a * (1.0f - a));
        f[j] = whole * before[j] * (b * (1.0f - b));
        z[j] = whole * a * (1.0f - c * c);
        o[j] = dh[j] * y * (d * (1.0f - d));
    }
}

INLINE int forward(const layer_t *layer, uint64_t begin, uint64_t end) {
    const size_t d = layer->width, h = layer->hidden, wide = 4 * h, deep = d + h, b = layer->batch;
    float *panels = zeros(rounded(wide, COLUMNS) * deep);
    if (!panels) return 1;
    packed(layer->w_ih, d, wide, 1, d, panels, deep, 0);
    packed(layer->w_hh, h, wide, 1, h, panels, deep, d);
    for (size_t s = begin; s < end; s++) {
        memcpy(layer->read + s * deep + d, layer->h0 + s * h, h * sizeof(float));
        memcpy(layer->cells + s * h, layer->c0 + s * h, h * sizeof(float));
    }
    for (size_t first = begin; first < end; first += BLOCK) {
        size_t rows = end - first < BLOCK ? end - first : BLOCK;
        for (size_t t = 0; t < layer->steps; t++) {
            float *read = layer->read + (t * b + first) * deep, *gates = layer->gates + (t * b + first) * wide;
            const float *x = layer->x + (int64_t)t * layer->x_step + (int64_t)first * layer->x_sample;
            for (size_t s = 0; s < rows; s++) memcpy(read + s * deep, x + (int64_t)s * layer->x_sample, d * sizeof(float));
            product(rows, wide, deep, read, deep, panels, gates, wide, layer->bias, 0);
            for (size_t s = 0; s < rows; s++) {
                float *g = gates + s * wide, *out = layer->out + (t * b + first + s) * h;
                float *state = layer->cells + (t * b + first + s) * h;
                cell(h, g, g + h, g + 2 * h, g + 3 * h, state, state + b * h, out);
                if (t + 1 < layer->steps) memcpy(read + (b + s) * deep + d, out, h * sizeof(float));
            }
        }
    }
    freed(panels);
    return 0;
}

INLINE int backward(const layer_t *layer, uint64_t begin, uint64_t end) {
    const size_t d = layer->width, h = layer->hidden, wide = 4 * h, b = layer->batch;
    size_t inputs = layer->dx ? rounded(d, COLUMNS) * wide : 0, states = rounded(h, COLUMNS) * wide;
    float *made = zeros(inputs + states + 2 * BLOCK * h), *to_x = made, *to_h = made + inputs;
    if (!made) return 1;
    float *dh = to_h + states, *dc = dh + BLOCK * h;
    if (layer->dx) packed(layer->w_ih, wide, d, d, 1, to_x, wide, 0);
    packed(layer->w_hh, wide, h, h, 1, to_h, wide, 0);
    memset(layer->sums + begin * wide, 0, (end - begin) * wide * sizeof(float));
    for (size_t first = begin; first < end; first += BLOCK) {
        size_t rows = end - first < BLOCK ? end - first : BLOCK;
        const float *dout = layer->dout + (int64_t)first * layer->dout_sample + (int64_t)(layer->steps - 1) * layer->dout_step;
        for (size_t s = 0; s < rows; s++) memcpy(dh + s * h, dout + (int64_t)s * layer->dout_sample, h * sizeof(float));
        memcpy(dc, layer->dlast + first * h, rows * h * sizeof(float));
        for (size_t t = layer->steps; t-- > 0;) {
            float *gates = layer->gates + (t * b + first) * wide;
            for (size_t s = 0; s < rows; s++) {
                float *g = gates + s * wide;
                const float *state = layer->cells + (t * b + first + s) * h;
                cell_back(h, g, g + h, g + 2 * h, g + 3 * h, state, state + b * h, dh + s * h, dc + s * h);
                float *restrict sums = layer->sums + (first + s) * wide;
                for (size_t j = 0; j < wide; j++) sums[j] += g[j];
            }
            if (layer->dx) product(rows, d, wide, gates, wide, to_x, layer->dx + (t * b + first) * d, d, NULL, 0);
            dout -= layer->dout_step;
            float *into = t ? dh : layer->dh0 + first * h;
            product(rows, h, wide, gates, wide, to_h, into, h, t ? dout : NULL, (size_t)layer->dout_sample);
        }
        memcpy(layer->dc0 + first * h, dc, rows * h * sizeof(float));
    }
    freed(made);
    return 0;
}

/* Samples begin..end, all steps; 0, or 1 where memory is short. */
BY_LEVEL(sordino_lstm_forward, forward, (const layer_t *layer, uint64_t begin, uint64_t end), (layer, begin, end))
BY_LEVEL(sordino_lstm_backward, backward, (const layer_t *layer, uint64_t begin, uint64_t end), (layer, begin, end))

/* Gaussian noise in one pass: ChaCha20 key stream (RFC 8439, 2018), Box-Muller (1958), addition to the sums.
 *
 * The values are those of sordino/normals.py, bit for bit, on every machine: the same operations of IEEE single precision
 * in the same order, compiled without contraction. Nothing here chooses, clips or keeps anything; the caller decides what
 * is added where. Work is cut into pieces of PAIRS pairs that stay in the first-level cache.
 *
 * Built by build.py. SORDINO_SOURCE is the hash of the sources, by which a library older than its source is recognised.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(type, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(type, a, b, ...) __builtin_shuffle(a, b, (type){__VA_ARGS__})
#endif

#define WORDS 16                   /* 32-bit words of a ChaCha20 block */
#define BLOCK ((uint64_t)1 << 18)  /* values made of one stretch of key stream; rng.BLOCK */
#define PAIRS 512                  /* pairs of values made at once */
#define RARE (1 << 15)             /* radius words below this take 32 more bits; normals.RARE */
#define EXTRA ((uint64_t)1 << 35)  /* where the stream of those bits begins, in words; normals.EXTRA */

typedef struct {
    uint32_t words[WORDS]; /* constants, key, block counter 0, number of the draw */
} state_t;

typedef struct {
    float **tensors;
    const uint64_t *ends; /* ends[k]: values in tensors 0..k */
    uint64_t count;
} target_t;

/* Where a reader is in the key stream. */
typedef struct {
    uint64_t block, have, used; /* the next block; words held, and how many of them are used */
    uint32_t words[PAIRS + 2 * WORDS];
} reader_t;

static void seek(reader_t *reader, uint64_t word) { reader->block = word / WORDS, reader->have = reader->used = 0; }

#define ROTATE(x, n) (((x) << (n)) | ((x) >> (32 - (n))))
#define QUARTERS(a, b, c, d, e, f, g, h)            /* two quarter rounds side by side */ \
    a += b, e += f, d = ROTATE16(d ^ a), h = ROTATE16(h ^ e);                             \
    c += d, g += h, b = ROTATE(b ^ c, 12), f = ROTATE(f ^ g, 12);                         \
    a += b, e += f, d = ROTATE8(d ^ a), h = ROTATE8(h ^ e);                               \
    c += d, g += h, b = ROTATE(b ^ c, 7), f = ROTATE(f ^ g, 7)
#define COLUMNS(x)                                                   \
    QUARTERS(x[0], x[4], x[8], x[12], x[1], x[5], x[9], x[13]);      \
    QUARTERS(x[2], x[6], x[10], x[14], x[3], x[7], x[11], x[15])
#define DIAGONALS(x)                                                 \
    QUARTERS(x[0], x[5], x[10], x[15], x[1], x[6], x[11], x[12]);    \
    QUARTERS(x[2], x[7], x[8], x[13], x[3], x[4], x[9], x[14])

/* One word, plainly: for the rare extra bits. */
#define ROTATE16(x) ROTATE(x, 16)
#define ROTATE8(x) ROTATE(x, 8)
static uint32_t word_at(const state_t *state, uint64_t index) {
    uint32_t x[WORDS], start[WORDS];
    memcpy(start, state->words, sizeof start);
    start[12] += (uint32_t)(index / WORDS);
    memcpy(x, start, sizeof x);
    for (int round = 0; round < 10; round++) {
        COLUMNS(x);
        DIAGONALS(x);
    }
    return x[index % WORDS] + start[index % WORDS];
}
#undef ROTATE16
#undef ROTATE8

INLINE float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint32_t as_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* 2^31 u of radius words, by their lower 31 bits. Returns whether any needs more bits. */
INLINE int uniforms(const uint32_t *restrict words, size_t n, float *restrict v) {
    int32_t least = INT32_MAX;
    for (size_t i = 0; i < n; i++) {
        int32_t k = (int32_t)(words[i] & 0x7fffffffu);
        least = k < least ? k : least;
        v[i] = (float)k + 0.5f;
    }
    return least < RARE;
}

/* The same with 32 more bits where the word is small, so that the tail reaches 9.42 deviations. */
static void refine(const state_t *state, const uint32_t *words, uint64_t first, size_t n, float *v) {
    for (size_t i = 0; i < n; i++) {
        int32_t k = (int32_t)(words[i] & 0x7fffffffu);
        if (k < RARE) v[i] = (float)((double)k + ((double)word_at(state, EXTRA + first + i) + 0.5) * 0x1p-32);
    }
}

/* scale * sqrt(-2 ln u) * (cos, sin)(2 pi a / 2^32). The polynomials and their errors are in normals.py. */
INLINE void box_muller(const float *restrict v, const uint32_t *restrict angles, size_t n, float scale,
                       float *restrict cosines, float *restrict sines) {
    for (size_t i = 0; i < n; i++) {
        int32_t bits = (int32_t)(as_bits(v[i]) - 0x4eb504f3u); /* u = 2^e m, sqrt(1/2) <= m < sqrt(2) */
        float e = (float)(bits >> 23);
        float f = as_float((uint32_t)(bits & 0x7fffff) + 0x3f3504f3u) - 1.0f;
        float g = f * f;
        float even = -0x1.65f792p-3f * g - 0x1.317fa6p-2f;
        even = even * g - 0x1.98d32ap-2f;
        even = even * g - 0x1.5556f2p-1f;
        even = even * g - 2.0f;
        float odd = 0x1.250e42p-2f * g + 0x1.535b18p-2f;
        odd = odd * g + 0x1.0004acp-1f;
        odd = odd * g + 0x1.fffffap-1f;
        float r = __builtin_sqrtf((odd * f + even) * f + e * -0x1.62e43p0f) * scale;
        uint32_t turned = (angles[i] + 0x40000000u) & 0x80000000u; /* by half a turn */
        float x = (float)(int32_t)(angles[i] << 1) * 0x1.921fb6p-31f;
        float y = x * x;
        float s = 0x1.5dc8c4p-19f * y - 0x1.9f70eep-13f;
        s = s * y + 0x1.110edap-7f;
        s = s * y - 0x1.55554cp-3f;
        s = s * (y * x) + x;
        float c = -0x1.196accp-22f * y + 0x1.9f931cp-16f;
        c = c * y - 0x1.6c14b8p-10f;
        c = c * y + 0x1.55555p-5f;
        c = c * y - 0.5f;
        c = c * y + 1.0f;
        r = as_float(as_bits(r) ^ turned);
        cosines[i] = r * c;
        sines[i] = r * s;
    }
}

/* Add n values to the tensors from position `first` of them on, laid end to end. */
INLINE void add(const target_t *to, uint64_t *tensor, uint64_t first, const float *restrict values, uint64_t n) {
    while (to->ends[*tensor] <= first) ++*tensor;
    for (uint64_t done = 0; done < n;) {
        uint64_t begin = *tensor ? to->ends[*tensor - 1] : 0, room = to->ends[*tensor] - (first + done);
        uint64_t piece = room < n - done ? room : n - done;
        float *restrict out = to->tensors[*tensor] + (first + done - begin);
        for (uint64_t i = 0; i < piece; i++) out[i] += values[done + i];
        done += piece;
        if (piece == room) ++*tensor;
    }
}

#define LANES 4
#define NAMED(name) name##_4
#define TARGET
#include "lanes.h"
#undef LANES
#undef NAMED
#undef TARGET

#if defined(__x86_64__)
#define LANES 8
#define NAMED(name) name##_avx2
#define TARGET __attribute__((target("avx2")))
#include "lanes.h"
#undef NAMED
#undef TARGET
#define NAMED(name) name##_avx512
#define TARGET __attribute__((target("avx2,avx512f,avx512vl,avx512bw,avx512dq")))
#include "lanes.h"
#undef LANES
#undef NAMED
#undef TARGET
#endif

enum { PLAIN, AVX2, AVX512 };

/* What this processor can run, at most `most`. */
static int best(int most) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    int wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
    if (most >= AVX512 && wide) return AVX512;
    if (most >= AVX2 && __builtin_cpu_supports("avx2")) return AVX2;
#endif
    (void)most;
    return PLAIN;
}

EXPORT const char sordino_source[] = SORDINO_SOURCE;

EXPORT int sordino_level(int most) { return best(most); }

/* Blocks first, first + 1, ... of the key stream. */
EXPORT void sordino_keystream(int level, const uint32_t *state, uint64_t first, uint64_t blocks, uint32_t *out) {
    const state_t *from = (const state_t *)state;
#if defined(__x86_64__)
    if (best(level) == AVX512) {
        keystream_avx512(from, first, blocks, out);
        return;
    }
    if (best(level) == AVX2) {
        keystream_avx2(from, first, blocks, out);
        return;
    }
#endif
    keystream_4(from, first, blocks, out);
}

/* Add the values of [begin, end) pairs of one draw of `total` values; tensors laid end to end hold `total`. */
EXPORT void sordino_add_normal(int level, const uint32_t *state, float scale, uint64_t begin, uint64_t end, float **tensors,
                               const uint64_t *ends, uint64_t count) {
    const state_t *from = (const state_t *)state;
    const target_t to = {tensors, ends, count};
#if defined(__x86_64__)
    if (best(level) == AVX512) {
        add_normal_avx512(from, scale, begin, end, &to);
        return;
    }
    if (best(level) == AVX2) {
        add_normal_avx2(from, scale, begin, end, &to);
        return;
    }
#endif
    add_normal_4(from, scale, begin, end, &to);
}

/* Gaussian noise in one pass: AES-256 key stream in counter mode (FIPS 197, 2001; SP 800-38A, 2001), Box-Muller (1958),
 * addition to the sums.
 *
 * The values are those of sordino/random/normals.py, bit for bit, on every machine: the same operations of IEEE single precision
 * in the same order, compiled without contraction. Nothing here chooses, clips or keeps anything; the caller decides what
 * is added where. Work is cut into pieces of PAIRS pairs that stay in the first-level cache.
 *
 * Processors with AES instructions make the key stream here. For others the caller hands it over, made by OpenSSL.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 10)
#define AES_NI
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "export.h"

#define WORDS 4                    /* 32-bit words of a block of the cipher */
#define ROUNDS 14
#define BLOCK ((uint64_t)1 << 18)  /* values made of one stretch of key stream; normals.BLOCK */
#define PAIRS 512                  /* pairs of values made at once */
#define RARE (1 << 15)             /* radius words below this take 32 more bits; normals.RARE */
#define EXTRA ((uint64_t)1 << 35)  /* where the stream of those bits begins, in words; normals.EXTRA */

/* A stream: block i is the encryption of (number of the draw, i), 64 bits each, most significant byte first. */
typedef struct {
    uint8_t keys[ROUNDS + 1][16];
    uint8_t number[8];
    const uint32_t *given; /* the words from `from` on, where the caller made them */
    uint64_t from;
} stream_t;

typedef struct {
    float **tensors;
    const uint64_t *ends; /* ends[k]: values in tensors 0..k */
    uint64_t count;
} target_t;

/* The cipher, plainly: for the round keys, and for single words. */

static uint8_t SBOX[256];

static uint8_t twice(uint8_t x) { return (uint8_t)(x << 1 ^ (x & 0x80 ? 0x1b : 0)); }

/* p runs through all bytes but 0 in powers of 3, q through their inverses. */
__attribute__((constructor)) static void fill_sbox(void) {
    uint8_t p = 1, q = 1;
    do {
        p ^= twice(p);
        q ^= (uint8_t)(q << 1), q ^= (uint8_t)(q << 2), q ^= (uint8_t)(q << 4), q ^= q & 0x80 ? 0x09 : 0;
        uint8_t turned = q;
        for (int i = 1; i < 5; i++) turned ^= (uint8_t)(q << i | q >> (8 - i));
        SBOX[p] = turned ^ 0x63;
    } while (p != 1);
    SBOX[0] = 0x63;
}

static void expand(const uint8_t *key, uint8_t (*keys)[16]) {
    uint8_t *words = keys[0], power = 1;
    memcpy(words, key, 32);
    for (int i = 8; i < 4 * (ROUNDS + 1); i++) {
        uint8_t t[4], *last = words + 4 * (i - 1);
        for (int j = 0; j < 4; j++) t[j] = i % 8 == 0 ? SBOX[last[(j + 1) % 4]] : i % 8 == 4 ? SBOX[last[j]] : last[j];
        if (i % 8 == 0) t[0] ^= power, power = twice(power);
        for (int j = 0; j < 4; j++) words[4 * i + j] = words[4 * (i - 8) + j] ^ t[j];
    }
}

static void counter_block(const stream_t *stream, uint64_t block, uint8_t *x) {
    memcpy(x, stream->number, 8);
    for (int j = 0; j < 8; j++) x[8 + j] = (uint8_t)(block >> (56 - 8 * j));
}

static void one_block(const stream_t *stream, uint64_t block, uint8_t *x) {
    uint8_t y[16];
    counter_block(stream, block, x);
    for (int j = 0; j < 16; j++) x[j] ^= stream->keys[0][j];
    for (int round = 1; round <= ROUNDS; round++) {
        for (int j = 0; j < 16; j++) y[j] = SBOX[x[(j + j % 4 * 4) % 16]];
        for (int j = 0; j < 16; j += 4) {
            uint8_t all = y[j] ^ y[j + 1] ^ y[j + 2] ^ y[j + 3];
            for (int i = 0; i < 4; i++)
                x[j + i] = round == ROUNDS ? y[j + i] : y[j + i] ^ all ^ twice(y[j + i] ^ y[j + (i + 1) % 4]);
        }
        for (int j = 0; j < 16; j++) x[j] ^= stream->keys[round][j];
    }
}

static uint32_t word_of(const stream_t *stream, uint64_t block, uint64_t index) {
    uint8_t x[16];
    one_block(stream, block, x);
    const uint8_t *b = x + 4 * index;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

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
static void refine(const stream_t *stream, const uint32_t *words, uint64_t first, size_t n, float *v) {
    for (size_t i = 0; i < n; i++) {
        int32_t k = (int32_t)(words[i] & 0x7fffffffu);
        if (k >= RARE) continue;
        uint64_t place = EXTRA + first + i;
        v[i] = (float)((double)k + ((double)word_of(stream, place / WORDS, place % WORDS) + 0.5) * 0x1p-32);
    }
}

/* Add scale * sqrt(-2 ln u) * (cos, sin)(2 pi a / 2^32), and multiply the sum by `factor`. The polynomials and their errors
 * are in normals.py. */
INLINE void box_muller(const float *restrict v, const uint32_t *restrict angles, size_t n, float scale, float factor,
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
        cosines[i] = (cosines[i] + r * c) * factor;
        sines[i] = (sines[i] + r * s) * factor;
    }
}

/* Where value `first` of the tensors laid end to end lies, if n values from there on lie in one; NULL if not. */
INLINE float *within(const target_t *to, uint64_t *tensor, uint64_t first, uint64_t n) {
    while (to->ends[*tensor] <= first) ++*tensor;
    if (to->ends[*tensor] - first < n) return NULL;
    return to->tensors[*tensor] + (first - (*tensor ? to->ends[*tensor - 1] : 0));
}

/* Where value `first` lies; `n` becomes at most the number of values from there on that lie in its tensor. */
INLINE float *until(const target_t *to, uint64_t *tensor, uint64_t first, uint64_t *n) {
    if (!*n) return NULL;
    while (to->ends[*tensor] <= first) ++*tensor;
    if (to->ends[*tensor] - first < *n) *n = to->ends[*tensor] - first;
    return to->tensors[*tensor] + (first - (*tensor ? to->ends[*tensor - 1] : 0));
}

/* Add n values to the tensors from position `first` of them on, and multiply. */
INLINE void add(const target_t *to, uint64_t *tensor, uint64_t first, const float *restrict values, uint64_t n,
                float factor) {
    while (to->ends[*tensor] <= first) ++*tensor;
    for (uint64_t done = 0; done < n;) {
        uint64_t begin = *tensor ? to->ends[*tensor - 1] : 0, room = to->ends[*tensor] - (first + done);
        uint64_t piece = room < n - done ? room : n - done;
        float *restrict out = to->tensors[*tensor] + (first + done - begin);
        for (uint64_t i = 0; i < piece; i++) out[i] = (out[i] + values[done + i]) * factor;
        done += piece;
        if (piece == room) ++*tensor;
    }
}

#define FUNCTIONS_OF_LEVEL "noise_levels.h"
#include "noise_each_level.h"

static int LEVEL_HERE = PLAIN;

/* Asked once: in a virtual machine the question takes as long as a thousand values. */
__attribute__((constructor)) static void look(void) {
#if defined(AES_NI)
    unsigned a, b, c, d;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && c >> 25 & 1)
        LEVEL_HERE = __get_cpuid_count(7, 0, &a, &b, &c, &d) && c >> 9 & 1 ? VAES : AVX2;
#endif
}

/* What this processor can run, at most `most`. */
static int best(int most) { return most < LEVEL_HERE ? most : LEVEL_HERE; }

static void begin_stream(stream_t *stream, const uint8_t *key) {
    expand(key, stream->keys);
    memcpy(stream->number, key + 32, 8);
}

EXPORT int sordino_level(int most) { return best(most); }

EXPORT const uint64_t sordino_block_values = BLOCK;

/* Blocks first, first + 1, ... of the key stream; `key` is 32 bytes of it and the eight of the draw's number. */
EXPORT void sordino_keystream(int level, const uint8_t *key, uint64_t first, uint64_t blocks, uint32_t *out) {
    stream_t stream = {.given = NULL};
    begin_stream(&stream, key);
    CALL_BEST(level, keystream, &stream, first, blocks, out);
}

/* Add the values of [begin, end) pairs of one draw, and multiply the sums by `factor`; tensors laid end to end hold all
 * its values. Words of the key stream that the caller made are in `given`, from number `from` on, all that are needed;
 * NULL: they are made here. */
EXPORT void sordino_add_normal(int level, const uint8_t *key, float scale, float factor, uint64_t begin, uint64_t end,
                               float **tensors, const uint64_t *ends, uint64_t count, const uint32_t *given,
                               uint64_t from) {
    const target_t to = {tensors, ends, count};
    stream_t stream = {.given = given, .from = from};
    begin_stream(&stream, key);
    CALL_BEST(level, add_normal, &stream, scale, factor, begin, end, &to);
}

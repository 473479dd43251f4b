/* The key stream, and the pass over the values, compiled for TARGET. Included once per LEVEL. */

#if LEVEL == VAES
#define V __m256i /* two blocks */
#define LANES 2
#define BROADCAST(key) _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(key)))
#define FROM(block) _mm256_set_epi64x((int64_t)(block) + 1, 0, (int64_t)(block), 0)
#define STEP(n) _mm256_set_epi64x(n, 0, n, 0)
#define SWAP _mm256_set_epi64x(0x08090a0b0c0d0e0f, 0x0706050403020100, 0x08090a0b0c0d0e0f, 0x0706050403020100)
#define OF(name) _mm256_##name
#define WHOLE(name) _mm256_##name##_si256
#define AES(name) _mm256_##name##_epi128
#elif LEVEL == AVX2
#define V __m128i
#define LANES 1
#define BROADCAST(key) _mm_loadu_si128((const __m128i *)(key))
#define FROM(block) _mm_set_epi64x((int64_t)(block), 0)
#define STEP(n) _mm_set_epi64x(n, 0)
#define SWAP _mm_set_epi64x(0x08090a0b0c0d0e0f, 0x0706050403020100)
#define OF(name) _mm_##name
#define WHOLE(name) _mm_##name##_si128
#define AES(name) _mm_##name##_si128
#endif

#if LEVEL == PLAIN
static void NAMED(keystream)(const stream_t *stream, uint64_t first, uint64_t blocks, uint32_t *out) {
    for (uint64_t i = 0; i < WORDS * blocks; i++) out[i] = word_of(stream, first + i / WORDS, i % WORDS);
}
#else
#define WIDTH 8 /* registers at work at once: while one waits for a result the processor goes on with another */

/* WIDTH * LANES blocks. */
TARGET INLINE void NAMED(group)(const stream_t *stream, uint64_t first, uint32_t *out) {
    uint64_t number;
    memcpy(&number, stream->number, sizeof number);
    V x[WIDTH], key = BROADCAST(stream->keys[0]), counter = FROM(first);
    V head = WHOLE(xor)(key, WHOLE(and)(OF(set1_epi64x)((int64_t)number), OF(cmpeq_epi64)(STEP(1), WHOLE(setzero)())));
    for (int i = 0; i < WIDTH; i++) {
        x[i] = WHOLE(xor)(OF(shuffle_epi8)(counter, SWAP), head);
        counter = OF(add_epi64)(counter, STEP(LANES));
    }
    for (int round = 1; round < ROUNDS; round++) {
        key = BROADCAST(stream->keys[round]);
        for (int i = 0; i < WIDTH; i++) x[i] = AES(aesenc)(x[i], key);
    }
    key = BROADCAST(stream->keys[ROUNDS]);
    for (int i = 0; i < WIDTH; i++) x[i] = AES(aesenclast)(x[i], key);
    memcpy(out, x, sizeof x);
}

TARGET static void NAMED(keystream)(const stream_t *stream, uint64_t first, uint64_t blocks, uint32_t *out) {
    uint64_t done = 0;
    for (; done + WIDTH * LANES <= blocks; done += WIDTH * LANES) NAMED(group)(stream, first + done, out + WORDS * done);
    if (done < blocks) {
        uint32_t last[WIDTH * LANES * WORDS];
        NAMED(group)(stream, first + done, last);
        memcpy(out + WORDS * done, last, (blocks - done) * WORDS * sizeof *out);
    }
}
#endif

/* Words first .. first + n of the key stream, n <= PAIRS. */
TARGET INLINE const uint32_t *NAMED(words)(const stream_t *stream, uint64_t first, uint64_t n, uint32_t *room) {
    if (stream->given) return stream->given + (first - stream->from);
    uint64_t skip = first % WORDS;
    NAMED(keystream)(stream, first / WORDS, (skip + n + WORDS - 1) / WORDS, room);
    return room + skip;
}

#if LEVEL == VAES
#include "noise_interleaved.h"
#endif

TARGET static void NAMED(add_normal)(const stream_t *stream, float scale, float factor, uint64_t begin, uint64_t end,
                                     const target_t *to) {
    uint64_t total = to->ends[to->count - 1], cosine_tensor = 0, sine_tensor = 0, pairs;
    uint32_t room[2][PAIRS + 2 * WORDS];
    float v[PAIRS], values[2][PAIRS];
    for (uint64_t pair = begin; pair < end; pair += pairs) {
        uint64_t at = pair % (BLOCK / 2), start = pair / (BLOCK / 2) * BLOCK;
        uint64_t here = total - start < BLOCK ? total - start : BLOCK, half = (here + 1) / 2;
        pairs = half - at < PAIRS ? half - at : PAIRS;
        pairs = end - pair < pairs ? end - pair : pairs;
        if (at == 0 || pair == begin) cosine_tensor = sine_tensor = 0;
#if LEVEL == VAES
        uint64_t left = here - half - at, whole = left < end - pair ? left : end - pair; /* pairs with a sine */
        float *first = until(to, &cosine_tensor, start + at, &whole);
        float *second = until(to, &sine_tensor, start + half + at, &whole);
        if (!stream->given && whole >= TOGETHER) {
            pairs = whole - whole % TOGETHER;
            add_interleaved(stream, start + at, start + half + at, pairs, scale, factor, first, second);
            continue;
        }
#endif
        const uint32_t *radii = NAMED(words)(stream, start + at, pairs, room[0]);
        const uint32_t *angles = NAMED(words)(stream, start + half + at, pairs, room[1]);
        if (uniforms(radii, pairs, v)) refine(stream, radii, start + at, pairs, v);
        uint64_t odd = half + at + pairs > here; /* the last sine of an odd number is not needed */
        float *cosines = within(to, &cosine_tensor, start + at, pairs);
        float *sines = odd ? NULL : within(to, &sine_tensor, start + half + at, pairs);
        if (cosines && sines) {
            box_muller(v, angles, pairs, scale, factor, cosines, sines);
            continue;
        }
        memset(values, 0, sizeof values);
        box_muller(v, angles, pairs, scale, 1.0f, values[0], values[1]);
        add(to, &cosine_tensor, start + at, values[0], pairs, factor);
        if (pairs > odd) add(to, &sine_tensor, start + half + at, values[1], pairs - odd, factor);
    }
}

#undef V
#undef LANES
#undef BROADCAST
#undef FROM
#undef STEP
#undef SWAP
#undef OF
#undef WHOLE
#undef AES
#undef WIDTH

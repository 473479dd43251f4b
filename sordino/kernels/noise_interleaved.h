/* Key stream and values in one loop, for processors with VAES: a round of the cipher for words that are needed later,
 * a few operations on these pairs, the next round. Each waits for its own results, so together they take little more than
 * the longer of the two. The operations are those of `uniforms` and `box_muller`, in their order; no two are fused. */

#define TOGETHER 16 /* pairs: two registers of radii, two of angles */
#define AHEAD (4 * TOGETHER) /* words made before they are needed: what was written just now is slow to read */
#define LONG 2048 /* pairs until words move to the front of their room */

#define NUMBER(c) _mm256_set1_ps(c)
#define WORD(c) _mm256_set1_epi32((int32_t)(c))
#define REAL(x) _mm256_castsi256_ps(x)
#define BITS(x) _mm256_castps_si256(x)
#define MUL(a, b) _mm256_mul_ps(a, b)
#define ADD(a, b) _mm256_add_ps(a, b)
#define TIMES(a, b, c) ADD(MUL(a, b), NUMBER(c))

/* The compiler must not move operations past the round of the cipher they stand before. */
#define HERE(pair) __asm__ volatile("" : "+x"(pair[0]), "+x"(pair[1]))
#define ROUND(n)                                                                                  \
    do {                                                                                          \
        __m256i key_ = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)keys[n]));    \
        for (int i_ = 0; i_ < 4; i_++) x[i_] = _mm256_aesenc_epi128(x[i_], key_);                 \
        __asm__ volatile("" : "+x"(x[0]), "+x"(x[1]), "+x"(x[2]), "+x"(x[3]));                    \
    } while (0)

/* TOGETHER pairs; their words lie at `radii` and `angles`, and those AHEAD come to be AHEAD places further on. */
TARGET INLINE void sixteen(const stream_t *stream, __m256i head, __m256i *counters, uint64_t place, uint32_t *radii,
                           uint32_t *angles, const uint32_t *radius, const uint32_t *angle, __m256 scale, __m256 factor,
                           float *cosines, float *sines) {
    const uint8_t(*keys)[16] = stream->keys;
    const __m256i swap = _mm256_set_epi64x(0x08090a0b0c0d0e0f, 0x0706050403020100, 0x08090a0b0c0d0e0f, 0x0706050403020100);
    __m256i x[4], a[2], bits[2], k[2], two = _mm256_set_epi64x(2, 0, 2, 0);
    __m256 v[2], f[2], g[2], even[2], odd[2], r[2], t[2], y[2], s[2], c[2];
    for (int i = 0; i < 4; i++) {
        x[i] = _mm256_xor_si256(_mm256_shuffle_epi8(counters[i / 2], swap), head);
        counters[i / 2] = _mm256_add_epi64(counters[i / 2], two);
    }
    for (int i = 0; i < 2; i++) {
        k[i] = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)radius + i), WORD(0x7fffffff));
        v[i] = ADD(_mm256_cvtepi32_ps(k[i]), NUMBER(0.5f));
    }
    __m256i rare = _mm256_or_si256(_mm256_cmpgt_epi32(WORD(RARE), k[0]), _mm256_cmpgt_epi32(WORD(RARE), k[1]));
    if (__builtin_expect(_mm256_movemask_ps(REAL(rare)), 0)) {
        float more[TOGETHER];
        for (int i = 0; i < 2; i++) _mm256_storeu_ps(more + 8 * i, v[i]);
        refine(stream, radius, place, TOGETHER, more);
        for (int i = 0; i < 2; i++) v[i] = _mm256_loadu_ps(more + 8 * i);
    }
    HERE(v);
    ROUND(1);
    for (int i = 0; i < 2; i++) {
        bits[i] = _mm256_sub_epi32(BITS(v[i]), WORD(0x4eb504f3u));
        f[i] = ADD(REAL(_mm256_add_epi32(_mm256_and_si256(bits[i], WORD(0x7fffff)), WORD(0x3f3504f3u))), NUMBER(-1.0f));
        g[i] = MUL(f[i], f[i]);
    }
    HERE(bits); HERE(f); HERE(g);
    ROUND(2);
    for (int i = 0; i < 2; i++) {
        even[i] = TIMES(NUMBER(-0x1.65f792p-3f), g[i], -0x1.317fa6p-2f);
        odd[i] = TIMES(NUMBER(0x1.250e42p-2f), g[i], 0x1.535b18p-2f);
    }
    HERE(even); HERE(odd);
    ROUND(3);
    for (int i = 0; i < 2; i++) even[i] = TIMES(even[i], g[i], -0x1.98d32ap-2f), odd[i] = TIMES(odd[i], g[i], 0x1.0004acp-1f);
    HERE(even); HERE(odd);
    ROUND(4);
    for (int i = 0; i < 2; i++) even[i] = TIMES(even[i], g[i], -0x1.5556f2p-1f), odd[i] = TIMES(odd[i], g[i], 0x1.fffffap-1f);
    HERE(even); HERE(odd);
    ROUND(5);
    for (int i = 0; i < 2; i++) even[i] = TIMES(even[i], g[i], -2.0f), odd[i] = MUL(odd[i], f[i]);
    HERE(even); HERE(odd);
    ROUND(6);
    for (int i = 0; i < 2; i++) {
        __m256 e = _mm256_cvtepi32_ps(_mm256_srai_epi32(bits[i], 23));
        r[i] = ADD(MUL(ADD(odd[i], even[i]), f[i]), MUL(e, NUMBER(-0x1.62e43p0f)));
    }
    HERE(r);
    ROUND(7);
    for (int i = 0; i < 2; i++) {
        r[i] = _mm256_sqrt_ps(r[i]);
        a[i] = _mm256_loadu_si256((const __m256i *)angle + i);
        t[i] = MUL(_mm256_cvtepi32_ps(_mm256_slli_epi32(a[i], 1)), NUMBER(0x1.921fb6p-31f));
    }
    HERE(r); HERE(t);
    ROUND(8);
    for (int i = 0; i < 2; i++) y[i] = MUL(t[i], t[i]), s[i] = TIMES(NUMBER(0x1.5dc8c4p-19f), y[i], -0x1.9f70eep-13f);
    HERE(y); HERE(s);
    ROUND(9);
    for (int i = 0; i < 2; i++) {
        c[i] = TIMES(NUMBER(-0x1.196accp-22f), y[i], 0x1.9f931cp-16f);
        s[i] = TIMES(s[i], y[i], 0x1.110edap-7f);
    }
    HERE(c); HERE(s);
    ROUND(10);
    for (int i = 0; i < 2; i++) c[i] = TIMES(c[i], y[i], -0x1.6c14b8p-10f), s[i] = TIMES(s[i], y[i], -0x1.55554cp-3f);
    HERE(c); HERE(s);
    ROUND(11);
    for (int i = 0; i < 2; i++) c[i] = TIMES(c[i], y[i], 0x1.55555p-5f), s[i] = ADD(MUL(s[i], MUL(y[i], t[i])), t[i]);
    HERE(c); HERE(s);
    ROUND(12);
    for (int i = 0; i < 2; i++) c[i] = TIMES(c[i], y[i], -0.5f), c[i] = TIMES(c[i], y[i], 1.0f);
    HERE(c);
    ROUND(13);
    for (int i = 0; i < 2; i++) {
        __m256i turned = _mm256_and_si256(_mm256_add_epi32(a[i], WORD(0x40000000u)), WORD(0x80000000u));
        float *cosine = cosines + 8 * i, *sine = sines + 8 * i;
        r[i] = REAL(_mm256_xor_si256(BITS(MUL(r[i], scale)), turned));
        _mm256_storeu_ps(cosine, MUL(ADD(_mm256_loadu_ps(cosine), MUL(r[i], c[i])), factor));
        _mm256_storeu_ps(sine, MUL(ADD(_mm256_loadu_ps(sine), MUL(r[i], s[i])), factor));
    }
    __m256i last = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)keys[ROUNDS]));
    for (int i = 0; i < 4; i++)
        _mm256_storeu_si256((__m256i *)((i < 2 ? radii : angles) + AHEAD) + i % 2, _mm256_aesenclast_epi128(x[i], last));
}

/* n pairs, a multiple of TOGETHER, whose radii are the words from `first` on and whose angles those from `second` on. */
TARGET static void add_interleaved(const stream_t *stream, uint64_t first, uint64_t second, uint64_t n, float scale, float factor,
                             float *cosines, float *sines) {
    uint32_t radii[LONG + AHEAD + TOGETHER], angles[LONG + AHEAD + TOGETHER];
    uint64_t number, skip = first % WORDS, turn = second % WORDS, radius = first / WORDS, angle = second / WORDS;
    memcpy(&number, stream->number, sizeof number);
    __m256i low = _mm256_set_epi64x(0, -1, 0, -1); /* the number of the draw is the first half of a block */
    __m256i head = _mm256_xor_si256(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)stream->keys[0])),
                                    _mm256_and_si256(_mm256_set1_epi64x((int64_t)number), low));
    keystream_vaes(stream, radius, AHEAD / WORDS, radii);
    keystream_vaes(stream, angle, AHEAD / WORDS, angles);
    radius += AHEAD / WORDS, angle += AHEAD / WORDS;
    __m256i counters[2] = {_mm256_set_epi64x((int64_t)radius + 1, 0, (int64_t)radius, 0),
                           _mm256_set_epi64x((int64_t)angle + 1, 0, (int64_t)angle, 0)};
    for (uint64_t i = 0, at = 0; i < n; i += TOGETHER, at += TOGETHER) {
        if (at == LONG) {
            memcpy(radii, radii + LONG, AHEAD * sizeof *radii), memcpy(angles, angles + LONG, AHEAD * sizeof *angles);
            at = 0;
        }
        sixteen(stream, head, counters, first + i, radii + at, angles + at, radii + at + skip, angles + at + turn,
                _mm256_set1_ps(scale), _mm256_set1_ps(factor), cosines + i, sines + i);
    }
}

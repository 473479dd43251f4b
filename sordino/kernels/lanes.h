/* The key stream of LANES blocks at once, and the pass over the values, compiled for TARGET. Included once per target. */

typedef uint32_t NAMED(lanes) __attribute__((vector_size(4 * LANES)));
#define V NAMED(lanes)

#if LANES == 8
typedef uint8_t NAMED(bytes) __attribute__((vector_size(32)));
#define BYTES(x, a, b, c, d)                                                                                              \
    ((V)SHUFFLE(NAMED(bytes), (NAMED(bytes))(x), (NAMED(bytes))(x), a, b, c, d, a + 4, b + 4, c + 4, d + 4, a + 8, b + 8, \
                                c + 8, d + 8, a + 12, b + 12, c + 12, d + 12, a + 16, b + 16, c + 16, d + 16, a + 20,      \
                                b + 20, c + 20, d + 20, a + 24, b + 24, c + 24, d + 24, a + 28, b + 28, c + 28, d + 28))
#define ROTATE16(x) BYTES(x, 2, 3, 0, 1)
#define ROTATE8(x) BYTES(x, 3, 0, 1, 2)
#else
#define ROTATE16(x) ROTATE(x, 16)
#define ROTATE8(x) ROTATE(x, 8)
#endif

/* Row l of the LANES x LANES matrix that begins at x[0], written to out + 16 l. */
TARGET INLINE void NAMED(transposed)(const V *x, uint32_t *out) {
#if LANES == 8
#define LOW(a, b) SHUFFLE(V, a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define HIGH(a, b) SHUFFLE(V, a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define LOW2(a, b) SHUFFLE(V, a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define HIGH2(a, b) SHUFFLE(V, a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define LOW4(a, b) SHUFFLE(V, a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define HIGH4(a, b) SHUFFLE(V, a, b, 4, 5, 6, 7, 12, 13, 14, 15)
    V a0 = LOW(x[0], x[1]), a1 = HIGH(x[0], x[1]), a2 = LOW(x[2], x[3]), a3 = HIGH(x[2], x[3]);
    V a4 = LOW(x[4], x[5]), a5 = HIGH(x[4], x[5]), a6 = LOW(x[6], x[7]), a7 = HIGH(x[6], x[7]);
    V b0 = LOW2(a0, a2), b1 = HIGH2(a0, a2), b2 = LOW2(a1, a3), b3 = HIGH2(a1, a3);
    V b4 = LOW2(a4, a6), b5 = HIGH2(a4, a6), b6 = LOW2(a5, a7), b7 = HIGH2(a5, a7);
    V rows[8] = {LOW4(b0, b4),  LOW4(b1, b5),  LOW4(b2, b6),  LOW4(b3, b7),
                 HIGH4(b0, b4), HIGH4(b1, b5), HIGH4(b2, b6), HIGH4(b3, b7)};
#undef LOW
#undef HIGH
#undef LOW2
#undef HIGH2
#undef LOW4
#undef HIGH4
#else
    V a0 = SHUFFLE(V, x[0], x[1], 0, 4, 1, 5), a1 = SHUFFLE(V, x[0], x[1], 2, 6, 3, 7);
    V a2 = SHUFFLE(V, x[2], x[3], 0, 4, 1, 5), a3 = SHUFFLE(V, x[2], x[3], 2, 6, 3, 7);
    V rows[4] = {SHUFFLE(V, a0, a2, 0, 1, 4, 5), SHUFFLE(V, a0, a2, 2, 3, 6, 7),
                 SHUFFLE(V, a1, a3, 0, 1, 4, 5), SHUFFLE(V, a1, a3, 2, 3, 6, 7)};
#endif
    for (int l = 0; l < LANES; l++) memcpy(out + WORDS * l, &rows[l], sizeof(V));
}

/* Two groups of LANES blocks in turn: while one waits for a result the processor works on the other. */
TARGET INLINE void NAMED(group)(const state_t *state, uint32_t first, uint32_t *out) {
    V x[WORDS], y[WORDS], counter_x, counter_y;
    for (int w = 0; w < WORDS; w++) x[w] = y[w] = (V){0} + state->words[w];
    for (uint32_t l = 0; l < LANES; l++) x[12][l] += first + l, y[12][l] += first + LANES + l;
    counter_x = x[12], counter_y = y[12];
    for (int round = 0; round < 10; round++) {
        COLUMNS(x);
        COLUMNS(y);
        DIAGONALS(x);
        DIAGONALS(y);
    }
    for (int w = 0; w < WORDS; w++) {
        x[w] += w == 12 ? counter_x : (V){0} + state->words[w];
        y[w] += w == 12 ? counter_y : (V){0} + state->words[w];
    }
    for (int w = 0; w < WORDS; w += LANES) {
        NAMED(transposed)(x + w, out + w);
        NAMED(transposed)(y + w, out + WORDS * LANES + w);
    }
}

TARGET static void NAMED(keystream)(const state_t *state, uint64_t first, uint64_t blocks, uint32_t *out) {
    uint64_t done = 0;
    for (; done + 2 * LANES <= blocks; done += 2 * LANES) NAMED(group)(state, (uint32_t)(first + done), out + WORDS * done);
    if (done < blocks) {
        uint32_t last[2 * LANES * WORDS];
        NAMED(group)(state, (uint32_t)(first + done), last);
        memcpy(out + WORDS * done, last, (blocks - done) * WORDS * sizeof *out);
    }
}

/* The next n words of a key stream, n <= PAIRS. Words left of the last block are kept for the next call. */
TARGET INLINE const uint32_t *NAMED(next)(const state_t *state, reader_t *reader, uint64_t n) {
    memmove(reader->words, reader->words + reader->used, (reader->have - reader->used) * sizeof *reader->words);
    reader->have -= reader->used;
    uint64_t blocks = n > reader->have ? (n - reader->have + WORDS - 1) / WORDS : 0;
    NAMED(keystream)(state, reader->block, blocks, reader->words + reader->have);
    reader->block += blocks;
    reader->have += blocks * WORDS;
    reader->used = n;
    return reader->words;
}

TARGET static void NAMED(add_normal)(const state_t *state, float scale, uint64_t begin, uint64_t end, const target_t *to) {
    uint64_t total = to->ends[to->count - 1], cosine_tensor = 0, sine_tensor = 0, pairs;
    reader_t radius, angle;
    float v[PAIRS], cosines[PAIRS], sines[PAIRS];
    for (uint64_t pair = begin; pair < end; pair += pairs) {
        uint64_t at = pair % (BLOCK / 2), start = pair / (BLOCK / 2) * BLOCK;
        uint64_t values = total - start < BLOCK ? total - start : BLOCK, half = (values + 1) / 2;
        pairs = half - at < PAIRS ? half - at : PAIRS;
        pairs = end - pair < pairs ? end - pair : pairs;
        if (at == 0 || pair == begin) {
            cosine_tensor = sine_tensor = 0;
            seek(&radius, start + at);
            NAMED(next)(state, &radius, (start + at) % WORDS);
            seek(&angle, start + half + at);
            NAMED(next)(state, &angle, (start + half + at) % WORDS);
        }
        const uint32_t *radii = NAMED(next)(state, &radius, pairs);
        if (uniforms(radii, pairs, v)) refine(state, radii, start + at, pairs, v);
        box_muller(v, NAMED(next)(state, &angle, pairs), pairs, scale, cosines, sines);
        add(to, &cosine_tensor, start + at, cosines, pairs);
        uint64_t odd = half + at + pairs > values; /* the last sine of an odd number is not needed */
        if (pairs > odd) add(to, &sine_tensor, start + half + at, sines, pairs - odd);
    }
}

#undef V
#undef BYTES
#undef ROTATE16
#undef ROTATE8

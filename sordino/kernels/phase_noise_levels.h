/* One tile of correlated noise, compiled for TARGET. Included once per LEVEL. */

/* The independent values of one step at a tile: cosines to the first half of the row, sines to the second. */
TARGET static void NAMED(make_tile)(const stream_t *stream, const uint64_t *tile, uint64_t most, float *row) {
    uint64_t start = tile[0], half = tile[1], pair = tile[2], pairs = tile[3], done = 0;
    uint32_t room[2][PAIRS + 2 * WORDS];
    float v[PAIRS];
    memset(row, 0, pairs * sizeof *row), memset(row + most, 0, pairs * sizeof *row);
#if LEVEL == VAES
    done = pairs - pairs % TOGETHER;
    if (done) add_interleaved(stream, start + pair, start + half + pair, done, 1.0f, 1.0f, row, row + most);
#endif
    for (uint64_t left; done < pairs; done += left) {
        uint64_t at = pair + done;
        left = pairs - done < PAIRS ? pairs - done : PAIRS;
        const uint32_t *radii = NAMED(words)(stream, start + at, left, room[0]);
        const uint32_t *angles = NAMED(words)(stream, start + half + at, left, room[1]);
        if (uniforms(radii, left, v)) refine(stream, radii, start + at, left, v);
        box_muller(v, angles, left, 1.0f, 1.0f, row + done, row + most + done);
    }
}

/* The noise of `steps` steps at GROUP columns. Their independent values lie in rows of scratch, `width` floats apart, from
 * `row` on, and become the noise. What earlier steps left, `past` rows of it, lies in the rows before them: noise for
 * RECURSIVE, independent values for MOVING. All rows of GROUP columns fit in the first-level cache. */
TARGET INLINE void NAMED(combine_step)(float *row, uint64_t width, uint64_t used, const float *coefficients) {
    eight sum[GROUP / 8];
    for (int j = 0; j < GROUP / 8; j++) sum[j] = *(const eight *)(row + 8 * j);
    for (uint64_t k = 0; k < used; k++) {
        const float *x = row - (k + 1) * width, c = coefficients[k];
        for (int j = 0; j < GROUP / 8; j++) sum[j] -= *(const eight *)(x + 8 * j) * c;
    }
    for (int j = 0; j < GROUP / 8; j++) *(eight *)(row + 8 * j) = sum[j];
}

TARGET static void NAMED(combine)(const phase_t *phase, float *row, uint64_t width, uint64_t past, uint64_t steps) {
    /* A recursion goes forward. A moving average goes back, so that the values that later steps need are still there. */
    int forward = phase->kind == RECURSIVE;
    for (uint64_t i = 0; i < steps; i++) {
        uint64_t step = forward ? i : steps - 1 - i, before = past + step;
        NAMED(combine_step)(row + step * width, width, before < phase->count ? before : phase->count, phase->coefficients);
    }
}

/* The same with buffers, each a row of scratch from `buffer` on: w = z - sum_k c_k s_k, s_k = d_k s_k + w. */
TARGET static void NAMED(combine_buffers)(const phase_t *phase, float *row, float *buffer, uint64_t width, uint64_t steps) {
    for (uint64_t step = 0; step < steps; step++, row += width) {
        eight sum[GROUP / 8];
        for (int j = 0; j < GROUP / 8; j++) sum[j] = *(const eight *)(row + 8 * j);
        for (uint64_t k = 0; k < phase->count; k++)
            for (int j = 0; j < GROUP / 8; j++)
                sum[j] -= *(const eight *)(buffer + k * width + 8 * j) * phase->coefficients[k];
        for (uint64_t k = 0; k < phase->count; k++)
            for (int j = 0; j < GROUP / 8; j++) {
                eight *s = (eight *)(buffer + k * width + 8 * j);
                *s = *s * phase->decays[k] + sum[j];
            }
        for (int j = 0; j < GROUP / 8; j++) *(eight *)(row + 8 * j) = sum[j];
    }
}

/* All steps of a phase's noise from `first` to `end` at one tile. Scratch has `count` rows for what earlier steps left, and
 * after them phase->chunk rows for the steps that are made at once. */
TARGET static void NAMED(advance_tile)(stream_t *stream, const phase_t *phase, const uint64_t *tile, float *scratch) {
    uint64_t count = phase->count, most = phase->most, width = row_width(phase), past = 0, steps;
    uint64_t step = phase->first, columns = rounded(tile[3], GROUP);
    float *made = scratch + count * width;
    /* The independent values of earlier steps, which a moving average needs. */
    if (phase->kind == MOVING)
        for (; step < phase->from; step++, past++) {
            write_number(stream, step);
            NAMED(make_tile)(stream, tile, most, made - (phase->from - step) * width);
        }
    for (; step < phase->end; step += steps) {
        steps = phase->end - step < phase->chunk ? phase->end - step : phase->chunk;
        /* The rows of memory that are read or written below come to the cache meanwhile. */
        for (uint64_t i = 0; i < steps; i++) {
            fetch_tile(tile, row_of_step(phase, step + i));
            write_number(stream, step + i);
            NAMED(make_tile)(stream, tile, most, made + i * width);
        }
        if (step == phase->first) past += load_past(phase, tile, scratch);
        /* Cosines, then sines, a group of columns at a time. */
        for (uint64_t side = 0; side <= most; side += most)
            for (uint64_t at = side; at < side + columns; at += GROUP)
                if (phase->kind == BUFFERED) NAMED(combine_buffers)(phase, made + at, scratch + at, width, steps);
                else NAMED(combine)(phase, made + at, width, past, steps);
        for (uint64_t i = 0; i < steps; i++)
            if (step + i >= phase->from) store_tile(tile, most, made + i * width, row_of_step(phase, step + i));
        /* The newest noise becomes what earlier steps left, for the next steps. */
        if (phase->kind == RECURSIVE && step + steps < phase->end) {
            memmove(scratch, scratch + steps * width, count * width * sizeof *scratch);
            past = past + steps < count ? past + steps : count;
        }
    }
    if (phase->buffers)
        for (uint64_t k = 0; k < count; k++)
            store_tile(tile, most, scratch + k * width, phase->buffers + k * phase->row_length);
}

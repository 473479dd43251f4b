/* Correlated noise for several steps at once: independent values of the phase's key stream, combined while they are in cache.
 *
 * The noise of a step is a combination of vectors of earlier steps. Reading 16 vectors of a million values takes longer than
 * making one, so a part of the coordinates (a tile) is advanced by many steps before the next one is looked at, and what
 * those steps will need is written out. A tile is read and written once per `rows` steps instead of at each of them.
 *
 * The values are those of sordino/release/noise_combinations.py, bit for bit: each product is rounded before it is
 * subtracted, in the same order at every coordinate, compiled without contraction. The independent values are those of noise.c.
 */
#include "noise.c"

#include "memory.h"

#define NONE UINT64_MAX
#define FIELDS 6  /* numbers that describe a tile */
#define MOST 1024 /* pairs of a tile */
#define GROUP 64  /* floats combined at once: eight registers of eight */

enum { RECURSIVE, MOVING, BUFFERED };

/* Which steps are made, of what, and where they go.
 *
 *     RECURSIVE   w_t = z_t - sum_k c_k w_{t-k}                  its past is read from `rows` where `resumes` is set
 *     MOVING      w_t = z_t - sum_k c_k z_{t-k}                  its past is made again
 *     BUFFERED    w_t = z_t - sum_i c_i s_i, s_i = d_i s_i + w_t  its past is in `buffers` where `resumes` is set
 *
 * Step t of the noise goes to row t % row_count. Steps from `first` on are made, and those from `from` on are written. */
typedef struct {
    uint64_t kind;
    const float *coefficients, *decays;
    uint64_t count; /* of coefficients */
    float *rows, *buffers;
    uint64_t row_count, row_length;
    uint64_t first, from, end, resumes;
    uint64_t chunk; /* steps that are combined at once; for MOVING at least end - from */
    uint64_t most; /* pairs of a tile, a multiple of GROUP */
    const uint64_t *tiles; /* first value of the block, half its length, first pair, pairs, columns of cosines and of sines */
} phase_t;

typedef float eight __attribute__((vector_size(32), aligned(4)));

/* Floats of a row of scratch: cosines, sines, and a cache line, so that rows do not all compete for the same lines. */
INLINE uint64_t row_width(const phase_t *phase) { return 2 * phase->most + 16; }

/* A tile's columns in a row of the memory outside, from a row of scratch, whose sines begin at `most`. */
static void store_tile(const uint64_t *tile, uint64_t most, const float *from, float *row) {
    if (tile[4] != NONE) memcpy(row + tile[4], from, tile[3] * sizeof *row);
    if (tile[5] != NONE) memcpy(row + tile[5], from + most, tile[3] * sizeof *row);
}

/* The way back. */
static void load_tile(const uint64_t *tile, uint64_t most, float *to, const float *row) {
    if (tile[4] != NONE) memcpy(to, row + tile[4], tile[3] * sizeof *row);
    if (tile[5] != NONE) memcpy(to + most, row + tile[5], tile[3] * sizeof *row);
}

/* Ask for a tile's columns of a row, which are needed soon: rows are far apart, and the processor would not guess them. */
static void fetch_tile(const uint64_t *tile, const float *row) {
    for (int side = 4; side < 6; side++)
        if (tile[side] != NONE)
            for (uint64_t i = 0; i < tile[3]; i += 16) __builtin_prefetch(row + tile[side] + i);
}

/* Where the noise of a step lies. */
INLINE float *row_of_step(const phase_t *phase, uint64_t step) {
    return phase->rows + step % phase->row_count * phase->row_length;
}

/* Fill the rows of scratch with what the steps before `first` left: past noise, the newest of it last, or the buffers. Returns
 * how many steps' noise was read. */
static uint64_t load_past(const phase_t *phase, const uint64_t *tile, float *scratch) {
    uint64_t count = phase->count, width = row_width(phase), past = 0;
    if (phase->kind == RECURSIVE && phase->resumes)
        for (; past < count && past < phase->first; past++)
            load_tile(tile, phase->most, scratch + (count - 1 - past) * width, row_of_step(phase, phase->first - 1 - past));
    for (uint64_t k = 0; k < count && phase->kind == BUFFERED; k++)
        if (phase->resumes) load_tile(tile, phase->most, scratch + k * width, phase->buffers + k * phase->row_length);
        else memset(scratch + k * width, 0, width * sizeof *scratch);
    return past;
}

/* The number of the draw that a step's values are. */
static void write_number(stream_t *stream, uint64_t step) {
    for (int j = 0; j < 8; j++) stream->number[j] = (uint8_t)(step >> (56 - 8 * j));
}

#define FUNCTIONS_OF_LEVEL "phase_noise_levels.h"
#include "noise_each_level.h"

EXPORT const uint64_t sordino_most_pairs = MOST;

/* Advance tiles [begin, end); `key` is the phase's key, 32 bytes, and any number. Returns 1 where memory is short. */
EXPORT int sordino_advance_phase(int level, const uint8_t *key, const phase_t *phase, uint64_t begin, uint64_t end) {
    stream_t stream = {.given = NULL};
    begin_stream(&stream, key);
    /* A row of scratch for each vector that is combined, and for each step that is made at once. */
    uint64_t bytes = (phase->count + phase->chunk) * row_width(phase) * sizeof(float);
    float *scratch = allocated(bytes);
    if (scratch == NULL) return 1;
    /* A group of columns may run over the end of a tile's pairs, and what is read there should be numbers. */
    memset(scratch, 0, bytes);
    for (uint64_t tile = begin; tile < end; tile++) {
        const uint64_t *where = phase->tiles + FIELDS * tile;
        CALL_BEST(level, advance_tile, &stream, phase, where, scratch);
    }
    freed(scratch);
    return 0;
}

/* x = (x + scale * noise) * factor for values [begin, end) of tensors laid end to end, in one pass. */
EXPORT void sordino_add_scaled(float scale, float factor, uint64_t begin, uint64_t end, float **tensors,
                               const uint64_t *ends, const float *noise) {
    for (uint64_t tensor = 0, at = begin; at < end; at = ends[tensor] < end ? ends[tensor] : end) {
        while (ends[tensor] <= at) tensor++;
        uint64_t start = tensor ? ends[tensor - 1] : 0, until_here = ends[tensor] < end ? ends[tensor] : end;
        float *restrict out = tensors[tensor] + (at - start);
        const float *restrict added = noise + at;
        for (uint64_t i = 0; i < until_here - at; i++) out[i] = (out[i] + added[i] * scale) * factor;
    }
}

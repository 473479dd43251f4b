/* What the kernels of convolutions share: vectors, an image with borders of zeros, memory that is used again. */
#ifndef SORDINO_IMAGE_H
#define SORDINO_IMAGE_H
#include "vectors.h"

enum { SAMPLE, CHANNEL, ROW, COLUMN }; /* of the steps below */

/* Everything a call needs, as abi.py lays it out; sizes and steps in elements, (sample, channel, row, column). */
typedef struct {
    int64_t channels, height, width;                                /* of the input a */
    int64_t outputs, rows, columns;                                 /* of the output y, or of its gradient */
    int64_t kernel[2], stride[2], padding[2], dilation[2], groups;
    int64_t a[4], y[4], w[4];                                       /* w: output channel, input channel, row, column, if it is read */
} shape_t;

/* An image and the steps between its channels, rows and columns, in elements. */
typedef struct {
    const float *pixels;
    int64_t channels, height, width, channel, row, column;
} image_t;

/* The image from `above` rows and `left` columns before its first pixel on, high x wide pixels, channels innermost. */
INLINE void bordered(const image_t *image, int64_t above, int64_t left, int64_t high, int64_t wide, float *out) {
    int64_t c = image->channels, before = left < wide ? left : wide;
    int64_t inside = wide - before < image->width ? wide - before : image->width;
    int tight = image->channel == 1 && image->column == c;
    for (int64_t y = 0; y < high; y++, out += wide * c) {
        if (y < above || y - above >= image->height) {
            memset(out, 0, wide * c * sizeof *out);
            continue;
        }
        const float *source = image->pixels + (y - above) * image->row;
        float *row = out + before * c;
        memset(out, 0, before * c * sizeof *out);
        memset(row + inside * c, 0, (wide - before - inside) * c * sizeof *out);
        if (tight)
            memcpy(row, source, inside * c * sizeof *row);
        else
            for (int64_t begin = 0; begin < inside; begin += 16) {
                int64_t end = begin + 16 < inside ? begin + 16 : inside;
                for (int64_t k = 0; k < c; k++)
                    for (int64_t x = begin; x < end; x++) row[x * c + k] = source[k * image->channel + x * image->column];
            }
    }
}

typedef struct {
    char *memory;
    size_t size;
} room_t;

/* Fresh pages cost as much as a small layer. */
static _Thread_local room_t held;

/* Parts of the given sizes, each on a cache line of its own; 0 if there is no memory. */
static int room_for(const size_t *bytes, char **parts, int count) {
    size_t needed = 64;
    for (int k = 0; k < count; k++) needed += rounded(bytes[k], 64);
    if (held.size < needed) {
        freed(held.memory);
        held.memory = allocated(needed);
        held.size = held.memory ? needed : 0;
    }
    char *next = held.memory;
    for (int k = 0; k < count && next; k++) parts[k] = next, next += rounded(bytes[k], 64);
    return next != NULL;
}
#endif

/* Eight floats at a time. Without AVX2 the compiler makes two or more smaller vectors of each: slower, the same sums. */
#ifndef SORDINO_VECTORS_H
#define SORDINO_VECTORS_H
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#if defined(__x86_64__)
#define FAST __attribute__((target("avx2,fma")))
#endif

#define LANES 8
typedef float v8 __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef float v4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef double d4 __attribute__((vector_size(32)));

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t i8 __attribute__((vector_size(4 * LANES)));
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (i8){__VA_ARGS__})
#endif

#define SHUFFLE_HALF(x, k) ((v4){(x)[k], (x)[(k) + 1], (x)[(k) + 2], (x)[(k) + 3]})
#define AT(p) (*(const v8 *)(p))
#define PUT(p) (*(v8 *)(p))
#define ALL(x) ((v8){x, x, x, x, x, x, x, x})

enum { PLAIN, AVX2 };

/* What this processor can run, at most `most`. */
static int best(int most) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (most >= AVX2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#endif
    (void)most;
    return PLAIN;
}

static size_t rounded(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* Zeroed room for so many floats, from a cache line on; NULL where there is none. */
static float *zeros(size_t floats) {
    size_t bytes = rounded(floats * sizeof(float) + 64, 64);
    float *made = aligned_alloc(64, bytes);
    if (made) memset(made, 0, bytes);
    return made;
}
#endif

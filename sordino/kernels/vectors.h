/* What every kernel but the noise's begins with: vectors of eight or sixteen floats, levels and memory.
 *
 * A kernel is compiled with LANES 8 for every processor and once more with LANES 16 (build.py) for those with AVX-512. Without
 * AVX2 the compiler makes two or more smaller vectors of each: slower, the same sums but for fused multiply-adds.
 */
#ifndef SORDINO_VECTORS_H
#define SORDINO_VECTORS_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "export.h"
#include "memory.h"

#ifndef LANES
#define LANES 8
#endif
#define LINE 16 /* floats of a line of the cache */
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float v8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float v4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef double d4 __attribute__((vector_size(32)));

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t i8 __attribute__((vector_size(32)));
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (i8){__VA_ARGS__})
#endif

#define AT(p) (*(const vec *)(p))
#define PUT(p) (*(vec *)(p))
#define AT8(p) (*(const v8 *)(p))
#define PUT8(p) (*(v8 *)(p))
#define ALL8(x) ((v8){x, x, x, x, x, x, x, x})
#if LANES == 16
#define ALL(x) ((vec){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x})
#define EIGHT(x) (HALF(x, 0) + HALF(x, 8))
#define HALF(x, k) ((v8){(x)[k], (x)[k + 1], (x)[k + 2], (x)[k + 3], (x)[k + 4], (x)[k + 5], (x)[k + 6], (x)[k + 7]})
#else
#define ALL(x) ALL8(x)
#define EIGHT(x) (x)
#endif
#define FOUR(x, k) ((v4){(x)[k], (x)[(k) + 1], (x)[(k) + 2], (x)[(k) + 3]})

/* The quarters of a vector in double precision, added. */
INLINE d4 doubled8(v8 x) { return __builtin_convertvector(FOUR(x, 0), d4) + __builtin_convertvector(FOUR(x, 4), d4); }
#if LANES == 16
INLINE d4 doubled(vec x) { return doubled8(HALF(x, 0)) + doubled8(HALF(x, 8)); }
#else
INLINE d4 doubled(vec x) { return doubled8(x); }
#endif

INLINE double total(d4 x) { return (x[0] + x[1]) + (x[2] + x[3]); }

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Zeroed room for so many floats and a line more, which vectors may read past the last; NULL where there is none. */
static inline float *zeros(size_t floats) {
    float *made = allocated((floats + LINE) * sizeof(float));
    if (made) memset(made, 0, (floats + LINE) * sizeof(float));
    return made;
}

/* The levels of abi.py: what a function may use of the processor. */
enum { PORTABLE, AVX2, AVX512 };

/* What this processor can run, at most `most`. */
static inline int best(int most) {
#if defined(__x86_64__)
    __builtin_cpu_init();
#if defined(SORDINO_WIDE)
    if (most >= AVX512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return AVX512;
#endif
    if (most >= AVX2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#endif
    (void)most;
    return PORTABLE;
}

/* Exports `exported(level, parameters)`, which runs the INLINE function `name` compiled for the best level there is, at most
 * `level`. Parameters and arguments are the same names, each list in brackets. Sixteen lanes are compiled apart. */
#define LIST(...) __VA_ARGS__
#if LANES == 16
#define BY_LEVEL(exported, name, parameters, arguments)                                                              \
    HIDDEN int exported##_wide parameters;                                                                           \
    __attribute__((target("avx512f,avx512vl,avx512dq,avx2,fma"))) HIDDEN int exported##_wide parameters { return name arguments; }
#elif defined(__x86_64__)
#if defined(SORDINO_WIDE)
#define IF_WIDE(exported, parameters, arguments, otherwise) (best(level) == AVX512 ? exported##_wide arguments : otherwise)
#define DECLARED(exported, parameters) HIDDEN int exported##_wide parameters;
#else
#define IF_WIDE(exported, parameters, arguments, otherwise) otherwise
#define DECLARED(exported, parameters)
#endif
#define BY_LEVEL(exported, name, parameters, arguments)                                                                \
    DECLARED(exported, parameters)                                                                                     \
    static int name##_portable parameters { return name arguments; }                                                   \
    __attribute__((target("avx2,fma"))) static int name##_avx2 parameters { return name arguments; }                   \
    EXPORT int exported(int level, LIST parameters) {                                                                  \
        return IF_WIDE(exported, parameters, arguments,                                                                \
                       best(level) == AVX2 ? name##_avx2 arguments : name##_portable arguments);                       \
    }
#else
#define BY_LEVEL(exported, name, parameters, arguments) \
    EXPORT int exported(int level, LIST parameters) {   \
        (void)level;                                    \
        return name arguments;                          \
    }
#endif

#if LANES == 8
EXPORT int sordino_level(int most) { return best(most); }
#endif
#endif

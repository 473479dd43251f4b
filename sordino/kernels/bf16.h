/* What the kernels on bfloat16 share: pairs of values, and the one instruction that multiplies them.
 *
 * vdpbf16ps multiplies two pairs of bfloat16 and adds both products, which are exact, to a float32 sum: twice the rate of
 * float32. It takes numbers below 2^-126 for zero and gives no smaller ones; who measures by it has to allow for that.
 */
#ifndef SORDINO_BF16_H
#define SORDINO_BF16_H
#include <stdint.h>

#include "export.h"
#include "memory.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define LOW INLINE BF16
#define WIDTH 16 /* sums of a vector, and pairs */

/* Whether this processor has the instruction: a level of 1, at most `most`. */
EXPORT int sordino_level(int most) {
    __builtin_cpu_init();
    return most > 0 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

LOW __m512 with_products(__m512 sum, __m512i left, __m512i right) {
    return _mm512_dpbf16_ps(sum, (__m512bh)left, (__m512bh)right);
}

/* The first n lanes; all of them from WIDTH on, none below 1. */
LOW __mmask16 lanes(int64_t n) { return n >= WIDTH ? 0xffff : n > 0 ? (__mmask16)((1u << n) - 1) : 0; }

LOW __m512d doubled(__m512 x) {
    return _mm512_add_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(x)),
                         _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1))));
}

/* Over the lanes, always in the same order. */
LOW double total(__m512d x) {
    double each[8];
    _mm512_storeu_pd(each, x);
    return ((each[0] + each[1]) + (each[2] + each[3])) + ((each[4] + each[5]) + (each[6] + each[7]));
}
#else /* functions are there, and level 0 says that they cannot be used */
EXPORT int sordino_level(int most) { return most * 0; }
#endif
#endif

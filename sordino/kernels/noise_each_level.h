/* Compiles the functions of the header FUNCTIONS_OF_LEVEL once for each level of the noise kernels, from the plain one, which
 * every processor runs, to the one that needs the most instructions.
 *
 * In that header LEVEL is the level, NAMED(f) is the name of its copy of function f, and TARGET lets the compiler use the
 * level's instructions. Where AES_NI is not defined, the plain level is the only one. Outside, CALL_BEST calls the copy for
 * the best level that the processor runs. */

#ifndef CALL_BEST
#define PLAIN 0
#define AVX2 1
#define VAES 2

#if defined(AES_NI)
#define CALL_BEST(most, function, ...)                                \
    do {                                                              \
        int best_ = best(most);                                       \
        if (best_ == VAES) function##_vaes(__VA_ARGS__);              \
        else if (best_ == AVX2) function##_avx2(__VA_ARGS__);         \
        else function##_plain(__VA_ARGS__);                           \
    } while (0)
#else
#define CALL_BEST(most, function, ...) ((void)(most), function##_plain(__VA_ARGS__))
#endif
#endif

#define LEVEL PLAIN
#define NAMED(name) name##_plain
#define TARGET
#include FUNCTIONS_OF_LEVEL
#undef LEVEL
#undef NAMED
#undef TARGET

#if defined(AES_NI)
#define LEVEL AVX2
#define NAMED(name) name##_avx2
#define TARGET __attribute__((target("avx2,aes")))
#include FUNCTIONS_OF_LEVEL
#undef LEVEL
#undef NAMED
#undef TARGET

#define LEVEL VAES
#define NAMED(name) name##_vaes
#define TARGET __attribute__((target("avx2,aes,vaes")))
#include FUNCTIONS_OF_LEVEL
#undef LEVEL
#undef NAMED
#undef TARGET
#endif

#undef FUNCTIONS_OF_LEVEL

/* Memory for kernels, the same on every platform. */
#ifndef SORDINO_MEMORY_H
#define SORDINO_MEMORY_H
#include <stddef.h>
#include <stdlib.h>

#if defined(_WIN32)
#include <malloc.h>
#endif

static inline size_t rounded(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* Memory from a cache line on; NULL where there is none. */
static inline void *allocated(size_t bytes) {
#if defined(_WIN32)
    return _aligned_malloc(rounded(bytes, 64), 64);
#else
    return aligned_alloc(64, rounded(bytes, 64));
#endif
}

static inline void freed(void *memory) {
#if defined(_WIN32)
    _aligned_free(memory);
#else
    free(memory);
#endif
}
#endif

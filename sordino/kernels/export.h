/* What a library shows to those who open it, on every platform.
 *
 * SORDINO_SOURCE is the hash of the sources (build.py), by which a library older than its source is recognised.
 */
#ifndef SORDINO_EXPORT_H
#define SORDINO_EXPORT_H

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#define HIDDEN
#else
#define EXPORT __attribute__((visibility("default")))
#define HIDDEN __attribute__((visibility("hidden")))
#endif
#define INLINE static inline __attribute__((always_inline))

#if !defined(LANES) /* once, where a kernel is compiled twice */
EXPORT const char sordino_source[] = SORDINO_SOURCE;
#endif
#endif

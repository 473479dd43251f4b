/* Runs a kernel over ranges by threads that an OpenMP runtime has waiting. They never see the interpreter, whose lock they would
 * have to take by turns.
 *
 * A kernel arrives as an address and a signature: the kinds of its result and of its arguments. Each signature has a caller of its
 * own below, which calls the kernel through a function type of exactly these kinds. Calling through another type is undefined in C,
 * even where registers happen to fit. A kernel of a new signature needs one more line in SIGNATURES.
 */
#include <stdint.h>
#include <string.h>
#include "export.h"

#define NUMBERS 12
#define FLOATS 2

typedef void (*address_t)(void); /* any kernel; a caller turns it back into its own type */
typedef void (*team_t)(void (*)(void *), void *, unsigned, unsigned);
typedef int (*caller_t)(address_t, const uint64_t *, const float *);

/* Argument k that is not a float, in the type that the kernel declares. */
#define I(k) ((int)n[k])
#define P(k) ((void *)(uintptr_t)n[k])
#define N(k) (n[k])
#define S(k) ((int64_t)n[k])

/* name, kinds as Python spells them, types of the arguments, the arguments themselves.
 * Kinds: i int, p address, n uint64_t, s int64_t, f float. */
#define SIGNATURES(X) \
    X(range, "ipnn", (int, void *, uint64_t, uint64_t), (I(0), P(1), N(2), N(3))) \
    X(added, "ipnni", (int, void *, uint64_t, uint64_t, int), (I(0), P(1), N(2), N(3), I(4))) \
    X(phase, "ippnn", (int, void *, void *, uint64_t, uint64_t), (I(0), P(1), P(2), N(3), N(4))) \
    X(apart, "ipsnnp", (int, void *, int64_t, uint64_t, uint64_t, void *), (I(0), P(1), S(2), N(3), N(4), P(5))) \
    X(samples, "ippnnp", (int, void *, void *, uint64_t, uint64_t, void *), (I(0), P(1), P(2), N(3), N(4), P(5))) \
    X(low_grams, "ippnnnfp", (int, void *, void *, uint64_t, uint64_t, uint64_t, float, void *), \
      (I(0), P(1), P(2), N(3), N(4), N(5), f[0], P(6))) \
    X(grams, "ipnnnnpfp", (int, void *, uint64_t, uint64_t, uint64_t, uint64_t, void *, float, void *), \
      (I(0), P(1), N(2), N(3), N(4), N(5), P(6), f[0], P(7))) \
    X(image2, "ipsspp", (int, void *, int64_t, int64_t, void *, void *), (I(0), P(1), S(2), S(3), P(4), P(5))) \
    X(image3, "ipssppp", (int, void *, int64_t, int64_t, void *, void *, void *), (I(0), P(1), S(2), S(3), P(4), P(5), P(6))) \
    X(image4, "ipsspppp", (int, void *, int64_t, int64_t, void *, void *, void *, void *), \
      (I(0), P(1), S(2), S(3), P(4), P(5), P(6), P(7))) \
    X(image_sums, "ipssppppsss", (int, void *, int64_t, int64_t, void *, void *, void *, void *, int64_t, int64_t, int64_t), \
      (I(0), P(1), S(2), S(3), P(4), P(5), P(6), P(7), S(8), S(9), S(10)))

#define CALLER(name, kinds, types, arguments) \
    static int call_##name(address_t kernel, const uint64_t *n, const float *f) { \
        (void)f; \
        return ((int (*)types)kernel)arguments; \
    }
SIGNATURES(CALLER)

/* Kernels that return nothing can report no problem. */
static int call_noise(address_t kernel, const uint64_t *n, const float *f) {
    ((void (*)(int, void *, float, float, uint64_t, uint64_t, void *, void *, uint64_t, void *, uint64_t))kernel)(
        I(0), P(1), f[0], f[1], N(2), N(3), P(4), P(5), N(6), P(7), N(8));
    return 0;
}
static int call_scaled(address_t kernel, const uint64_t *n, const float *f) {
    ((void (*)(float, float, uint64_t, uint64_t, void *, void *, void *))kernel)(f[0], f[1], N(0), N(1), P(2), P(3), P(4));
    return 0;
}

#define ENTRY(name, kinds, types, arguments) {"i" kinds, call_##name},
static const struct {
    const char *kinds; /* of the result, v where there is none, then of the arguments */
    caller_t caller;
} signatures[] = {SIGNATURES(ENTRY){"vipffnnppnpn", call_noise}, {"vffnnppp", call_scaled}};

/* The number of a signature, or −1 for one that has no caller here: such a kernel is not run by this team. */
EXPORT int sordino_signature(const char *kinds) {
    for (unsigned k = 0; k < sizeof signatures / sizeof *signatures; k++)
        if (!strcmp(signatures[k].kinds, kinds)) return (int)k;
    return -1;
}

typedef struct {
    uint64_t numbers[NUMBERS]; /* the kernel's arguments that are not floats, begin and end left out */
    float floats[FLOATS];
    uint64_t place;            /* of begin among them; end comes after it */
    uint64_t ranges;
    const uint64_t *cuts;      /* ranges + 1 */
    address_t kernel;
    caller_t caller;
    const char *asking;        /* tells the thread that asked from the others */
    uint64_t next;
    int problem;
} job_t;

static _Thread_local char me;

static void one(job_t *job, uint64_t range) {
    uint64_t n[NUMBERS];
    for (uint64_t k = 0; k < NUMBERS; k++) n[k] = job->numbers[k];
    n[job->place] = job->cuts[range], n[job->place + 1] = job->cuts[range + 1];
    int problem = job->caller(job->kernel, n, job->floats);
    if (problem) __atomic_store_n(&job->problem, problem, __ATOMIC_RELAXED);
}

/* However many threads there are, every range is done once; the first by the calling thread, whose clock is read. */
static void work(void *given) {
    job_t *job = given;
    if (&me == job->asking) one(job, 0);
    for (;;) {
        uint64_t range = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
        if (range >= job->ranges) return;
        one(job, range);
    }
}

/* What the kernel returned that was not 0, of any range; −1 for a signature that is none. */
EXPORT int sordino_team(team_t team, address_t kernel, int signature, const uint64_t *numbers, const float *floats, uint64_t place,
                        uint64_t ranges, const uint64_t *cuts) {
    if (signature < 0 || (unsigned)signature >= sizeof signatures / sizeof *signatures) return -1;
    job_t job = {.floats = {floats[0], floats[1]}, .place = place, .ranges = ranges, .cuts = cuts, .kernel = kernel,
                 .caller = signatures[signature].caller, .asking = &me, .next = 1};
    for (int k = 0; k < NUMBERS; k++) job.numbers[k] = numbers[k];
    team(work, &job, (unsigned)ranges, 0);
    return job.problem;
}

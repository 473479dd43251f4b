/* A kernel over ranges, by threads that a runtime of OpenMP has waiting: they never see the interpreter, whose lock they would
 * have to take by turns.
 *
 * The kernel is called by an address, with numbers of 64 bits and up to two floats. Where such arguments go does not depend on what
 * stands between them, on x86-64 and on 64-bit ARM under Linux; no other platform comes here.
 */
#include <stdint.h>
#include "export.h"

#define NUMBERS 12

typedef int (*kernel_t)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                        uint64_t, float, float);
typedef void (*team_t)(void (*)(void *), void *, unsigned, unsigned);

typedef struct {
    uint64_t numbers[NUMBERS]; /* the kernel's arguments that are not floats, begin and end left out */
    float floats[2];
    uint64_t place;            /* of begin among them; end comes after it */
    uint64_t ranges;
    const uint64_t *cuts;      /* ranges + 1 */
    kernel_t kernel;
    const char *caller;
    uint64_t next;
    int problem;
} job_t;

static _Thread_local char me;

static void one(job_t *job, uint64_t range) {
    uint64_t n[NUMBERS];
    for (uint64_t k = 0; k < NUMBERS; k++) n[k] = job->numbers[k];
    n[job->place] = job->cuts[range], n[job->place + 1] = job->cuts[range + 1];
    int problem = job->kernel(n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11], job->floats[0], job->floats[1]);
    if (problem) __atomic_store_n(&job->problem, problem, __ATOMIC_RELAXED);
}

/* However many threads there are, every range is done once; the first by the calling thread, whose clock is read. */
static void work(void *given) {
    job_t *job = given;
    if (&me == job->caller) one(job, 0);
    for (;;) {
        uint64_t range = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
        if (range >= job->ranges) return;
        one(job, range);
    }
}

/* What the kernel said that was not 0, of any range. */
EXPORT int sordino_team(team_t team, kernel_t kernel, const uint64_t *numbers, const float *floats, uint64_t place, uint64_t ranges,
                        const uint64_t *cuts) {
    job_t job = {.floats = {floats[0], floats[1]}, .place = place, .ranges = ranges, .cuts = cuts, .kernel = kernel, .caller = &me,
                 .next = 1};
    for (int k = 0; k < NUMBERS; k++) job.numbers[k] = numbers[k];
    team(work, &job, (unsigned)ranges, 0);
    return job.problem;
}

/* fences.h - a fence between two threads, of one process or of several, that only one of them pays.
 *
 * Two threads each store something and then look for the other's store; at least one has to see it.
 * That takes a fence between the two on either side, and a fence waits until a line that the other
 * core has is back. Where one side does it seldom, it makes all processors that run a taking part
 * process pass a fence (membarrier), and the other side orders only what the compiler may do:
 *
 *     often:   store what is new, relaxed or release; ddl__fence_light(); look at the flag
 *     seldom:  store the flag; ddl__fence_heavy(); look for what is new
 */
#ifndef DDL_BASE_FENCES_H
#define DDL_BASE_FENCES_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Whether this process takes part. The kernel waits for all processors before it does, some
 * milliseconds in a process with threads, so a thread of its own asks for it. */
typedef struct ddl__fences {
    atomic_bool joined;
    sem_t done; /* posted at the thread's end */
    bool started;
} ddl__fences;

void ddl__fences_start(ddl__fences *fences);

/* Waits for the thread's end. The process goes on taking part. */
void ddl__fences_stop(ddl__fences *fences);

/* Until then, and where the system cannot, both sides must store and load with sequential
 * consistency. */
static inline bool ddl__fences_joined(const ddl__fences *fences)
{
    return atomic_load_explicit(&fences->joined, memory_order_acquire);
}

static inline void ddl__fence_light(void)
{
    atomic_signal_fence(memory_order_seq_cst);
}

/* Wait until what this thread has stored is in its core's cache, or past it. */
static inline void ddl__fence_drain(void)
{
    atomic_int here = 0;
    atomic_exchange_explicit(&here, 1, memory_order_seq_cst);
}

/* Some microseconds. Nothing where the system cannot. */
void ddl__fence_heavy(void);

#endif

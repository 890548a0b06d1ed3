/* SPDX-License-Identifier: Apache-2.0 */
/* fences.h - an asymmetric memory fence between two threads, of one process or of several.
 *
 * Two threads each store a value and then load the other's; at least one of them must observe the
 * other's store. Usually this requires a fence between store and load on both sides. A fence is
 * slow, because it waits for cache lines that another core holds. If one side runs rarely, it can
 * make all processors that run a registered process execute a fence (membarrier). The other side
 * then needs only a compiler fence:
 *
 *     often:   store the data, relaxed or release; ddl__fence_light(); load the flag
 *     rarely:  store the flag; ddl__fence_heavy(); load the data */
#ifndef DDL_BASE_FENCES_H
#define DDL_BASE_FENCES_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>

/* The registration of this process for heavy fences. A separate thread registers the process: the
 * kernel waits for all processors, which takes some milliseconds in a process with threads. */
typedef struct ddl__fences {
    atomic_bool joined;
    sem_t done; /* posted when the thread ends */
    bool started;
} ddl__fences;

void ddl__fences_start(ddl__fences *fences);

/* Wait for the end of the thread. The process stays registered. */
void ddl__fences_stop(ddl__fences *fences);

/* Return true once the process is registered. Until then, or if the system does not support it,
 * both sides must store and load with sequential consistency. */
static inline bool ddl__fences_joined(const ddl__fences *fences)
{
    return atomic_load_explicit(&fences->joined, memory_order_acquire);
}

static inline void ddl__fence_light(void)
{
    atomic_signal_fence(memory_order_seq_cst);
}

/* Wait until this thread's stores are in its core's cache. */
static inline void ddl__fence_drain(void)
{
    atomic_int here = 0;
    atomic_exchange_explicit(&here, 1, memory_order_seq_cst);
}

/* Execute a fence on all processors that run registered processes. Takes some microseconds. Does
 * nothing if the system does not support it. */
void ddl__fence_heavy(void);

#endif

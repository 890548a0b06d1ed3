/* SPDX-License-Identifier: Apache-2.0 */
/* callers.h - counts the threads that use a comm, which may be destroyed only when no thread does.
 *
 * XLA dispatches programs asynchronously, they outlive comms, and nothing reports that the last one
 * has run. So each call enters, unless the comm was closed, and leaves. */
#ifndef DDL_JAX_CALLERS_H
#define DDL_JAX_CALLERS_H

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

enum { GRACE_PERIOD_S = 2 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t idle; /* uses the monotonic clock, once `opened` */
static bool opened;         /* guarded by lock, as are the next two */
static ddl_comm *world;
static int inside; /* calls that use `world`, or comms made from it */

/* Use the monotonic clock: the time of day may be set during a wait. */
static inline void prepare(void)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
    opened = true;
}

/* Let calls use the comm, which the caller keeps. */
static inline void open_world(ddl_comm *comm)
{
    pthread_mutex_lock(&lock);
    if (!opened)
        prepare();
    world = comm;
    pthread_mutex_unlock(&lock);
}

/* Return the world's comm, or NULL if it is closed or none was opened. */
static inline ddl_comm *enter(void)
{
    pthread_mutex_lock(&lock);
    ddl_comm *comm = world;
    if (comm)
        inside++;
    pthread_mutex_unlock(&lock);
    return comm;
}

/* Leave with the lock held. */
static inline void leave_locked(void)
{
    if (--inside == 0)
        pthread_cond_broadcast(&idle);
}

static inline void leave(void)
{
    pthread_mutex_lock(&lock);
    leave_locked();
    pthread_mutex_unlock(&lock);
}

/* Wait for the calls to leave, with the lock held. Return whether they have. */
static inline bool all_left(void)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += GRACE_PERIOD_S;
    while (inside && pthread_cond_timedwait(&idle, &lock, &end) == 0)
        continue;
    return !inside;
}

/* Refuse further calls and wait for the current ones. After the grace period `abort_all` aborts
 * them, with the lock held. Return whether all have left. */
static inline bool close_world(void (*abort_all)(ddl_comm *comm, const char *reason))
{
    pthread_mutex_lock(&lock);
    ddl_comm *comm = world;
    world = NULL;
    bool left = all_left();
    if (!left) {
        if (comm)
            abort_all(comm, "shut down with operations under way");
        left = all_left();
    }
    pthread_mutex_unlock(&lock);
    return left;
}

#endif

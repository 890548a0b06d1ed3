/* SPDX-License-Identifier: Apache-2.0 */
/* thread.h - helpers to start the library's threads and to let them wait. */
#ifndef DDL_BASE_THREAD_H
#define DDL_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

#include "base/clock.h"

/* Start a thread with all signals blocked: signals are for the program's own threads. Return 0, or
 * an errno. */
static inline int ddl__thread_start(pthread_t *thread, void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* Initialise a condition variable whose waits use the clock of ddl__now. */
static inline void ddl__cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* Wait for a signal, at most until time `at`. */
static inline void ddl__cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t at)
{
    struct timespec until = {at / 1000000000, at % 1000000000};
    if (at == DDL__NEVER)
        pthread_cond_wait(cond, lock);
    else
        pthread_cond_timedwait(cond, lock, &until);
}

#endif

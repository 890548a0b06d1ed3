/* SPDX-License-Identifier: Apache-2.0 */
/* thread.h - starts the library's threads. */
#ifndef DDL_BASE_THREAD_H
#define DDL_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* Start a thread with all signals blocked: signals are for the program's own threads. 0, or an
 * errno. */
static inline int ddl__thread_start(pthread_t *thread, void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Design notes. The threads are detached, because joining one could block forever. Each thread
 * closes descriptors from the list and ends when the list is empty. A close that blocks occupies
 * one thread, so there are several. The last thread to end frees a released closer. */
#include "connect/endpoint/closer.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/thread.h"

enum { THREADS = 8, FULL = 128 };

struct ddl__closer {
    pthread_mutex_t lock;
    int *fds;
    unsigned n, capacity, threads;
    bool released;
};

ddl__closer *ddl__closer_create(void)
{
    ddl__closer *closer = calloc(1, sizeof *closer);
    if (closer)
        pthread_mutex_init(&closer->lock, NULL);
    return closer;
}

/* Unlock the closer, and free it if it was released and no thread uses it. */
static void closer_unlock(ddl__closer *closer)
{
    bool last = closer->released && !closer->threads;
    pthread_mutex_unlock(&closer->lock);
    if (!last)
        return;
    for (unsigned i = 0; i < closer->n; i++)
        close(closer->fds[i]); /* no thread could be started to close these */
    pthread_mutex_destroy(&closer->lock);
    free(closer->fds);
    free(closer);
}

static void *closer_thread(void *argument)
{
    ddl__closer *closer = argument;
    pthread_mutex_lock(&closer->lock);
    while (closer->n) {
        int fd = closer->fds[--closer->n];
        pthread_mutex_unlock(&closer->lock);
        close(fd);
        pthread_mutex_lock(&closer->lock);
    }
    closer->threads--;
    closer_unlock(closer);
    return NULL;
}

static void closer_start_thread(ddl__closer *closer)
{
    pthread_t thread;
    if (closer->threads == THREADS || ddl__thread_start(&thread, closer_thread, closer))
        return;
    pthread_detach(thread);
    closer->threads++; /* the new thread waits for the lock, which this thread holds */
}

static bool closer_reserve(ddl__closer *closer)
{
    unsigned larger = 2 * closer->capacity + FULL;
    if (closer->n < closer->capacity)
        return true;
    int *fds = realloc(closer->fds, larger * sizeof *fds);
    if (!fds)
        return false;
    closer->fds = fds;
    closer->capacity = larger;
    return true;
}

void ddl__closer_add(ddl__closer *closer, int fd)
{
    pthread_mutex_lock(&closer->lock);
    bool added = closer_reserve(closer);
    if (added) {
        closer->fds[closer->n++] = fd;
        closer_start_thread(closer);
    }
    pthread_mutex_unlock(&closer->lock);
    if (!added)
        close(fd);
}

bool ddl__closer_is_full(ddl__closer *closer)
{
    pthread_mutex_lock(&closer->lock);
    bool full = closer->n >= FULL;
    pthread_mutex_unlock(&closer->lock);
    return full;
}

void ddl__closer_release(ddl__closer *closer)
{
    if (!closer)
        return;
    pthread_mutex_lock(&closer->lock);
    closer->released = true;
    closer_unlock(closer);
}

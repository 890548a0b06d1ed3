/* SPDX-License-Identifier: Apache-2.0 */
/* Design notes. One registry lists the descriptors and the memory, and one lock guards it. The fork
 * handlers hold the lock across fork, so the child's registry is consistent. The registry is a
 * process global, because the handlers have no arguments; the only other globals are the log's
 * sink, cached facts (comm/location.c, net/tcp/tcp.c) and the time slices of threads
 * (time_slice.c). A descriptor is added and closed under the lock, so the registry never contains a
 * number that was closed and reused. */
#include "base/forks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fork_copies.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int *guarded;
static unsigned n_guarded, capacity;
static ddl__original *originals;
static unsigned n_originals, originals_capacity;
static atomic_uint generation;

static void prepare_fork(void)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < n_originals; i++)
        ddl__original_copy(&originals[i]);
}

static void finish_in_parent(void)
{
    for (unsigned i = 0; i < n_originals; i++)
        ddl__original_drop_copy(&originals[i]);
    pthread_mutex_unlock(&lock);
}

static void finish_in_child(void)
{
    for (unsigned i = 0; i < n_originals; i++)
        ddl__original_replace(&originals[i]);
    n_originals = 0;
    for (unsigned i = 0; i < n_guarded; i++)
        close(guarded[i]);
    n_guarded = 0;
    atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
}

static void install_handlers(void)
{
    pthread_atfork(prepare_fork, finish_in_parent, finish_in_child);
}

int ddl__guard(int fd)
{
    if (fd < 0)
        return fd;
    pthread_once(&once, install_handlers);
    pthread_mutex_lock(&lock);
    if (n_guarded == capacity) {
        int *larger = realloc(guarded, (2 * capacity + 64) * sizeof *guarded);
        if (larger) {
            guarded = larger;
            capacity = 2 * capacity + 64;
        }
    }
    if (n_guarded < capacity) /* if out of memory, a forked child keeps the descriptor open */
        guarded[n_guarded++] = fd;
    pthread_mutex_unlock(&lock);
    return fd;
}

void ddl__close_guarded(int fd)
{
    if (fd < 0)
        return;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < n_guarded; i++)
        if (guarded[i] == fd) {
            guarded[i] = guarded[--n_guarded];
            break;
        }
    close(fd);
    pthread_mutex_unlock(&lock);
}

bool ddl__guard_memory(void *memory, size_t bytes, int fd)
{
    pthread_once(&once, install_handlers);
    pthread_mutex_lock(&lock);
    if (n_originals == originals_capacity) {
        unsigned more = 2 * originals_capacity + 16;
        ddl__original *larger = realloc(originals, more * sizeof *larger);
        if (larger) {
            originals = larger;
            originals_capacity = more;
        }
    }
    bool room = n_originals < originals_capacity;
    if (room)
        originals[n_originals++] = (ddl__original){.memory = memory, .bytes = bytes, .fd = fd};
    pthread_mutex_unlock(&lock);
    return room;
}

void ddl__unguard_memory(const void *memory)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < n_originals; i++)
        if (originals[i].memory == memory) {
            originals[i] = originals[--n_originals];
            break;
        }
    pthread_mutex_unlock(&lock);
}

unsigned ddl__generation(void)
{
    return atomic_load_explicit(&generation, memory_order_relaxed);
}

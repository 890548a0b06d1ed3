/* Design notes. One list of descriptors and one lock, held across fork by the handlers, so that the
 * child finds the list whole. A process global, as are only the log's sink and what is remembered
 * of the process itself (base/fences.c, comm/location.c). Adding to the list and closing happen
 * under the lock, so a number that is closed and used again by somebody else is never in it. */
#include "base/forks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int *guarded;
static unsigned n_guarded, capacity;
static atomic_uint generation;

static void lock_before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void unlock_in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void close_in_child(void)
{
    for (unsigned i = 0; i < n_guarded; i++)
        close(guarded[i]);
    n_guarded = 0;
    atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
}

static void install_handlers(void)
{
    pthread_atfork(lock_before_fork, unlock_in_parent, close_in_child);
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
    if (n_guarded < capacity) /* else a child keeps it: no reason to fail */
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

unsigned ddl__generation(void)
{
    return atomic_load_explicit(&generation, memory_order_relaxed);
}

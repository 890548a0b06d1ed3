/* Design notes. There is one list of descriptors and one lock. The handlers hold the lock across
 * fork, so the child's list is consistent. The list is a process global; the only others are the
 * log's sink and cached facts (comm/location.c, net/tcp.c). A descriptor is added to the list and
 * closed under the lock, so the list never has a number that was closed and is in use again. */
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
    if (n_guarded < capacity) /* without memory a child keeps the descriptor open */
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

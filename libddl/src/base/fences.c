/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fences.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "base/thread.h"

/* The kernel's constants, which not every C library defines. */
enum { GLOBAL_EXPEDITED = 1 << 1, REGISTER_GLOBAL_EXPEDITED = 1 << 2 };

static void *register_process(void *argument)
{
    ddl__fences *fences = argument;
    bool joined = !syscall(SYS_membarrier, REGISTER_GLOBAL_EXPEDITED, 0, 0);
    atomic_store_explicit(&fences->joined, joined, memory_order_release);
    sem_post(&fences->done);
    return NULL;
}

void ddl__fences_start(ddl__fences *fences)
{
    pthread_t thread;
    atomic_init(&fences->joined, false);
    sem_init(&fences->done, 0, 0);
    fences->started = !ddl__thread_start(&thread, register_process, fences);
    if (fences->started)
        pthread_detach(thread); /* ddl__fences_stop may never be called */
}

void ddl__fences_stop(ddl__fences *fences)
{
    if (!fences->started)
        return;
    while (sem_wait(&fences->done)) /* retry after EINTR */
        ;
    sem_destroy(&fences->done);
    fences->started = false;
}

void ddl__fence_heavy(void)
{
    syscall(SYS_membarrier, GLOBAL_EXPEDITED, 0, 0);
}

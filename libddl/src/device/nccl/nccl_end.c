/* SPDX-License-Identifier: Apache-2.0 */
#include "device/nccl/nccl.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/thread.h"

/* The state shared by the ending thread and its waiter; the last to leave frees it. */
typedef struct ending {
    ddl__nccl library;
    ddl__nccl_comm *comm;
    ddl__nccl_ending how;
    atomic_bool ended;
    atomic_int users;
} ending;

static void pause_briefly(void)
{
    const struct timespec time = {0, 1000000};
    nanosleep(&time, NULL);
}

static void leave(ending *e)
{
    if (atomic_fetch_sub_explicit(&e->users, 1, memory_order_acq_rel) == 1)
        free(e);
}

static bool destroy(const ending *e)
{
    int state = e->library.finalize(e->comm);
    while (state == DDL__NCCL_IN_PROGRESS) {
        pause_briefly();
        if (e->library.state(e->comm, &state) != DDL__NCCL_SUCCESS)
            return false;
    }
    return state == DDL__NCCL_SUCCESS && e->library.destroy(e->comm) == DDL__NCCL_SUCCESS;
}

static void *run(void *argument)
{
    ending *e = argument;
    if (e->how == DDL__NCCL_ABORTS || !destroy(e))
        e->library.abort(e->comm);
    atomic_store_explicit(&e->ended, true, memory_order_release);
    leave(e);
    return NULL;
}

bool ddl__nccl_end(const ddl__nccl *library, ddl__nccl_comm *comm, ddl__nccl_ending how,
                   int64_t limit)
{
    pthread_t thread;
    ending *e = malloc(sizeof *e);
    if (!e)
        return false;
    *e = (ending){.library = *library, .comm = comm, .how = how};
    atomic_init(&e->ended, false);
    atomic_init(&e->users, 2);
    if (ddl__thread_start(&thread, run, e)) {
        free(e);
        return false;
    }
    pthread_detach(thread);
    while (!atomic_load_explicit(&e->ended, memory_order_acquire) && ddl__now() < limit)
        pause_briefly();
    bool ended = atomic_load_explicit(&e->ended, memory_order_acquire);
    leave(e);
    return ended;
}

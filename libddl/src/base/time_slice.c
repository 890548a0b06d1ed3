/* SPDX-License-Identifier: Apache-2.0 */
#include "base/time_slice.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"

/* The first version of the kernel's struct sched_attr. */
typedef struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t slice, deadline, period;
} attributes;

static _Thread_local bool asked;
static _Thread_local uint64_t usual; /* the slice before, in ns; 0: not changed */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Set the slice of this thread. Return the one before; 0 if it cannot be set. */
static uint64_t set_slice(uint64_t slice)
{
    attributes now = {.size = sizeof now};
    if (syscall(SYS_sched_getattr, 0, &now, sizeof now, 0) || now.policy != SCHED_OTHER)
        return 0;
    uint64_t before = now.slice; /* older kernels have no slices to set, and say 0 */
    now.slice = slice;
    return before && !syscall(SYS_sched_setattr, 0, &now, 0) ? before : 0;
}

static void reset_in_child(void)
{
    if (usual)
        set_slice(usual);
    usual = 0;
    asked = false;
}

static void install_handler(void)
{
    pthread_atfork(NULL, NULL, reset_in_child);
}

void ddl__time_slice_shorten(void)
{
    if (asked)
        return;
    asked = true;
    pthread_once(&once, install_handler);
    usual = set_slice(DDL__TIME_SLICE_NS);
    if (usual)
        ddl__log(DDL__INFO, "another program computes on a core of this rank: a waiting thread "
                            "asks the kernel for time slices of 0.1 ms, to be run sooner");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Items of streams that neither copy nor launch a kernel: waits for a word in memory,
 * and host functions.
 *
 * Design notes. Items run in the stream's thread, without standin_mutex. A wait for a word polls,
 * and keeps its memory mapped meanwhile. A host function runs with its context's lock
 * `host_functions` held. standin_mutex is not held then, and the function cannot take it, since it
 * must not call CUDA. */
#include <time.h>

#include "standin.h"

enum { POLL_NS = 10000 };

/* ------------------------------------------------------------------------------ words in memory */

/* The load that finds the value acquires what the program released with it. */
static void run_wait_value(work *w)
{
    const struct timespec pause = {0, POLL_NS};
    span s = standin_span_take(w->with.word.at, sizeof(uint32_t), w->context->device,
                               CU_MEM_ACCESS_FLAGS_PROT_READ, "cuStreamWaitValue32");
    const uint32_t *word = (const uint32_t *)(const void *)s.at;
    while ((int32_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - w->with.word.value) < 0)
        nanosleep(&pause, NULL);
    standin_span_drop(&s);
}

CUresult cuStreamWaitValue32_v2(CUstream handle, CUdeviceptr address, cuuint32_t value,
                                unsigned flags)
{
    stream *s;
    uintptr_t at = (uintptr_t)address;
    STANDIN_ENTER_STREAM(handle, &s);
    if (flags != CU_STREAM_WAIT_VALUE_GEQ)
        return standin_leave(CUDA_ERROR_NOT_SUPPORTED); /* by the stand-in */
    place where =
        standin_place(at, sizeof(uint32_t), s->context->device, CU_MEM_ACCESS_FLAGS_PROT_READ);
    if (where == PLACE_INVALID || where == PLACE_PAGEABLE || at % sizeof(uint32_t))
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    work *w = standin_work_create(run_wait_value);
    if (!w)
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    w->with.word.at = at;
    w->with.word.value = value;
    return standin_leave(standin_push(s, w, NULL));
}

/* ------------------------------------------------------------------------------- host functions */

static unsigned long long host_functions;

/* Run a host function. Only one runs at a time in a context, because the real driver may run them
 * so. A host function that waits for one of another stream therefore waits forever. The lock is
 * hidden, and orders nothing. */
static void run_host(work *w)
{
    standin_hide();
    pthread_mutex_lock(&w->context->host_functions);
    standin_in_host_function(true);
    standin_show();
    w->with.host.function(w->with.host.data);
    standin_hide();
    standin_in_host_function(false);
    pthread_mutex_unlock(&w->context->host_functions);
    standin_show();
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data)
{
    stream *s;
    STANDIN_ENTER_STREAM(handle, &s);
    if (!function)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    work *w = standin_work_create(run_host);
    if (!w)
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    w->with.host.function = function;
    w->with.host.data = data;
    host_functions++;
    return standin_leave(standin_push(s, w, NULL));
}

unsigned long long standin_host_functions(void)
{
    standin_lock();
    unsigned long long n = host_functions;
    standin_unlock();
    return n;
}

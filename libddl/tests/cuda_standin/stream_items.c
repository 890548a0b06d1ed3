/* SPDX-License-Identifier: Apache-2.0 */
/* Items of streams that neither copy nor launch a kernel: waits for a word in memory, stores to
 * one, and host functions.
 *
 * Design notes. Items run in the stream's thread, without standin_mutex. A wait for a word polls,
 * and keeps its memory mapped meanwhile. A host function runs with its context's lock
 * `host_functions` held. standin_mutex is not held then, and the function cannot take it, since it
 * must not call CUDA. */
#include <time.h>

#include "standin.h"

enum { POLL_NS = 10000 };

/* ------------------------------------------------------------------------------ words in memory */

static bool is_reached(unsigned found, unsigned value, unsigned condition)
{
    switch (condition) {
    case CU_STREAM_WAIT_VALUE_GEQ: return (int32_t)(found - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ: return found == value;
    case CU_STREAM_WAIT_VALUE_AND: return found & value;
    default: return ~(found | value); /* CU_STREAM_WAIT_VALUE_NOR */
    }
}

/* Wait for a word. The load that finds the value acquires what the program released with it. */
static void run_wait_value(work *w)
{
    const struct timespec pause = {0, POLL_NS};
    unsigned condition = w->with.word.flags & ~(unsigned)CU_STREAM_WAIT_VALUE_FLUSH;
    span s = standin_span_take(w->with.word.at, sizeof(uint32_t), w->context->device,
                               CU_MEM_ACCESS_FLAGS_PROT_READ, "cuStreamWaitValue32");
    const uint32_t *word = (const uint32_t *)(const void *)s.at;
    while (!is_reached(__atomic_load_n(word, __ATOMIC_ACQUIRE), w->with.word.value, condition))
        nanosleep(&pause, NULL);
    standin_span_drop(&s);
}

static void run_write_value(work *w)
{
    span s = standin_span_take(w->with.word.at, sizeof(uint32_t), w->context->device,
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "cuStreamWriteValue32");
    uint32_t *word = (uint32_t *)(void *)s.at;
    if (w->with.word.flags & CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
        __atomic_store_n(word, w->with.word.value, __ATOMIC_RELAXED);
    else
        __atomic_store_n(word, w->with.word.value, __ATOMIC_RELEASE);
    standin_span_drop(&s);
}

static CUresult push_word(const char *function, CUstream handle, work with, unsigned known_flags)
{
    stream *s;
    CUresult result = standin_enter_stream(function, handle, &s);
    if (result != CUDA_SUCCESS)
        return result;
    if (standin_settings()->no_wait_value)
        return standin_leave(CUDA_ERROR_NOT_SUPPORTED);
    CUmemAccess_flags wanted = with.run == run_write_value ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                           : CU_MEM_ACCESS_FLAGS_PROT_READ;
    uintptr_t at = with.with.word.at;
    place where = standin_place(at, sizeof(uint32_t), s->context->device, wanted);
    if (where == PLACE_INVALID || where == PLACE_PAGEABLE || at % sizeof(uint32_t) ||
        with.with.word.flags & ~known_flags)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    work *w = standin_work_create(with.run);
    if (!w)
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    w->with = with.with;
    return standin_leave(standin_push(s, w, NULL));
}

CUresult cuStreamWaitValue32_v2(CUstream handle, CUdeviceptr address, cuuint32_t value,
                                unsigned flags)
{
    work with = {.run = run_wait_value, .with.word = {(uintptr_t)address, value, flags}};
    return push_word(__func__, handle, with, CU_STREAM_WAIT_VALUE_NOR | CU_STREAM_WAIT_VALUE_FLUSH);
}

CUresult cuStreamWriteValue32_v2(CUstream handle, CUdeviceptr address, cuuint32_t value,
                                 unsigned flags)
{
    work with = {.run = run_write_value, .with.word = {(uintptr_t)address, value, flags}};
    return push_word(__func__, handle, with, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER);
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
    CUresult result = standin_enter_stream(__func__, handle, &s);
    if (result != CUDA_SUCCESS)
        return result;
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

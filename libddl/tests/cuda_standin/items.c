/* SPDX-License-Identifier: Apache-2.0 */
/* The items of streams: copies, fills, waits for a word in memory, host functions, and the kernels
 * of the stand-in for NCCL. They run in the stream's thread, without standin_mutex.
 *
 * Streams copy by plain memory accesses, so ThreadSanitizer sees them. What a copy does to its
 * caller depends on the places, as with the real driver:
 * - from pageable to device memory: the caller's memory is read before the call returns, into a
 *   staging buffer. A copy of more than STAGED_AT_ONCE bytes, and every synchronous one, first
 *   waits for the stream.
 * - from device to pageable memory: the call waits for the copy. In the asynchronous form the real
 *   one may do so or not. The stand-in then waits without an edge: a program that relies on the
 *   wait gets a report from ThreadSanitizer, and one that must not be kept waiting blocks.
 * - from host to host memory: the call waits.
 * - from device to device memory: no form waits.
 * - else: only the synchronous form waits. */
#include <string.h>
#include <time.h>

#include "standin.h"

enum { STAGED_AT_ONCE = 64 << 10, POLL_NS = 10000 };

static range *use(uintptr_t address, size_t bytes, bool pageable, int device, bool writes,
                  unsigned char **at)
{
    *at = (unsigned char *)address;
    return pageable ? NULL : standin_use(address, bytes, device, writes, "a copy", at);
}

static void run_copy(work *w)
{
    int device = w->context->device;
    size_t bytes = w->with.copy.bytes;
    unsigned char *to, *from;
    range *target = use(w->with.copy.to, bytes, w->with.copy.to_pageable, device, true, &to);
    range *source = use(w->with.copy.from, bytes, w->with.copy.from_pageable, device, false, &from);
    memcpy(to, from, bytes);
    if (target)
        standin_unuse(target);
    if (source)
        standin_unuse(source);
}

typedef struct copy {
    const char *function;
    uintptr_t to, from;
    size_t bytes;
    bool asynchronous;
    bool to_known, from_known; /* must not be pageable */
} copy;

/* Read pageable memory into the item. The calling thread reads it, shown and without the lock. */
static void stage(work *w, const copy *c)
{
    w->owned = standin_new(c->bytes);
    standin_unlock();
    memcpy(w->owned, (const void *)c->from, c->bytes);
    standin_lock();
    w->with.copy.from = (uintptr_t)w->owned;
}

static CUresult run_call(copy c, CUstream handle)
{
    stream *s;
    STANDIN_ENTER_BY(standin_enter_stream(c.function, handle, &s));
    if (!c.bytes)
        return standin_leave(CUDA_SUCCESS);
    place to = standin_place(c.to, c.bytes, s->context->device, true);
    place from = standin_place(c.from, c.bytes, s->context->device, false);
    if (!c.to || !c.from || to == PLACE_INVALID || from == PLACE_INVALID ||
        (c.to_known && to == PLACE_PAGEABLE) || (c.from_known && from == PLACE_PAGEABLE))
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    bool both_host = to != PLACE_DEVICE && from != PLACE_DEVICE;
    bool both_device = to == PLACE_DEVICE && from == PLACE_DEVICE;
    work *w = standin_work_create(run_copy);
    w->with.copy.to = c.to;
    w->with.copy.from = c.from;
    w->with.copy.bytes = c.bytes;
    w->with.copy.to_pageable = to == PLACE_PAGEABLE;
    w->with.copy.from_pageable = from == PLACE_PAGEABLE;
    bool staged = from == PLACE_PAGEABLE && !both_host;
    if (staged && (!c.asynchronous || c.bytes > STAGED_AT_ONCE))
        standin_point_await(standin_point_retain(s->last), !c.asynchronous);
    if (staged)
        stage(w, &c);
    bool ordered = both_host || (!c.asynchronous && !both_device && !staged);
    point *done = standin_push(s, w);
    if (ordered || to == PLACE_PAGEABLE)
        standin_point_await(done, ordered);
    else
        standin_point_release(done);
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    return run_call((copy){__func__, (uintptr_t)to, (uintptr_t)from, bytes, false, false, true},
                    NULL);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    return run_call((copy){__func__, (uintptr_t)to, (uintptr_t)from, bytes, false, true, false},
                    NULL);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream handle)
{
    return run_call((copy){__func__, (uintptr_t)to, (uintptr_t)from, bytes, true, false, true},
                    handle);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream handle)
{
    return run_call((copy){__func__, (uintptr_t)to, (uintptr_t)from, bytes, true, true, false},
                    handle);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle)
{
    return run_call((copy){__func__, (uintptr_t)to, (uintptr_t)from, bytes, true, true, true},
                    handle);
}

/* ------------------------------------------------------------------------------ words in memory */

static CUresult queue_words(stream *s, void (*run)(work *w), CUdeviceptr address, size_t count,
                            unsigned value, bool writes)
{
    uintptr_t at = (uintptr_t)address;
    if (count > SIZE_MAX / sizeof(uint32_t) || at % sizeof(uint32_t))
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    place where = standin_place(at, count * sizeof(uint32_t), s->context->device, writes);
    if (where == PLACE_INVALID || where == PLACE_PAGEABLE)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    work *w = standin_work_create(run);
    w->with.words.at = at;
    w->with.words.count = count;
    w->with.words.value = value;
    return standin_queue(s, w);
}

static void run_set(work *w)
{
    unsigned char *at;
    size_t count = w->with.words.count;
    range *r = standin_use(w->with.words.at, count * sizeof(uint32_t), w->context->device, true,
                           "a memset", &at);
    for (size_t i = 0; i < count; i++)
        ((uint32_t *)(void *)at)[i] = w->with.words.value;
    standin_unuse(r);
}

CUresult cuMemsetD32Async(CUdeviceptr address, unsigned value, size_t count, CUstream handle)
{
    stream *s;
    STANDIN_ENTER_STREAM(handle, &s);
    return count ? queue_words(s, run_set, address, count, value, true)
                 : standin_leave(CUDA_SUCCESS);
}

/* Poll; the memory stays mapped meanwhile. The load that finds the value acquires what the program
 * released with it. */
static void run_wait_value(work *w)
{
    const struct timespec pause = {0, POLL_NS};
    unsigned char *at;
    range *r = standin_use(w->with.words.at, sizeof(uint32_t), w->context->device, false,
                           "cuStreamWaitValue32", &at);
    const uint32_t *word = (const uint32_t *)(const void *)at;
    while ((int32_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - w->with.words.value) < 0)
        nanosleep(&pause, NULL);
    standin_unuse(r);
}

CUresult cuStreamWaitValue32_v2(CUstream handle, CUdeviceptr address, cuuint32_t value,
                                unsigned flags)
{
    stream *s;
    STANDIN_ENTER_STREAM(handle, &s);
    if (flags != CU_STREAM_WAIT_VALUE_GEQ)
        return standin_leave(CUDA_ERROR_NOT_SUPPORTED); /* by the stand-in */
    return queue_words(s, run_wait_value, address, 1, value, false);
}

/* ----------------------------------------------------------------------------------- functions */

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
    w->with.host.function = function;
    w->with.host.data = data;
    host_functions++;
    return standin_queue(s, w);
}

unsigned long long standin_host_functions(void)
{
    standin_lock();
    unsigned long long n = host_functions;
    standin_unlock();
    return n;
}

static void run_kernel(work *w)
{
    w->with.kernel.run(w->with.kernel.argument, w->context->device);
}

CUresult standin_launch(CUstream handle, void (*run)(void *argument, int device), void *argument)
{
    stream *s;
    STANDIN_ENTER_STREAM(handle, &s);
    work *w = standin_work_create(run_kernel);
    w->with.kernel.run = run;
    w->with.kernel.argument = argument;
    return standin_queue(s, w);
}

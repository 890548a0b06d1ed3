/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills. Streams make them by plain memory accesses, so ThreadSanitizer sees them.
 *
 * What a copy does to its caller depends on the places, as with the real driver:
 * - from pageable to device memory: the caller's memory is read before the call returns, into a
 *   staging buffer. A copy of more than STAGED_AT_ONCE bytes, and every synchronous one, first
 * waits for the stream.
 * - from device to pageable memory: the call waits for the copy. In the asynchronous form the real
 *   one may do so or not. The stand-in then waits without an edge: a program that relies on the
 * wait gets a report from ThreadSanitizer, and one that must not be kept waiting blocks.
 * - from host to host memory: the call waits.
 * - from device to device memory: no form waits.
 * - else: only the synchronous form waits. */
#include <stdlib.h>
#include <string.h>

#include "standin.h"

enum { STAGED_AT_ONCE = 64 << 10 };

static span take(uintptr_t address, size_t bytes, bool pageable, int device,
                 CUmemAccess_flags wanted)
{
    if (pageable)
        return (span){(unsigned char *)address, bytes, NULL};
    return standin_span_take(address, bytes, device, wanted, "a copy");
}

static void drop(span *s)
{
    if (s->memory)
        standin_span_drop(s);
}

static void run_copy(work *w)
{
    uintptr_t to = w->with.copy.to, from = w->with.copy.from;
    int device = w->context->device;
    for (size_t left = w->with.copy.bytes, n; left; left -= n, to += n, from += n) {
        span target =
            take(to, left, w->with.copy.to_pageable, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        span source =
            take(from, left, w->with.copy.from_pageable, device, CU_MEM_ACCESS_FLAGS_PROT_READ);
        n = target.bytes < source.bytes ? target.bytes : source.bytes;
        memcpy(target.at, source.at, n);
        drop(&target);
        drop(&source);
    }
}

typedef struct copy {
    const char *function;
    uintptr_t to, from;
    size_t bytes;
    bool asynchronous;
    bool to_known, from_known; /* must not be pageable */
} copy;

static bool is_host(place where)
{
    return where == PLACE_PINNED || where == PLACE_PAGEABLE;
}

/* Wait for everything that the stream holds now. */
static void await_stream(const stream *s, bool ordered)
{
    point *newest = s->last;
    if (!newest)
        return;
    standin_point_retain(newest);
    standin_point_await(newest, ordered);
    standin_point_release(newest);
}

/* Read pageable memory into the item. The calling thread reads it, shown and without the lock. */
static bool stage(work *w, const copy *c)
{
    w->owned = malloc(c->bytes);
    if (!w->owned)
        return false;
    standin_unlock();
    memcpy(w->owned, (const void *)c->from, c->bytes);
    standin_lock();
    w->with.copy.from = (uintptr_t)w->owned;
    return true;
}

static CUresult push_copy(const copy *c, stream *s, place to, place from)
{
    bool both_host = is_host(to) && is_host(from), both_device = !is_host(to) && !is_host(from);
    work *w = standin_work_create(run_copy);
    if (!w)
        return CUDA_ERROR_OUT_OF_MEMORY;
    w->with.copy.to = c->to;
    w->with.copy.from = c->from;
    w->with.copy.bytes = c->bytes;
    w->with.copy.to_pageable = to == PLACE_PAGEABLE;
    w->with.copy.from_pageable = from == PLACE_PAGEABLE;
    bool staged = from == PLACE_PAGEABLE && !both_host;
    if (staged && (!c->asynchronous || c->bytes > STAGED_AT_ONCE))
        await_stream(s, !c->asynchronous);
    if (staged && !stage(w, c)) {
        standin_work_drop(w);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    bool ordered = both_host || (!c->asynchronous && !both_device && !staged);
    bool waits = ordered || to == PLACE_PAGEABLE;
    point *done;
    CUresult result = standin_push(s, w, waits ? &done : NULL);
    if (result == CUDA_SUCCESS && waits) {
        standin_point_await(done, ordered);
        standin_point_release(done);
    }
    return result;
}

static CUresult run_call(copy c, CUstream handle)
{
    stream *s;
    CUresult result = standin_enter_stream(c.function, handle, &s);
    if (result != CUDA_SUCCESS)
        return result;
    if (!c.bytes)
        return standin_leave(CUDA_SUCCESS);
    int device = s->context->device;
    place to = standin_place(c.to, c.bytes, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    place from = standin_place(c.from, c.bytes, device, CU_MEM_ACCESS_FLAGS_PROT_READ);
    if (!c.to || !c.from || to == PLACE_INVALID || from == PLACE_INVALID ||
        (c.to_known && to == PLACE_PAGEABLE) || (c.from_known && from == PLACE_PAGEABLE))
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    return standin_leave(push_copy(&c, s, to, from));
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

/* ---------------------------------------------------------------------------------------- fills */

static void run_set(work *w)
{
    uintptr_t to = w->with.set.to;
    for (size_t left = w->with.set.count * sizeof(uint32_t), n; left; left -= n, to += n) {
        span s = standin_span_take(to, left, w->context->device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                                   "a memset");
        n = s.bytes;
        for (size_t i = 0; i < n / sizeof(uint32_t); i++)
            ((uint32_t *)(void *)s.at)[i] = w->with.set.value;
        standin_span_drop(&s);
    }
}

CUresult cuMemsetD32Async(CUdeviceptr address, unsigned value, size_t count, CUstream handle)
{
    stream *s;
    uintptr_t to = (uintptr_t)address;
    STANDIN_ENTER_STREAM(handle, &s);
    if (!count)
        return standin_leave(CUDA_SUCCESS);
    if (count > SIZE_MAX / sizeof(uint32_t) || to % sizeof(uint32_t))
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    place where = standin_place(to, count * sizeof(uint32_t), s->context->device,
                                CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    if (where == PLACE_INVALID || where == PLACE_PAGEABLE)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    work *w = standin_work_create(run_set);
    if (!w)
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    w->with.set.to = to;
    w->with.set.value = value;
    w->with.set.count = count;
    return standin_leave(standin_push(s, w, NULL));
}

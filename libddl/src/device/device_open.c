/* SPDX-License-Identifier: Apache-2.0 */
/* Creates and destroys a device, and detects its failures. device_state.h has the design notes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/time_limits.h"
#include "device/device.h"
#include "device/nccl/nccl_ranks.h"

static const char *own_name(const ddl__device *d)
{
    return d->config.names[d->config.rank];
}

/* ------------------------------------------------------------------------------------- failures */

/* Under `lock`: end the comm if copies take too long. The engine checks the limits of its
 * operations. */
static void check_limit(ddl__device *d)
{
    const ddl__device_operation *o = d->operations;
    while (o && o->ended)
        o = o->next;
    if (!o || ddl__now() - DDL__DEVICE_LATE_LIMIT <= o->deadline)
        return;
    char text[DDL__MESSAGE_MAX];
    snprintf(text, sizeof text, "%s: GPU %d has not copied the results of an operation in time",
             own_name(d), d->number);
    ddl__device_fail(d, DDL_EEXPIRED, text);
}

/* Under `lock`, which is released meanwhile: end the comm if the GPU has failed, because its host
 * functions are then never called. */
static void check_streams(ddl__device *d)
{
    ddl__cuda_result results[2] = {DDL__CUDA_SUCCESS, DDL__CUDA_SUCCESS};
    pthread_mutex_unlock(&d->lock);
    if (ddl__device_enter(d)) {
        results[0] = d->cuda.stream_query(d->from);
        results[1] = d->cuda.stream_query(d->to);
        ddl__device_leave(d);
    }
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < 2; i++)
        if (results[i] != DDL__CUDA_NOT_READY &&
            !ddl__device_is_good(d, "stream_query", results[i])) {
            d->broken = true;
            pthread_cond_broadcast(&d->changed);
            ddl__device_fail(d, DDL_EABORTED, ddl__message());
        }
}

/* Under `lock`, which is released meanwhile: end the comm if NCCL has failed. */
static void check_nccl(ddl__device *d)
{
    if (!ddl__nccl_look(d))
        ddl__device_fail(d, DDL_EABORTED, ddl__message());
}

static bool uses_nccl(const ddl__device *d)
{
    return d->nccl && d->nccl->comm;
}

/* Under `lock`: return the time of the next check. */
static int64_t next_look(const ddl__device *d)
{
    if (d->under_way && !d->broken)
        return ddl__now() + DDL__PROGRESS_TICK;
    return uses_nccl(d) ? ddl__now() + DDL__DEVICE_IDLE_TICK : DDL__NEVER;
}

/* The watcher thread: check pending operations, and abort NCCL's communicator when the comm has
 * ended. Other ranks may wait for that even if this rank has no pending operations. */
static void *watch(void *argument)
{
    ddl__device *d = argument;
    int mode = DDL__CUDA_CAPTURE_RELAXED; /* allow this thread's calls while other threads capture
                                             CUDA graphs */
    d->cuda.capture_mode(&mode);
    pthread_mutex_lock(&d->lock);
    while (!d->stop) {
        if (uses_nccl(d) && !ddl__device_is_alive(d)) {
            pthread_mutex_unlock(&d->lock);
            ddl__nccl_abort(d);
            pthread_mutex_lock(&d->lock);
            continue;
        }
        ddl__cond_wait_until(&d->changed, &d->lock, next_look(d));
        if (!d->under_way || d->broken)
            continue;
        if (uses_nccl(d))
            check_nccl(d);
        else
            check_streams(d);
        check_limit(d);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---------------------------------------------------------------------------------- creation */

/* Find the GPU of the stream; for a default stream, the GPU of the thread's context. */
static ddl_status find_gpu_of_stream(ddl__device *d, ddl__cuda_stream stream, int *number)
{
    ddl__cuda_context context;
    if ((uintptr_t)stream <= DDL__CUDA_STREAM_PER_THREAD)
        return DDL__GOOD(d, context_device, number) ? DDL_OK : DDL_ESYSTEM;
    if (!DDL__GOOD(d, stream_context, stream, &context) || !DDL__GOOD(d, context_push, context))
        return DDL_ESYSTEM;
    bool good = DDL__GOOD(d, context_device, number);
    d->cuda.context_pop(&context);
    return good ? DDL_OK : DDL_ESYSTEM;
}

static ddl_status find_gpu_of_call(ddl__device *d, const void *address, ddl__cuda_stream stream,
                                   int *number)
{
    return address ? ddl__device_find_gpu(&d->cuda, address, number)
                   : find_gpu_of_stream(d, stream, number);
}

/* Find the GPU. A thread without a context cannot query the driver, so GPU 0's context is used if
 * the thread has none. */
static ddl_status find_first_gpu(ddl__device *d, const void *address, ddl__cuda_stream stream,
                                 int *number)
{
    ddl__cuda_context current = NULL, context;
    ddl__cuda_device any;
    d->cuda.context_current(&current);
    if (current)
        return find_gpu_of_call(d, address, stream, number);
    if (!DDL__GOOD(d, device_get, &any, 0) || !DDL__GOOD(d, context_retain, &context, any))
        return DDL_ESYSTEM;
    ddl_status status = DDL_ESYSTEM;
    if (DDL__GOOD(d, context_push, context)) {
        status = find_gpu_of_call(d, address, stream, number);
        d->cuda.context_pop(&current);
    }
    d->cuda.context_release(any);
    return status;
}

static ddl_status open_gpu(ddl__device *d, const void *address, ddl__cuda_stream stream)
{
    int number = 0;
    ddl_status status = ddl__cuda_open(&d->cuda);
    if (status == DDL_OK)
        status = find_first_gpu(d, address, stream, &number);
    if (status != DDL_OK)
        return status;
    d->number = number;
    return DDL__GOOD(d, device_get, &d->number, number) &&
                   DDL__GOOD(d, context_retain, &d->context, d->number)
               ? DDL_OK
               : DDL_ESYSTEM;
}

static bool open_memory(ddl__device *d)
{
    const size_t bytes = (size_t)DDL__SLOTS * DDL__SLOT_BYTES;
    unsigned char *slots = ddl__memory_alloc(d->config.regions, bytes);
    if (!slots || !DDL__GOOD(d, host_register, slots, bytes, DDL__CUDA_HOST_PORTABLE)) {
        ddl__memory_free(slots);
        return false;
    }
    d->slots = slots;
    return (d->slot_words = ddl__pinned_take(d, 0, DDL__SLOTS));
}

static bool open_streams(ddl__device *d)
{
    bool good = DDL__GOOD(d, stream_create, &d->from, DDL__CUDA_STREAM_NON_BLOCKING) &&
                DDL__GOOD(d, stream_create, &d->to, DDL__CUDA_STREAM_NON_BLOCKING);
    for (int i = 0; good && i < DDL__SLOTS; i++)
        good = DDL__GOOD(d, event_create, &d->freed[i], DDL__CUDA_EVENT_DISABLE_TIMING);
    return good;
}

static ddl_status open_all(ddl__device *d, const void *address, ddl__cuda_stream stream)
{
    ddl_status status = open_gpu(d, address, stream);
    if (status != DDL_OK)
        return status;
    if (!ddl__device_enter(d))
        return DDL_ESYSTEM;
    bool good = open_memory(d) && open_streams(d);
    ddl__device_leave(d);
    if (!good)
        return DDL_ESYSTEM;
    int error = ddl__thread_start(&d->watcher, watch, d);
    d->started = !error;
    return error
               ? ddl__fail(DDL_ESYSTEM, "cannot start a thread to watch a GPU: %s", strerror(error))
               : DDL_OK;
}

ddl_status ddl__device_create(const ddl__device_config *config, const void *address, void *stream,
                              ddl__device **out)
{
    ddl__device *d = calloc(1, sizeof *d);
    if (!d)
        return ddl__fail(DDL_ENOMEM, "out of memory for a GPU's buffers");
    d->config = *config;
    d->engine = config->engine;
    d->last = &d->operations;
    pthread_mutex_init(&d->order, NULL);
    pthread_mutex_init(&d->lock, NULL);
    ddl__cond_init(&d->changed);
    ddl_status status = open_all(d, address, stream);
    if (status != DDL_OK) {
        ddl__device_destroy(d);
        return status;
    }
    ddl__log(DDL__INFO, "%s: buffers on GPU %d are copied through %d MiB of host memory",
             own_name(d), d->number, DDL__SLOTS * (DDL__SLOT_BYTES >> 20));
    *out = d;
    return DDL_OK;
}

/* ------------------------------------------------------------------------------------ the end */

void ddl__device_detach(ddl__device *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    if (d->under_way)
        ddl__engine_abort(d->engine, "ddl_comm_destroy while operations were pending");
    for (ddl__device_operation *o = d->operations; o; o = o->next)
        ddl__engine_release_group(d->engine, o->group, DDL_EABORTED);
    d->failed = d->failed || ddl__engine_status(d->engine) != DDL_OK;
    d->engine = NULL;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

/* Wait until no more host functions will be called. Return false if the GPU has not executed them
 * in time. */
static bool drain(ddl__device *d)
{
    int64_t at = ddl__now() + DDL__DEVICE_DRAIN_LIMIT;
    pthread_mutex_lock(&d->lock);
    while (d->under_way && !d->broken && ddl__now() < at)
        ddl__cond_wait_until(&d->changed, &d->lock, at);
    bool drained = !d->under_way;
    d->stop = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    return drained;
}

/* Free all resources. Called in the device's context. */
static void close_all(ddl__device *d)
{
    ddl__device_free_ended(d);
    ddl__nccl_destroy(d, d->nccl);
    for (int i = 0; i < DDL__SLOTS; i++)
        if (d->freed[i])
            d->cuda.event_destroy(d->freed[i]);
    if (d->from)
        d->cuda.stream_destroy(d->from);
    if (d->to)
        d->cuda.stream_destroy(d->to);
    if (d->slots)
        d->cuda.host_unregister(d->slots);
    ddl__memory_free(d->slots);
    if (d->slot_words)
        ddl__pinned_free(d, d->slot_words);
    for (ddl__pinned *p; (p = d->unused);) {
        d->unused = p->next;
        ddl__pinned_free(d, p);
    }
}

void ddl__device_destroy(ddl__device *d)
{
    if (!d)
        return;
    bool drained = drain(d);
    if (d->started)
        pthread_join(d->watcher, NULL);
    if (!drained) {
        ddl__log(DDL__WARN,
                 "%s: GPU %d has not executed the last copies of a comm, so the comm's host memory "
                 "is not freed",
                 own_name(d), d->number);
        return;
    }
    if (d->context && ddl__device_enter(d)) {
        close_all(d);
        ddl__device_leave(d);
        d->cuda.context_release(d->number);
    }
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    pthread_mutex_destroy(&d->order);
    free(d);
}

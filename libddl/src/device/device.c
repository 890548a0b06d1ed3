/* SPDX-License-Identifier: Apache-2.0 */
/* Operations: device_state.h has the design notes. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "device/device_state.h"
#include "engine/ordered.h"

typedef ddl__device_operation operation;
typedef ddl__device_chunk chunk;

/* ------------------------------------------------------------------------------- host functions */

static void open_hold(void *argument)
{
    chunk *c = argument;
    ddl__device *d = c->operation->device;
    pthread_mutex_lock(&d->lock);
    if (d->engine)
        ddl__engine_release_hold(d->engine, &c->hold);
    pthread_mutex_unlock(&d->lock);
}

static void end_operation(void *argument)
{
    operation *o = argument;
    ddl__device *d = o->device;
    pthread_mutex_lock(&d->lock);
    if (d->engine)
        ddl__engine_release_group(d->engine, o->group, DDL_OK);
    o->ended = true;
    d->under_way--;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

/* ---------------------------------------------------------------------------- making and freeing
 */

/* All that the operation has, when it was not submitted, or has ended. */
static void operation_free(operation *o)
{
    ddl__device *d = o->device;
    if (o->start)
        d->cuda.event_destroy(o->start);
    if (o->end)
        d->cuda.event_destroy(o->end);
    ddl__pinned_give_back(d, o->pinned);
    free(o);
}

void ddl__device_free_ended(ddl__device *d)
{
    pthread_mutex_lock(&d->lock);
    for (operation *o; (o = d->operations) && o->ended;) {
        d->operations = o->next;
        if (!o->next)
            d->last = &d->operations;
        ddl__engine *engine = d->engine;
        if (engine)
            ddl__engine_drop_group(engine, o->group);
        else
            ddl__group_free(o->group);
        pthread_mutex_unlock(&d->lock);
        operation_free(o);
        pthread_mutex_lock(&d->lock);
    }
    pthread_mutex_unlock(&d->lock);
}

/* Whether the chunks of this call pass through the slots. */
static bool fits_slots(const ddl__chunks *chunks)
{
    return !chunks->is_whole || ddl__chunk_bytes(chunks, 0) <= DDL__SLOT_BYTES;
}

/* Chunks of one call begin at cache lines. */
static size_t stride_of(const ddl__chunks *chunks)
{
    size_t bytes = ddl__chunk_bytes(chunks, 0);
    return (bytes + DDL__WORD_BYTES - 1) / DDL__WORD_BYTES * DDL__WORD_BYTES;
}

/* What the operation needs. */
typedef struct needs {
    uint64_t chunks, own; /* how many; and how many do not fit the slots */
    size_t bytes;         /* of those */
} needs;

static bool find_needs(const ddl__device *d, const ddl__device_calls *what, needs *needed)
{
    *needed = (needs){0};
    for (uint32_t i = 0; i < what->n; i++) {
        ddl__chunks chunks;
        if (!ddl__chunks_of(&what->calls[i], d->config.rank, d->config.size, DDL__SLOT_BYTES,
                            &chunks))
            return false;
        needed->chunks += (uint64_t)chunks.n;
        if (fits_slots(&chunks))
            continue;
        needed->own += (uint64_t)chunks.n;
        needed->bytes += (size_t)chunks.n * stride_of(&chunks);
    }
    return true;
}

/* Give the chunk a slot, or the next part of the operation's own memory. */
static void place(ddl__device *d, operation *o, chunk *c, bool in_slot, size_t stride, needs *used)
{
    c->operation = o;
    c->slot = in_slot ? (int)(d->n_uses++ % DDL__SLOTS) : -1;
    const ddl__pinned *words = in_slot ? d->slot_words : o->pinned;
    size_t word = in_slot ? (size_t)c->slot : used->own++;
    c->memory =
        in_slot ? d->slots + (size_t)c->slot * DDL__SLOT_BYTES : o->pinned->memory + used->bytes;
    used->bytes += in_slot ? 0 : stride;
    c->word = ddl__pinned_device_word(words, word);
    c->filled = words->filled[word];
    c->hold.word = ddl__pinned_word(words, word);
    c->hold.value = in_slot ? (uint32_t)((d->n_uses - 1) / DDL__SLOTS) + 1 : o->pinned->uses;
}

/* Add the call's chunks to the group. */
static bool add_chunks(ddl__device *d, operation *o, const ddl__call *call, needs *used)
{
    ddl__chunks chunks;
    ddl__chunks_of(call, d->config.rank, d->config.size, DDL__SLOT_BYTES, &chunks);
    bool in_slots = fits_slots(&chunks);
    for (int64_t k = 0; k < chunks.n; k++) {
        chunk *c = &o->chunks[used->chunks++];
        ddl__call made;
        place(d, o, c, in_slots, in_slots ? 0 : stride_of(&chunks), used);
        if (!ddl__chunk_call(&chunks, k, c->memory, &made)) {
            ddl__fail(DDL_ENOMEM, "no memory for the blocks of an operation");
            return false;
        }
        made.hold = &c->hold;
        if (ddl__group_add(o->group, &made) != DDL_OK) {
            ddl__call_drop(&made);
            return false;
        }
    }
    return true;
}

/* Under `order`, in the device's context: an operation with its chunks, not submitted. */
static operation *operation_create(ddl__device *d, const ddl__device_calls *what,
                                   const ddl__call *whole)
{
    needs needed, used = {0};
    operation *o = NULL;
    if (!find_needs(d, what, &needed)) {
        ddl__fail(DDL_EUNSUPPORTED, "%d ranks are too many for an operation on buffers of a GPU",
                  d->config.size);
        return NULL;
    }
    o = calloc(1, sizeof *o + needed.chunks * sizeof *o->chunks);
    if (!o || !(o->group = ddl__group_create(d->config.engine, whole->timeout_ms))) {
        free(o);
        ddl__fail(DDL_ENOMEM, "no memory for an operation of %llu chunks",
                  (unsigned long long)needed.chunks);
        return NULL;
    }
    o->device = d;
    o->n_chunks = needed.chunks;
    o->deadline = ddl__deadline(whole->timeout_ms);
    o->group->held = true;
    bool good = DDL__GOOD(d, event_create, &o->start, DDL__CUDA_EVENT_DISABLE_TIMING) &&
                DDL__GOOD(d, event_create, &o->end, DDL__CUDA_EVENT_DISABLE_TIMING);
    if (good && needed.own)
        good = (o->pinned = ddl__pinned_take(d, needed.bytes, needed.own));
    for (uint32_t i = 0; good && i < what->n; i++)
        good = add_chunks(d, o, &what->calls[i], &used);
    if (good)
        return o;
    ddl__group_free(o->group);
    operation_free(o);
    return NULL;
}

/* ------------------------------------------------------------------------------------- queueing
 */

static bool copy_from_device(void *context, const void *device, void *host, size_t bytes)
{
    const ddl__device *d = context;
    return DDL__GOOD(d, copy_to_host, host, ddl__cuda_address(device), bytes, d->from);
}

static bool copy_to_device(void *context, const void *device, void *host, size_t bytes)
{
    const ddl__device *d = context;
    return DDL__GOOD(d, copy_to_device, ddl__cuda_address(device), host, bytes, d->to);
}

/* Queue what the device does for a chunk. */
static bool queue_chunk(ddl__device *d, const ddl__chunks *chunks, int64_t k, chunk *c)
{
    bool in_slot = c->slot >= 0;
    return (!in_slot || DDL__GOOD(d, stream_wait_event, d->from, d->freed[c->slot], 0)) &&
           ddl__chunk_copy_in(chunks, k, c->memory, copy_from_device, d) &&
           DDL__GOOD(d, launch_host, d->from, open_hold, c) &&
           DDL__GOOD(d, event_record, c->filled, d->from) &&
           DDL__GOOD(d, stream_wait_event, d->to, c->filled, 0) &&
           DDL__GOOD(d, stream_wait_value, d->to, c->word, c->hold.value,
                     DDL__CUDA_WAIT_VALUE_GEQ) &&
           ddl__chunk_copy_out(chunks, k, c->memory, copy_to_device, d) &&
           (!in_slot || DDL__GOOD(d, event_record, d->freed[c->slot], d->to));
}

/* Queue what the device does for all chunks, between what the caller's stream holds and what comes
 * after. */
static bool queue_operation(ddl__device *d, operation *o, const ddl__device_calls *what)
{
    chunk *next = o->chunks;
    bool good = DDL__GOOD(d, event_record, o->start, what->stream) &&
                DDL__GOOD(d, stream_wait_event, d->from, o->start, 0);
    for (uint32_t i = 0; good && i < what->n; i++) {
        ddl__chunks chunks;
        ddl__chunks_of(&what->calls[i], d->config.rank, d->config.size, DDL__SLOT_BYTES, &chunks);
        for (int64_t k = 0; good && k < chunks.n; k++)
            good = queue_chunk(d, &chunks, k, next++);
    }
    return good && DDL__GOOD(d, event_record, o->end, d->to) &&
           DDL__GOOD(d, stream_wait_event, what->stream, o->end, 0) &&
           DDL__GOOD(d, launch_host, d->to, end_operation, o);
}

static void list_append(ddl__device *d, operation *o)
{
    pthread_mutex_lock(&d->lock);
    *d->last = o;
    d->last = &o->next;
    d->under_way++;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

/* Under `order`, in the device's context. */
static ddl_status submit(ddl__device *d, const ddl__device_calls *what, const ddl__call *whole,
                         ddl_work **work)
{
    ddl__device_free_ended(d);
    operation *o = operation_create(d, what, whole);
    if (!o)
        return DDL_ESYSTEM;
    ddl_status status = ddl__engine_submit_group(d->config.engine, o->group, whole, work);
    if (status != DDL_OK) {
        ddl__group_free(o->group);
        operation_free(o);
        return status;
    }
    list_append(d, o);
    if (queue_operation(d, o, what))
        return DDL_OK;
    /* Some copies may be queued, so the operation stays in the list to the end. */
    char text[DDL__MESSAGE_MAX];
    snprintf(text, sizeof text, "%s", ddl__message());
    pthread_mutex_lock(&d->lock);
    ddl__device_fail(d, DDL_EABORTED, text);
    pthread_mutex_unlock(&d->lock);
    return DDL_OK; /* the work tells */
}

/* ------------------------------------------------------------------------------------- the call
 */

static ddl_status check_stream(const ddl__device *d, ddl__cuda_stream stream)
{
    int capturing = 0;
    if (!DDL__GOOD(d, stream_is_capturing, stream, &capturing))
        return DDL_EINVAL;
    return capturing ? ddl__fail(DDL_EUNSUPPORTED,
                                 "options.stream is being captured into a CUDA graph: operations "
                                 "between processes cannot be part of one")
                     : DDL_OK;
}

static ddl_status check_buffers(const ddl__device *d, const ddl__call *call)
{
    ddl_status status = ddl__device_check(d, call->send);
    int n = call->parts ? call->order->parts[d->config.rank] : 0;
    for (int k = 1; k < n && status == DDL_OK; k++)
        status = ddl__device_check(d, call->parts[k]);
    return status == DDL_OK ? ddl__device_check(d, call->recv) : status;
}

/* As the engine does when the call has no work, or waits first. */
static ddl_status wait_at_once(ddl_work *work, uint32_t wait_ms, ddl_work **out)
{
    ddl_status status = ddl__work_wait(work, out ? ddl__deadline(wait_ms) : DDL__NEVER);
    if (out)
        *out = status == DDL_INPROGRESS ? work : NULL;
    if (status == DDL_INPROGRESS)
        return DDL_OK;
    ddl__work_destroy(work);
    return status;
}

ddl_status ddl__device_submit(ddl__device *d, const ddl__device_calls *what, const ddl__call *whole,
                              ddl_work **out)
{
    ddl_work *work = NULL;
    ddl__call own = *whole; /* it does not wait: first, all must be queued */
    own.wait_ms = 0;
    ddl_status status = DDL_OK;
    if (!ddl__device_enter(d))
        return DDL_ESYSTEM;
    for (uint32_t i = 0; i < what->n && status == DDL_OK; i++)
        status = check_buffers(d, &what->calls[i]);
    if (status == DDL_OK)
        status = check_stream(d, what->stream);
    if (status == DDL_OK) {
        pthread_mutex_lock(&d->order);
        status = submit(d, what, &own, own.queued ? out : &work);
        pthread_mutex_unlock(&d->order);
    }
    ddl__device_leave(d);
    if (status != DDL_OK || own.queued)
        return status;
    if (!out || whole->wait_ms)
        return wait_at_once(work, whole->wait_ms, out);
    *out = work;
    return DDL_OK;
}

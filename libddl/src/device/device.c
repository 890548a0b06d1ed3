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

/* Give the chunk a slot, or the operation's own memory. */
static void place(ddl__device *d, operation *o, chunk *c)
{
    c->operation = o;
    c->slot = o->pinned ? -1 : (int)(d->n_uses++ % DDL__SLOTS);
    const ddl__pinned *words = o->pinned ? o->pinned : d->slot_words;
    size_t word = o->pinned ? 0 : (size_t)c->slot;
    c->memory = o->pinned ? o->pinned->memory : d->slots + word * DDL__SLOT_BYTES;
    c->word = ddl__pinned_device_word(words, word);
    c->filled = words->filled[word];
    c->hold.word = ddl__pinned_word(words, word);
    c->hold.value = o->pinned ? o->pinned->uses : (uint32_t)((d->n_uses - 1) / DDL__SLOTS) + 1;
}

/* Add the chunks to the group. */
static ddl_status add_chunks(ddl__device *d, operation *o, const ddl__chunks *chunks)
{
    ddl_status status = DDL_OK;
    for (int64_t k = 0; k < chunks->n && status == DDL_OK; k++) {
        chunk *c = &o->chunks[k];
        ddl__call made;
        place(d, o, c);
        if (!ddl__chunk_call(chunks, k, c->memory, &made))
            return ddl__fail(DDL_ENOMEM, "no memory for the blocks of an operation");
        made.hold = &c->hold;
        status = ddl__group_add(o->group, &made);
        if (status != DDL_OK)
            ddl__call_drop(&made);
    }
    return status;
}

/* Under `order`, in the device's context: make the operation, with its chunks, not submitted. */
static ddl_status operation_create(ddl__device *d, const ddl__chunks *chunks, operation **out)
{
    int64_t limit_ms = chunks->call->timeout_ms;
    operation *o = calloc(1, sizeof *o + (size_t)chunks->n * sizeof *o->chunks);
    if (!o || !(o->group = ddl__group_create(d->config.engine, limit_ms))) {
        free(o);
        return ddl__fail(DDL_ENOMEM, "no memory for an operation of %lld chunks",
                         (long long)chunks->n);
    }
    o->device = d;
    o->deadline = ddl__deadline(limit_ms);
    o->group->held = true;
    ddl_status status = DDL__GOOD(d, event_create, &o->start, DDL__CUDA_EVENT_DISABLE_TIMING) &&
                                DDL__GOOD(d, event_create, &o->end, DDL__CUDA_EVENT_DISABLE_TIMING)
                            ? DDL_OK
                            : DDL_ESYSTEM;
    if (status == DDL_OK && !fits_slots(chunks) &&
        !(o->pinned = ddl__pinned_take(d, ddl__chunk_bytes(chunks, 0), 1)))
        status = DDL_ESYSTEM;
    if (status == DDL_OK)
        status = add_chunks(d, o, chunks);
    if (status == DDL_OK) {
        *out = o;
        return DDL_OK;
    }
    ddl__group_free(o->group);
    operation_free(o);
    return status;
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
static bool queue_operation(ddl__device *d, operation *o, const ddl__chunks *chunks,
                            ddl__cuda_stream stream)
{
    bool good = DDL__GOOD(d, event_record, o->start, stream) &&
                DDL__GOOD(d, stream_wait_event, d->from, o->start, 0);
    for (int64_t k = 0; good && k < chunks->n; k++)
        good = queue_chunk(d, chunks, k, &o->chunks[k]);
    return good && DDL__GOOD(d, event_record, o->end, d->to) &&
           DDL__GOOD(d, stream_wait_event, stream, o->end, 0) &&
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
static ddl_status submit(ddl__device *d, const ddl__chunks *chunks, ddl__cuda_stream stream,
                         ddl_work **work)
{
    const ddl__call *call = chunks->call;
    ddl__call whole = {.timeout_ms = call->timeout_ms, .queued = call->queued, .user = call->user};
    operation *o = NULL;
    ddl__device_free_ended(d);
    ddl_status status = operation_create(d, chunks, &o);
    if (status != DDL_OK)
        return status;
    status = ddl__engine_submit_group(d->config.engine, o->group, &whole, work);
    if (status != DDL_OK) {
        ddl__group_free(o->group);
        operation_free(o);
        return status;
    }
    list_append(d, o);
    if (queue_operation(d, o, chunks, stream))
        return DDL_OK;
    /* Some copies may be queued, so the operation stays in the list to the end. */
    char text[DDL__MESSAGE_MAX];
    snprintf(text, sizeof text, "%s", ddl__message());
    pthread_mutex_lock(&d->lock);
    d->broken = true;
    ddl__device_fail(d, DDL_EABORTED, text);
    pthread_mutex_unlock(&d->lock);
    return DDL_OK; /* the work tells */
}

/* ------------------------------------------------------------------------------------- the call
 */

/* In the device's context; `own` is the one that the thread had before, to which a default stream
 * belongs. */
static ddl_status check_stream(const ddl__device *d, ddl__cuda_stream stream, ddl__cuda_context own)
{
    int capturing = 0;
    ddl__cuda_context of;
    if (!DDL__GOOD(d, stream_is_capturing, stream, &capturing))
        return DDL_EINVAL;
    if (capturing)
        return ddl__fail(DDL_EUNSUPPORTED,
                         "options.stream is being captured into a CUDA graph: operations between "
                         "processes cannot be part of one");
    if (!DDL__GOOD(d, stream_context, stream, &of))
        return DDL_EINVAL;
    bool is_default = (uintptr_t)stream <= DDL__CUDA_STREAM_PER_THREAD;
    if (of == d->context && (!is_default || !own || own == d->context))
        return DDL_OK;
    return ddl__fail(DDL_EINVAL,
                     "options.stream is of another CUDA context than the primary one of GPU %d, "
                     "where the buffers are",
                     d->number);
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

ddl_status ddl__device_check_call(const ddl__device *d, const ddl__call *call, void *stream)
{
    ddl__cuda_context own = NULL;
    d->cuda.context_current(&own);
    if (!ddl__device_enter(d))
        return DDL_ESYSTEM;
    ddl_status status = check_buffers(d, call);
    if (status == DDL_OK)
        status = check_stream(d, stream, own);
    ddl__device_leave(d);
    return status;
}

ddl_status ddl__device_submit(ddl__device *d, const ddl__call *call, void *stream, ddl_work **out)
{
    ddl_work *work = NULL;
    ddl__chunks chunks;
    if (!ddl__chunks_of(call, d->config.rank, d->config.size, DDL__SLOT_BYTES, &chunks))
        return ddl__fail(DDL_EUNSUPPORTED,
                         "%d ranks are too many for an operation on buffers of a GPU",
                         d->config.size);
    if (!ddl__device_enter(d))
        return DDL_ESYSTEM;
    pthread_mutex_lock(&d->order);
    ddl_status status = submit(d, &chunks, stream, call->queued ? out : &work);
    pthread_mutex_unlock(&d->order);
    ddl__device_leave(d);
    if (status != DDL_OK || call->queued)
        return status;
    if (!out || call->wait_ms)
        return wait_at_once(work, call->wait_ms, out);
    *out = work;
    return DDL_OK;
}

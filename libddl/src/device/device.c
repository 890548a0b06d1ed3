/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of a device: device_state.h has the design notes. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "device/device.h"
#include "device/nccl/nccl_ranks.h"
#include "engine/calls/group.h"
#include "engine/calls/ordered.h"

typedef ddl__device_operation operation;
typedef ddl__device_chunk chunk;

/* ------------------------------------------------------------------------------------- cutting */

/* A submission's calls, divided into chunks. */
typedef struct cuts_of_calls {
    ddl__chunks *chunks; /* one for each call to run, which is a call of the submission or an entry
                            of `made` */
    /* calls made from the submission's calls: packed calls, and the parts of split calls */
    ddl__call *made;
    const ddl__call **packed;
    uint32_t n, n_packed; /* numbers of `chunks` and of `packed` */
    int64_t n_chunks;     /* number of chunks of all calls */
} cuts_of_calls;

/* Maximum bytes of an all-reduce that is packed with others if it uses host memory. Each packed
 * all-reduce takes a copy in each direction, but all of them together take only one start and one
 * wait of the GPU. */
enum { SMALL = 128 << 10 /* bytes */ };

/* The calls of a submission. */
typedef struct plan {
    const ddl__call *calls;
    uint32_t n;
    bool *by_nccl; /* for each call: true if it uses NCCL */
    bool *taken;   /* for each call: true if it uses NCCL, or is already packed */
} plan;

static ddl_status cut_one(ddl__device *d, const ddl__call *call, cuts_of_calls *cuts)
{
    ddl__chunks *chunks = &cuts->chunks[cuts->n];
    if (!ddl__chunks_of(call, d->config.rank, d->config.size, DDL__SLOT_BYTES, chunks))
        return ddl__fail(DDL_EUNSUPPORTED,
                         "%d ranks are too many for an operation on GPU buffers; use fewer ranks, "
                         "or copy the buffers to host memory",
                         d->config.size);
    cuts->n_chunks += cuts->chunks[cuts->n++].n;
    return DDL_OK;
}

static ddl_status cut_for_nccl(ddl__device *d, const ddl__call *call, cuts_of_calls *cuts)
{
    ddl__call *main = &cuts->made[cuts->n], *rest = main + 1;
    ddl__nccl_cut(d, call, main, rest, &cuts->chunks[cuts->n]);
    cuts->n_chunks += cuts->chunks[cuts->n++].n;
    return rest->count ? cut_one(d, rest, cuts) : DDL_OK;
}

/* Make the chunks of call i, and of all later calls that are packed with it. */
static ddl_status pack(ddl__device *d, const plan *p, uint32_t i, cuts_of_calls *cuts)
{
    ddl__call *made = &cuts->made[cuts->n];
    ddl__chunks *chunks = &cuts->chunks[cuts->n];
    const ddl__call **packed = &cuts->packed[cuts->n_packed];
    uint32_t n = ddl__calls_pack(p->calls, p->n, i, SMALL, DDL__SLOT_BYTES, p->taken, packed);
    if (n < 2)
        return cut_one(d, &p->calls[i], cuts);
    *made = p->calls[i];
    made->count = 0;
    for (uint32_t k = 0; k < n; k++)
        made->count += packed[k]->count;
    cuts->n_packed += n;
    ddl_status status = cut_one(d, made, cuts);
    chunks->packed = packed;
    chunks->n_packed = (int)n;
    return status;
}

static ddl_status cut(ddl__device *d, const plan *p, uint32_t i, cuts_of_calls *cuts)
{
    if (p->by_nccl[i])
        return cut_for_nccl(d, &p->calls[i], cuts);
    return p->taken[i] ? DDL_OK : pack(d, p, i, cuts);
}

static ddl_status cut_all(ddl__device *d, const plan *p, cuts_of_calls *cuts)
{
    ddl_status status = DDL_OK;
    for (uint32_t i = 0; i < p->n && status == DDL_OK; i++)
        status = ddl__nccl_find_way(d, &p->calls[i], &p->by_nccl[i]);
    for (uint32_t i = 0; i < p->n && status == DDL_OK; i++)
        p->taken[i] = p->by_nccl[i];
    for (uint32_t i = 0; i < p->n && status == DDL_OK; i++)
        status = cut(d, p, i, cuts);
    return status;
}

/* Divide the calls, which must outlive the cuts, into chunks. Called under `order`, in the device's
 * context. May wait for the other ranks, to start NCCL. Elements of a call that NCCL cannot include
 * become a separate call. The caller frees the cuts in any case. */
static ddl_status cuts_make(ddl__device *d, const ddl__call *calls, uint32_t n, cuts_of_calls *cuts)
{
    size_t room = 2 * (size_t)n + 1;
    const plan p = {.calls = calls,
                    .n = n,
                    .by_nccl = calloc(room, sizeof *p.by_nccl),
                    .taken = calloc(room, sizeof *p.taken)};
    *cuts = (cuts_of_calls){.chunks = malloc(room * sizeof *cuts->chunks),
                            .made = malloc(room * sizeof *cuts->made),
                            .packed = malloc(room * sizeof(const ddl__call *))};
    ddl_status status =
        p.by_nccl && p.taken && cuts->chunks && cuts->made && cuts->packed
            ? cut_all(d, &p, cuts)
            : ddl__fail(DDL_ENOMEM, "out of memory for %u operations on GPU buffers", n);
    free(p.by_nccl);
    free(p.taken);
    return status;
}

static void cuts_free(cuts_of_calls *cuts)
{
    free(cuts->chunks);
    free(cuts->made);
    free(cuts->packed);
}

/* The calls to submit as one operation, and how the caller waits for it. */
typedef struct request {
    const ddl__call *whole;
    cuts_of_calls cuts;
    ddl__cuda_stream stream;
} request;

/* ------------------------------------------------------------------------------- host functions */

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

/* --------------------------------------------------------------------------- making and freeing */

/* Return true if the chunks of this call use the slots. */
static bool fits_slots(const ddl__chunks *chunks)
{
    return !chunks->is_whole || ddl__chunk_bytes(chunks, 0) <= DDL__SLOT_BYTES;
}

/* Allocate separate memory for this chunk of the operation. */
static ddl_status place_apart(ddl__device *d, operation *o, chunk *c, size_t bytes)
{
    ddl__pinned *pinned = ddl__pinned_take(d, bytes, 1);
    if (!pinned)
        return DDL_ESYSTEM;
    pinned->next = o->pinned;
    o->pinned = pinned;
    c->memory = pinned->memory;
    c->word = ddl__pinned_device_word(pinned, 0);
    c->filled = pinned->filled[0];
    c->hold.word = ddl__pinned_word(pinned, 0);
    c->hold.value = c->value = pinned->uses;
    return DDL_OK;
}

/* Add the chunk's operation on its memory to the group. */
static ddl_status add_call(operation *o, const ddl__chunks *chunks, int64_t k, chunk *c)
{
    ddl__call made;
    if (!ddl__chunk_call(chunks, k, c->memory, &made))
        return ddl__fail(DDL_ENOMEM, "out of memory for the blocks of an operation");
    made.hold = &c->hold;
    c->bundle = made.bundle;
    ddl_status status = ddl__group_add(o->group, &made);
    if (status != DDL_OK)
        ddl__call_drop(&made);
    return status;
}

static ddl_status add_chunk(ddl__device *d, operation *o, const ddl__chunks *chunks, int64_t k,
                            chunk *c)
{
    ddl_status status = DDL_OK;
    c->operation = o;
    if (chunks->by_nccl)
        return ddl__nccl_add(d, chunks, k, c);
    if (fits_slots(chunks))
        ddl__device_place_in_slot(d, c);
    else
        status = place_apart(d, o, c, ddl__chunk_bytes(chunks, k));
    return status == DDL_OK ? add_call(o, chunks, k, c) : status;
}

/* Add the chunks of a call to the group; `c` is the first. */
static ddl_status add_chunks(ddl__device *d, operation *o, const ddl__chunks *chunks, chunk *c)
{
    ddl_status status = DDL_OK;
    for (int64_t k = 0; k < chunks->n && status == DDL_OK; k++)
        status = add_chunk(d, o, chunks, k, c++);
    return status;
}

/* Under `order`, in the device's context: make the operation with its chunks, without submitting
 * it. */
static ddl_status operation_create(ddl__device *d, const request *r, operation **out)
{
    operation *o = calloc(1, sizeof *o + (size_t)r->cuts.n_chunks * sizeof *o->chunks);
    if (!o || !(o->group = ddl__group_create(d->config.engine, r->whole->timeout_ms))) {
        free(o);
        return ddl__fail(DDL_ENOMEM, "out of memory for an operation of %lld chunks",
                         (long long)r->cuts.n_chunks);
    }
    o->device = d;
    o->n_chunks = r->cuts.n_chunks;
    o->deadline = ddl__deadline(r->whole->timeout_ms);
    o->group->held = true;
    ddl_status status = DDL__GOOD(d, event_create, &o->start, DDL__CUDA_EVENT_DISABLE_TIMING) &&
                                DDL__GOOD(d, event_create, &o->end, DDL__CUDA_EVENT_DISABLE_TIMING)
                            ? DDL_OK
                            : DDL_ESYSTEM;
    chunk *c = o->chunks;
    for (uint32_t i = 0; i < r->cuts.n && status == DDL_OK; c += r->cuts.chunks[i++].n)
        status = add_chunks(d, o, &r->cuts.chunks[i], c);
    if (status == DDL_OK) {
        *out = o;
        return DDL_OK;
    }
    ddl__group_free(o->group);
    ddl__device_operation_free(o);
    return status;
}

/* ------------------------------------------------------------------------------------- queueing */

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

/* Queue the copies of a chunk, and the waits of the streams for its operation. */
static bool queue_chunk(ddl__device *d, const ddl__chunks *chunks, int64_t k, chunk *c)
{
    return (!c->freed || DDL__GOOD(d, stream_wait_event, d->from, c->freed, 0)) &&
           ddl__chunk_copy_in(chunks, k, c->memory, copy_from_device, d) &&
           ddl__device_queue_start(d, c) &&
           DDL__GOOD(d, stream_wait_value, d->to, c->word, c->value, DDL__CUDA_WAIT_VALUE_GEQ) &&
           ddl__chunk_copy_out(chunks, k, c->memory, copy_to_device, d) &&
           (!c->freed || DDL__GOOD(d, event_record, c->freed, d->to));
}

static bool queue_call(ddl__device *d, const ddl__chunks *chunks, chunk *first)
{
    if (chunks->by_nccl)
        return ddl__nccl_queue(d, chunks, first);
    bool good = true;
    for (int64_t k = 0; good && k < chunks->n; k++)
        good = queue_chunk(d, chunks, k, &first[k]);
    return good;
}

/* Queue the copies of all chunks, after the work that is now in the caller's stream and before
 * later work in it. */
static bool queue_operation(ddl__device *d, operation *o, const request *r)
{
    bool good = DDL__GOOD(d, event_record, o->start, r->stream) &&
                DDL__GOOD(d, stream_wait_event, d->from, o->start, 0);
    chunk *c = o->chunks;
    for (uint32_t i = 0; i < r->cuts.n && good; c += r->cuts.chunks[i++].n)
        good = queue_call(d, &r->cuts.chunks[i], c);
    return good && DDL__GOOD(d, event_record, o->end, d->to) &&
           DDL__GOOD(d, stream_wait_event, r->stream, o->end, 0) &&
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

/* Submit the request. Under `order`, in the device's context. */
static ddl_status submit(ddl__device *d, const request *r, ddl_work **work)
{
    ddl__call whole = {
        .timeout_ms = r->whole->timeout_ms, .queued = r->whole->queued, .user = r->whole->user};
    operation *o = NULL;
    ddl__device_free_ended(d);
    ddl_status status = operation_create(d, r, &o);
    if (status != DDL_OK)
        return status;
    status = ddl__engine_submit_group(d->config.engine, o->group, &whole, work);
    if (status != DDL_OK) {
        ddl__group_free(o->group);
        ddl__device_operation_free(o);
        return status;
    }
    list_append(d, o);
    if (queue_operation(d, o, r))
        return DDL_OK;
    /* Some copies may have been queued, so the operation stays in the list until the device is
     * destroyed. */
    char text[DDL__MESSAGE_MAX];
    snprintf(text, sizeof text, "%s", ddl__message());
    pthread_mutex_lock(&d->lock);
    d->broken = true;
    ddl__device_fail(d, DDL_EABORTED, text);
    pthread_mutex_unlock(&d->lock);
    return DDL_OK; /* return DDL_OK: the work reports the failure */
}

/* ------------------------------------------------------------------------------------- the call */

/* Check the stream. Called in the device's context; `own` is the thread's previous context, to
 * which a default stream belongs. */
static ddl_status check_stream(const ddl__device *d, ddl__cuda_stream stream, ddl__cuda_context own)
{
    int capturing = 0;
    ddl__cuda_context of;
    if (!DDL__GOOD(d, stream_is_capturing, stream, &capturing))
        return DDL_EINVAL;
    if (capturing)
        return ddl__fail(
            DDL_EUNSUPPORTED,
            "options.stream is being captured into a CUDA graph, which cannot contain operations "
            "between processes");
    if (!DDL__GOOD(d, stream_context, stream, &of))
        return DDL_EINVAL;
    bool is_default = (uintptr_t)stream <= DDL__CUDA_STREAM_PER_THREAD;
    if (of == d->context && (!is_default || !own || own == d->context))
        return DDL_OK;
    return ddl__fail(DDL_EINVAL,
                     "options.stream belongs to another CUDA context; must belong to the primary "
                     "context of GPU %d, "
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

/* Wait as ddl__engine_submit does: for the end if `out` is NULL, else for up to `wait_ms`. */
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

ddl_status ddl__device_check_call(const ddl__device *d, const ddl__call *call)
{
    if (!ddl__device_enter(d))
        return DDL_ESYSTEM;
    ddl_status status = check_buffers(d, call);
    ddl__device_leave(d);
    return status;
}

ddl_status ddl__device_check_stream(const ddl__device *d, void *stream)
{
    ddl__cuda_context own = NULL;
    d->cuda.context_current(&own);
    if (!ddl__device_enter(d))
        return DDL_ESYSTEM;
    ddl_status status = check_stream(d, stream, own);
    ddl__device_leave(d);
    return status;
}

ddl_status ddl__device_submit(ddl__device *d, const ddl__call *calls, uint32_t n,
                              const ddl__call *whole, void *stream, ddl_work **out)
{
    request r = {.whole = whole, .stream = stream};
    ddl_work *work = NULL;
    if (!ddl__device_enter(d))
        return DDL_ESYSTEM;
    int mode = DDL__CUDA_CAPTURE_RELAXED; /* allow this thread's calls while other threads capture
                                             CUDA graphs */
    d->cuda.capture_mode(&mode);
    pthread_mutex_lock(&d->order);
    ddl_status status = cuts_make(d, calls, n, &r.cuts);
    if (status == DDL_OK)
        status = submit(d, &r, whole->queued ? out : &work);
    cuts_free(&r.cuts);
    pthread_mutex_unlock(&d->order);
    d->cuda.capture_mode(&mode);
    ddl__device_leave(d);
    if (status != DDL_OK || whole->queued)
        return status;
    if (!out || whole->wait_ms)
        return wait_at_once(work, whole->wait_ms, out);
    *out = work;
    return DDL_OK;
}

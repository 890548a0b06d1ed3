/* SPDX-License-Identifier: Apache-2.0 */
/* What the leader does for ranks that share a GPU; sharing.h has the design notes. Its thread takes
 * the chunks in order, when their places are gathered, and holds no lock while it calls the driver.
 * A chunk is the thread's until it has queued a host function behind the work, and that function's
 * afterwards; ddl__device_called tells the end of both, so that the operation can be freed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/thread.h"
#include "base/time_limits.h"
#include "device/sharing.h"
#include "engine/describe.h"

/* The buffers of all ranks, where the leader can use them. */
typedef struct buffers {
    const ddl__device *device;
    ddl__device_sharing *sharing;
    const ddl__shared_chunk *chunk;
    int size;
    size_t bytes;                                                         /* of a block */
    ddl__cuda_pointer send[DDL__REDUCTION_MAX], recv[DDL__REDUCTION_MAX]; /* 0: none */
} buffers;

/* ------------------------------------------------------------------------ memory of the others */

static bool open_place(const ddl__device *d, int rank, const ddl__place *place,
                       ddl__cuda_pointer *address)
{
    *address = place->address;
    if (!place->address || d->sharing->is_own_process[rank])
        return true;
    ddl__cuda_pointer *opened = &d->sharing->opened[rank][place->number % DDL__EXPORTS];
    if (!*opened &&
        !DDL__GOOD(d, ipc_open, opened, place->handle, DDL__CUDA_IPC_LAZY_PEER_ACCESS)) {
        *opened = 0;
        return false;
    }
    *address = *opened + (place->address - place->base);
    return true;
}

static bool open_all(buffers *b)
{
    for (int r = 0; r < b->size; r++)
        if (!open_place(b->device, r, &b->chunk->all[r].send, &b->send[r]) ||
            !open_place(b->device, r, &b->chunk->all[r].recv, &b->recv[r]))
            return false;
    return true;
}

/* ------------------------------------------------------------------------------------ the work */

static ddl__cuda_pointer sent(const buffers *b, int rank, int block)
{
    return b->send[rank] + (uint64_t)block * b->chunk->all[rank].send.stride;
}

static ddl__cuda_pointer received(const buffers *b, int rank, int block)
{
    return b->recv[rank] + (uint64_t)block * b->chunk->all[rank].recv.stride;
}

/* Block `to_block` of one rank gets block `from_block` of another, or is it. */
static bool copy(const buffers *b, int to, int to_block, int from, int from_block)
{
    const ddl__device *d = b->device;
    ddl__cuda_pointer target = received(b, to, to_block), source = sent(b, from, from_block);
    return !b->recv[to] || !b->send[from] || target == source ||
           DDL__GOOD(d, copy_within_device, target, source, b->bytes, b->sharing->stream);
}

/* The ranks from `first` up to `end` get the reduction of this block of all. */
static bool reduce(const buffers *b, int block, int first, int end)
{
    const ddl__call *call = &b->chunk->call;
    ddl__reduction reduction = {.divisor = b->size, .n_in = (unsigned)b->size};
    for (int r = 0; r < b->size; r++) {
        reduction.in[r] = sent(b, r, block);
        reduction.before[r] = b->chunk->all[r].prescale;
    }
    for (int r = first; r < end; r++) {
        reduction.out[reduction.n_out] = received(b, r, 0);
        reduction.after[reduction.n_out++] = b->chunk->all[r].postscale;
    }
    return ddl__reducer_run(b->device, b->sharing->reducer, call->dtype, call->op, call->count,
                            &reduction, b->sharing->stream);
}

static bool queue_for_root(const buffers *b)
{
    int root = b->chunk->call.root;
    bool good = true;
    for (int r = 0; good && r < b->size; r++)
        if (b->chunk->call.kind == DDL__BROADCAST)
            good = r == root || copy(b, r, 0, root, 0);
        else if (b->chunk->call.kind == DDL__GATHER)
            good = copy(b, root, r, r, 0);
        else
            good = copy(b, r, 0, root, r);
    return good;
}

static bool queue_blocks(const buffers *b)
{
    bool good = true;
    for (int r = 0; good && r < b->size; r++)
        for (int other = 0; good && other < b->size; other++)
            good = b->chunk->call.kind == DDL__ALLGATHER ? copy(b, r, other, other, 0)
                                                         : copy(b, r, other, other, r);
    return good;
}

static bool queue_kind(const buffers *b)
{
    bool good = true;
    switch (b->chunk->call.kind) {
    case DDL__ALLREDUCE: return reduce(b, 0, 0, b->size);
    case DDL__REDUCE_TO_ROOT: return reduce(b, 0, b->chunk->call.root, b->chunk->call.root + 1);
    case DDL__REDUCE_SCATTER:
        for (int r = 0; good && r < b->size; r++)
            good = reduce(b, r, r, r + 1);
        return good;
    case DDL__BROADCAST:
    case DDL__GATHER:
    case DDL__SCATTER: return queue_for_root(b);
    case DDL__ALLGATHER:
    case DDL__ALLTOALL: return queue_blocks(b);
    case DDL__BARRIER:
    case DDL__SEND:
    case DDL__RECV:
    case DDL__ORDERED_ALLREDUCE: break;
    }
    return true;
}

/* Whether all ranks have called the same; else the message is set. */
static ddl_status check_places(const ddl__device *d, const ddl__shared_chunk *sc)
{
    for (int r = 1; r < d->config.size; r++) {
        char ours[DDL__CALL_MAX], theirs[DDL__CALL_MAX];
        if (ddl__signatures_agree(&sc->all[0].signature, &sc->all[r].signature))
            continue;
        ddl__describe_operation(ours, sizeof ours, &sc->all[0].signature);
        ddl__describe_operation(theirs, sizeof theirs, &sc->all[r].signature);
        return ddl__fail(DDL_EMISMATCH, "%s called %s; %s called %s, on a GPU", d->config.names[r],
                         theirs, d->config.names[0], ours);
    }
    return DDL_OK;
}

/* Under the device's lock: no work for the chunk is queued any more. */
static void chunk_ended(ddl__device *d, ddl__shared_chunk *sc)
{
    d->sharing->busy--;
    pthread_cond_broadcast(&d->changed);
    ddl__device_called(d, sc->chunk->operation);
}

static void work_done(void *argument)
{
    ddl__shared_chunk *sc = argument;
    ddl__device *d = sc->chunk->operation->device;
    pthread_mutex_lock(&d->lock);
    if (d->engine)
        ddl__engine_release_hold(d->engine, &sc->barrier);
    chunk_ended(d, sc);
    pthread_mutex_unlock(&d->lock);
}

/* DDL_OK: work_done will be called. */
static ddl_status queue_work(const ddl__device *d, ddl__shared_chunk *sc)
{
    buffers b = {.device = d,
                 .sharing = d->sharing,
                 .chunk = sc,
                 .size = d->config.size,
                 .bytes = (size_t)sc->call.count * ddl__dtype_size(sc->call.dtype)};
    ddl_status status = check_places(d, sc);
    if (status != DDL_OK)
        return status;
    return open_all(&b) && queue_kind(&b) &&
                   DDL__GOOD(d, launch_host, d->sharing->stream, work_done, sc)
               ? DDL_OK
               : DDL_EABORTED;
}

/* ---------------------------------------------------------------------------------- the thread */

static ddl__shared_chunk *take_gathered(ddl__device_sharing *s)
{
    ddl__shared_chunk *sc = s->first;
    if (!sc || !atomic_load_explicit(&sc->gathered, memory_order_acquire))
        return NULL;
    s->first = sc->next;
    if (!s->first)
        s->last = &s->first;
    s->busy++;
    return sc;
}

/* Under the device's lock, which is released meanwhile. Nothing is queued for a comm that has
 * ended: then the places may not be there. */
static void handle(ddl__device *d, ddl__shared_chunk *sc)
{
    bool runs = d->engine && ddl__engine_status(d->engine) == DDL_OK;
    pthread_mutex_unlock(&d->lock);
    ddl_status status = runs ? queue_work(d, sc) : DDL_EABORTED;
    char text[DDL__MESSAGE_MAX];
    snprintf(text, sizeof text, "%s", ddl__message());
    pthread_mutex_lock(&d->lock);
    if (runs && status != DDL_OK)
        ddl__device_fail(d, status, text);
    if (status != DDL_OK)
        chunk_ended(d, sc);
}

static void *lead(void *argument)
{
    ddl__device *d = argument;
    ddl__device_sharing *s = d->sharing;
    int mode = DDL__CUDA_CAPTURE_RELAXED; /* other threads' captures do not concern this one */
    bool entered = ddl__device_enter(d);
    if (entered)
        d->cuda.capture_mode(&mode);
    pthread_mutex_lock(&d->lock);
    while (!d->stop) {
        ddl__shared_chunk *sc = take_gathered(s);
        if (sc) {
            handle(d, sc);
            continue;
        }
        pthread_mutex_unlock(&d->lock);
        sem_wait(&s->told); /* all signals are blocked */
        pthread_mutex_lock(&d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    if (entered)
        ddl__device_leave(d);
    return NULL;
}

ddl_status ddl__leader_start(ddl__device *d)
{
    ddl__device_sharing *s = d->sharing;
    if (!DDL__GOOD(d, stream_create, &s->stream, DDL__CUDA_STREAM_NON_BLOCKING))
        return DDL_ESYSTEM;
    sem_init(&s->told, 0, 0);
    int error = ddl__thread_start(&s->thread, lead, d);
    if (error)
        sem_destroy(&s->told);
    s->started = !error;
    return error
               ? ddl__fail(DDL_ESYSTEM, "no thread for a GPU that ranks share: %s", strerror(error))
               : DDL_OK;
}

void ddl__leader_take(ddl__device *d, ddl__shared_chunk *sc)
{
    ddl__device_sharing *s = d->sharing;
    *s->last = sc;
    s->last = &sc->next;
    sem_post(&s->told);
}

void ddl__leader_settle(ddl__device *d)
{
    int64_t at = ddl__now() + DDL__DEVICE_DRAIN_LIMIT;
    pthread_mutex_lock(&d->lock);
    while (d->sharing && d->sharing->busy && !d->broken && ddl__now() < at)
        ddl__cond_wait_until(&d->changed, &d->lock, at);
    pthread_mutex_unlock(&d->lock);
}

void ddl__leader_stop(ddl__device *d)
{
    ddl__device_sharing *s = d->sharing;
    if (!s || !s->started)
        return;
    sem_post(&s->told);
    pthread_join(s->thread, NULL);
}

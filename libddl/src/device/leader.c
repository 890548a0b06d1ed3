/* SPDX-License-Identifier: Apache-2.0 */
/* What a leader does for all ranks; sharing.h has the design notes.
 *
 * Several leaders divide the work, so that the bus of no GPU carries all of it. Each does an equal
 * part of the elements of all-reduces, ordered sums, reductions to a root and broadcasts. A result
 * of a reduce-scatter is computed on the GPU of the rank that wants it. Blocks that are copied are
 * written by the GPU that has them, since a read has to go forth and back.
 *
 * The thread takes the chunks in order, when their places are gathered, and holds no lock while it
 * opens memory. Once it has set the chunk's word, the chunk belongs to what is queued; the host
 * function behind the kernel tells the end, so that the operation can be freed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/thread.h"
#include "base/time_limits.h"
#include "device/sharing.h"
#include "engine/describe.h"
#include "engine/ordered.h"

enum { SHARE_ALIGNED = 256 /* bytes of a result */ };

/* The buffers of all ranks, where this leader can use them; opened when a part wants them. */
typedef struct buffers {
    const ddl__device *device;
    const ddl__shared_chunk *chunk;
    int size;
    bool failed; /* to open one; the message is set */
} buffers;

/* ------------------------------------------------------------------------ memory of the others */

/* 0: there is none, or it cannot be opened. */
static ddl__cuda_pointer open_place(buffers *b, int rank, const ddl__place *place)
{
    const ddl__device *d = b->device;
    if (!place->address || d->sharing->is_own_process[rank])
        return place->address;
    ddl__cuda_pointer *opened = &d->sharing->opened[rank][place->number % DDL__EXPORTS];
    if (!*opened &&
        !DDL__GOOD(d, ipc_open, opened, place->handle, DDL__CUDA_IPC_LAZY_PEER_ACCESS)) {
        *opened = 0;
        b->failed = true;
        return 0;
    }
    return *opened + (place->address - place->base);
}

static ddl__cuda_pointer send_of(buffers *b, int rank)
{
    return open_place(b, rank, &ddl__sharing_places(b->chunk, rank)->send);
}

static ddl__cuda_pointer recv_of(buffers *b, int rank)
{
    return open_place(b, rank, &ddl__sharing_places(b->chunk, rank)->recv);
}

/* ----------------------------------------------------------------------------------- the table */

static bool reduces(ddl__kind kind)
{
    return kind == DDL__ALLREDUCE || kind == DDL__REDUCE_SCATTER || kind == DDL__REDUCE_TO_ROOT ||
           kind == DDL__ORDERED_ALLREDUCE;
}

/* Copies are of integers as long as the elements; of two if there are none so long. */
static ddl_dtype dtype_of(const ddl__call *call)
{
    if (reduces(call->kind))
        return call->dtype;
    switch (ddl__dtype_size(call->dtype)) {
    case 1: return DDL_U8;
    case 2: return DDL_U16;
    case 4: return DDL_U32;
    default: return DDL_U64;
    }
}

static int64_t count_of(const ddl__call *call, int64_t elements)
{
    size_t size = ddl__dtype_size(call->dtype);
    return elements * (int64_t)(size / ddl__dtype_size(dtype_of(call)));
}

/* Whether there is one part, of which all leaders have a share. */
static bool is_divided(ddl__kind kind)
{
    return kind == DDL__ALLREDUCE || kind == DDL__REDUCE_TO_ROOT || kind == DDL__BROADCAST ||
           kind == DDL__ORDERED_ALLREDUCE;
}

/* Others have a part for each rank, an all-to-all for each pair. */
static unsigned parts_of(ddl__kind kind, int size)
{
    return (unsigned)(is_divided(kind) ? 1 : kind == DDL__ALLTOALL ? size * size : size);
}

/* The rank on whose GPU part i is done, of operations that are not divided. */
static int nearest_rank(const ddl__call *call, int i, int size)
{
    if (call->kind == DDL__SCATTER)
        return call->root;
    return call->kind == DDL__ALLTOALL ? i / size : i;
}

/* What `rank` has for rank `to`. Returns its elements. */
static int64_t add_in(buffers *b, ddl__reduction *part, int rank, int to)
{
    const ddl__places *of = ddl__sharing_places(b->chunk, rank);
    const ddl__share *block = &of->blocks[to];
    size_t element = ddl__dtype_size(b->chunk->call.dtype);
    part->in[part->n_in] = send_of(b, rank) + (uint64_t)block->start * element;
    part->before[part->n_in++] = of->prescale;
    return block->count;
}

/* Where `rank` wants what comes from rank `from`. A block that lies there is not copied. */
static int64_t add_out(buffers *b, ddl__reduction *part, int rank, int from)
{
    const ddl__places *of = ddl__sharing_places(b->chunk, rank);
    const ddl__share *block = &of->blocks[b->size + from];
    size_t element = ddl__dtype_size(b->chunk->call.dtype);
    ddl__cuda_pointer recv = recv_of(b, rank), address = recv + (uint64_t)block->start * element;
    if (recv && !(part->n_in == 1 && address == part->in[0])) {
        part->out[part->n_out] = address;
        part->after[part->n_out++] = of->postscale;
    }
    return block->count;
}

/* Leave this leader's share of the elements. Returns how many these are. */
static int64_t take_share(buffers *b, ddl__reduction *part, int64_t elements)
{
    const ddl__device_sharing *s = b->device->sharing;
    const ddl__call *call = &b->chunk->call;
    size_t result = ddl__dtype_size(call->dtype), operand = result * (call->order ? call->wide : 1);
    int64_t unit = SHARE_ALIGNED / (int64_t)result, units = (elements + unit - 1) / unit;
    int64_t first = units * s->own_gpu / s->n_gpus * unit;
    int64_t end = units * (s->own_gpu + 1) / s->n_gpus * unit;
    for (unsigned i = 0; i < part->n_in; i++)
        part->in[i] += (uint64_t)first * operand;
    for (unsigned i = 0; i < part->n_out; i++)
        part->out[i] += (uint64_t)first * result;
    return (end < elements ? end : elements) - first;
}

static void set_count(buffers *b, ddl__reduction *part, int64_t elements)
{
    const ddl__call *call = &b->chunk->call;
    if (is_divided(call->kind))
        elements = take_share(b, part, elements);
    ddl__reduction_count(part, dtype_of(call), count_of(call, elements), call->order);
}

/* What all ranks have for rank `to`, reduced, for the ranks from `first` up to `end`. */
static void fill_reduction(buffers *b, ddl__reduction *part, int to, int first, int end)
{
    int64_t count = 0;
    part->divisor = b->size;
    for (int r = 0; r < b->size; r++)
        count = add_in(b, part, r, to);
    for (int r = first; r < end; r++)
        add_out(b, part, r, 0);
    set_count(b, part, count);
}

/* The block that one rank sends to another. Both must know its length. */
static ddl_status fill_copy(buffers *b, ddl__reduction *part, int from, int to)
{
    char *const *names = b->device->config.names;
    int64_t sent = add_in(b, part, from, to), received = add_out(b, part, to, from);
    if (sent != received)
        return ddl__fail(DDL_EMISMATCH,
                         "%s sends %lld elements to %s, which receives %lld from it, on a GPU",
                         names[from], (long long)sent, names[to], (long long)received);
    set_count(b, part, sent);
    return DDL_OK;
}

/* The one block that a rank has, for all. */
static void fill_copies(buffers *b, ddl__reduction *part, int from)
{
    int64_t count = add_in(b, part, from, 0);
    for (int r = 0; r < b->size; r++)
        add_out(b, part, r, from);
    set_count(b, part, count);
}

/* The parts of a rank lie one behind the other. */
static ddl__cuda_pointer part_of(buffers *b, const ddl__fold *fold, int operand)
{
    const ddl__call *call = &b->chunk->call;
    int rank = 0;
    while (operand >= fold->first[rank + 1])
        rank++;
    size_t bytes = (size_t)call->count * call->wide * ddl__dtype_size(call->dtype);
    return send_of(b, rank) + (uint64_t)(operand - fold->first[rank]) * bytes;
}

_Static_assert((int)DDL__REDUCTION_DEPTH >= (int)DDL__FOLD_DEPTH, "the stack of the kernel");

/* The additions of an ordered sum. Its operands are on the stack in the order in which they are
 * pushed. */
static ddl_status fill_ordered(buffers *b, ddl__reduction *part)
{
    const ddl_order *order = b->chunk->call.order;
    ddl__fold *fold = ddl__order_additions(order);
    if (!fold)
        return ddl__fail(DDL_ENOMEM, "no memory for the additions of %d workers",
                         order->by_rank.workers);
    for (int i = 0; i < fold->n && fold->items[i] != DDL__FOLD_STORE; i++) {
        unsigned last = part->n_in - 1;
        if (fold->items[i] >= 0)
            part->in[part->n_in++] = part_of(b, fold, fold->items[i]);
        else if (fold->items[i] == DDL__FOLD_PAIRS)
            part->pairs[last] |= (unsigned short)(1u << part->additions[last]++);
        else
            part->additions[last]++;
    }
    free(fold);
    part->divisor = order->by_rank.workers;
    for (int r = 0; r < b->size; r++)
        part->out[part->n_out++] = recv_of(b, r);
    set_count(b, part, b->chunk->call.count);
    return DDL_OK;
}

static ddl_status fill_part(buffers *b, ddl__reduction *part, int i)
{
    const ddl__call *call = &b->chunk->call;
    const ddl__device_sharing *s = b->device->sharing;
    int root = call->root, n = b->size;
    if (!is_divided(call->kind) && s->gpus[nearest_rank(call, i, n)] != s->own_gpu)
        return DDL_OK;
    switch (call->kind) {
    case DDL__ALLREDUCE: fill_reduction(b, part, 0, 0, n); break;
    case DDL__REDUCE_TO_ROOT: fill_reduction(b, part, 0, root, root + 1); break;
    case DDL__REDUCE_SCATTER: fill_reduction(b, part, i, i, i + 1); break;
    case DDL__BROADCAST: fill_copies(b, part, root); break;
    case DDL__ALLGATHER: fill_copies(b, part, i); break;
    case DDL__GATHER: return fill_copy(b, part, i, root);
    case DDL__SCATTER: return fill_copy(b, part, root, i);
    case DDL__ALLTOALL: return fill_copy(b, part, i / n, i % n);
    case DDL__ORDERED_ALLREDUCE: return fill_ordered(b, part);
    case DDL__BARRIER:
    case DDL__SEND:
    case DDL__RECV: break;
    }
    return DDL_OK;
}

static ddl__reduction *table_of(const ddl__shared_chunk *sc)
{
    return (ddl__reduction *)(void *)sc->chunk->apart->memory;
}

static void empty_table(const ddl__shared_chunk *sc)
{
    memset(table_of(sc), 0, sc->parts * sizeof(ddl__reduction));
}

/* Whether all ranks have called the same; else the message is set. */
static ddl_status check_places(const ddl__device *d, const ddl__shared_chunk *sc)
{
    const ddl__signature *own = &ddl__sharing_places(sc, 0)->signature;
    for (int r = 1; r < d->config.size; r++) {
        const ddl__signature *other = &ddl__sharing_places(sc, r)->signature;
        char ours[DDL__CALL_MAX], theirs[DDL__CALL_MAX];
        if (ddl__signatures_agree(own, other))
            continue;
        ddl__describe_operation(ours, sizeof ours, own);
        ddl__describe_operation(theirs, sizeof theirs, other);
        return ddl__fail(DDL_EMISMATCH, "%s called %s; %s called %s, on a GPU", d->config.names[r],
                         theirs, d->config.names[0], ours);
    }
    return DDL_OK;
}

static ddl_status fill_table(const ddl__device *d, const ddl__shared_chunk *sc)
{
    buffers b = {.device = d, .chunk = sc, .size = d->config.size};
    ddl_status status = check_places(d, sc);
    if (status != DDL_OK)
        return status;
    for (unsigned i = 0; i < sc->parts && status == DDL_OK && !b.failed; i++)
        status = fill_part(&b, &table_of(sc)[i], (int)i);
    return b.failed ? DDL_EABORTED : status;
}

/* ------------------------------------------------------------------------------------ the work */

size_t ddl__leader_table_bytes(const ddl__device *d, ddl__kind kind)
{
    return d->sharing->leads ? parts_of(kind, d->config.size) * sizeof(ddl__reduction) : 0;
}

bool ddl__leader_prepare(ddl__device *d, ddl__shared_chunk *sc)
{
    ddl_op op = reduces(sc->call.kind) ? sc->call.op : DDL_BIT_OR; /* of one operand */
    bool ordered = sc->call.order;
    if (!ddl__reducer_known(d->sharing->reducer, dtype_of(&sc->call), op, ordered))
        ddl__device_settle(d); /* the driver may wait for the GPU when it loads a kernel */
    sc->kernel = ddl__reducer_find(d, d->sharing->reducer, dtype_of(&sc->call), op, ordered);
    sc->parts = parts_of(sc->call.kind, d->config.size);
    empty_table(sc);
    return sc->kernel;
}

/* A comm that has failed may not have ended in the engine yet: there the barrier must not succeed,
 * since the operation has no results. */
static void kernel_done(void *argument)
{
    ddl__shared_chunk *sc = argument;
    ddl__device_operation *o = sc->chunk->operation;
    ddl__device *d = o->device;
    pthread_mutex_lock(&d->lock);
    if (ddl__device_is_alive(d))
        ddl__engine_release_hold(d->engine, &sc->barrier);
    d->sharing->busy--;
    pthread_cond_broadcast(&d->changed);
    ddl__device_called(d, o);
    pthread_mutex_unlock(&d->lock);
}

/* How many elements a part may have; -1: of uneven blocks that is not known yet. */
static int64_t most_of(const ddl__shared_chunk *sc)
{
    return sc->call.blocks ? -1 : count_of(&sc->call, sc->call.count);
}

bool ddl__leader_queue(ddl__device *d, ddl__shared_chunk *sc)
{
    const ddl__device_sharing *s = d->sharing;
    const ddl__pinned *apart = sc->chunk->apart;
    return DDL__GOOD(d, stream_wait_event, s->compute, sc->chunk->filled, 0) &&
           DDL__GOOD(d, stream_wait_value, s->compute, ddl__pinned_device_word(apart, 1),
                     apart->uses, DDL__CUDA_WAIT_VALUE_GEQ) &&
           DDL__GOOD(d, copy_to_device, s->table, apart->memory, sc->parts * sizeof(ddl__reduction),
                     s->compute) &&
           ddl__reducer_launch(d, s->reducer, sc->kernel, most_of(sc), sc->parts, s->table,
                               s->compute) &&
           DDL__GOOD(d, launch_host, s->compute, kernel_done, sc) &&
           DDL__GOOD(d, event_record, s->done, s->compute) &&
           DDL__GOOD(d, stream_wait_event, d->to, s->done, 0);
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

/* Under the device's lock, which is released meanwhile. The table stays empty when the comm has
 * ended: then the places may not be there, and the streams go on. */
static void handle(ddl__device *d, ddl__shared_chunk *sc)
{
    const ddl__pinned *apart = sc->chunk->apart;
    bool runs = ddl__device_is_alive(d);
    pthread_mutex_unlock(&d->lock);
    ddl_status status = runs ? fill_table(d, sc) : DDL_OK;
    char text[DDL__MESSAGE_MAX];
    snprintf(text, sizeof text, "%s", ddl__message());
    pthread_mutex_lock(&d->lock);
    if (status != DDL_OK)
        ddl__device_fail(d, status, text);
    if (!ddl__device_is_alive(d))
        empty_table(sc);
    atomic_store_explicit(ddl__pinned_word(apart, 1), apart->uses, memory_order_release);
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
    if (!DDL__GOOD(d, stream_create, &s->compute, DDL__CUDA_STREAM_NON_BLOCKING) ||
        !DDL__GOOD(d, event_create, &s->done, DDL__CUDA_EVENT_DISABLE_TIMING))
        return DDL_ESYSTEM;
    sem_init(&s->told, 0, 0);
    int error = ddl__thread_start(&s->thread, lead, d);
    if (error)
        sem_destroy(&s->told);
    s->started = !error;
    return error ? ddl__fail(DDL_ESYSTEM, "no thread that leads the ranks of a GPU: %s",
                             strerror(error))
                 : DDL_OK;
}

void ddl__leader_take(ddl__device *d, ddl__shared_chunk *sc)
{
    ddl__device_sharing *s = d->sharing;
    *s->last = sc;
    s->last = &sc->next;
    sem_post(&s->told);
}

void ddl__device_settle(ddl__device *d)
{
    if (!d)
        return;
    int64_t at = ddl__now() + DDL__DEVICE_DRAIN_LIMIT;
    pthread_mutex_lock(&d->lock);
    while (d->sharing && (d->sharing->first || d->sharing->busy) && !d->broken && ddl__now() < at)
        ddl__cond_wait_until(&d->changed, &d->lock, at);
    pthread_mutex_unlock(&d->lock);
}

void ddl__leader_stop(ddl__device *d, bool drained)
{
    ddl__device_sharing *s = d->sharing;
    if (!s || !s->started)
        return;
    sem_post(&s->told);
    if (drained)
        pthread_join(s->thread, NULL);
    else
        pthread_detach(s->thread);
}

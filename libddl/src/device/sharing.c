/* SPDX-License-Identifier: Apache-2.0 */
/* What each rank does; sharing.h has the design notes. */
#include "device/sharing.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/describe.h"
#include "engine/ordered.h"

/* ------------------------------------------------------------------------- where buffers lie */

static bool overlap(const ddl__export *one, const ddl__export *other)
{
    return one->base < other->base + other->bytes && other->base < one->base + one->bytes;
}

/* Export an allocation, of the library itself or of the program. NULL if leaders cannot, or are not
 * to, open it. */
static const ddl__export *export(const ddl__device *d, const ddl__export *allocation, bool is_own)
{
    ddl__device_sharing *s = d->sharing;
    for (unsigned i = 0; i < s->n_exports; i++) {
        if (s->exports[i].id == allocation->id)
            return &s->exports[i];
        s->has_freed = s->has_freed || overlap(&s->exports[i], allocation);
    }
    bool is_full = s->n_exports >= DDL__EXPORTS - DDL__OWN_EXPORTS;
    if (!is_own && (is_full || s->has_freed))
        return NULL;
    ddl__export *made = &s->exports[s->n_exports];
    *made = *allocation;
    if (!DDL__GOOD(d, ipc_export, &made->handle, made->base))
        return NULL;
    s->n_exports++;
    return made;
}

/* False: leaders cannot use this memory. */
static bool find_place(const ddl__device *d, ddl__cuda_pointer address, bool is_own,
                       ddl__place *place)
{
    ddl__export allocation = {.id = 0};
    place->address = address;
    if (!d->sharing->exports_memory)
        return true;
    if (!DDL__GOOD(d, pointer_attribute, &allocation.id, DDL__CUDA_POINTER_BUFFER_ID, address) ||
        !DDL__GOOD(d, pointer_attribute, &allocation.base, DDL__CUDA_POINTER_RANGE_START,
                   address) ||
        !DDL__GOOD(d, pointer_attribute, &allocation.bytes, DDL__CUDA_POINTER_RANGE_SIZE, address))
        return false;
    const ddl__export *found = export(d, &allocation, is_own);
    if (!found)
        return false;
    place->number = (uint64_t)(found - d->sharing->exports);
    place->base = found->base;
    place->handle = found->handle;
    return true;
}

/* Blocks of chunk k in the caller's own buffer, for each rank one, or one for all. */
static bool place_even(const ddl__device *d, const ddl__chunks *c, int64_t k,
                       const ddl__copied *blocks, const void *buffer, ddl__place *place,
                       ddl__share *shares)
{
    int64_t at = blocks->device * c->call->count + k * c->elements;
    for (int r = 0; r < c->size; r++)
        shares[r] = (ddl__share){blocks->n > 1 ? r * c->call->count : 0, ddl__chunk_count(c, k)};
    return !blocks->n ||
           find_place(d, ddl__cuda_address(buffer) + (uint64_t)at * c->element, false, place);
}

/* The same in memory that they are copied to and from. */
static bool place_even_copied(const ddl__device *d, const ddl__chunks *c, int64_t k,
                              const ddl__copied *blocks, ddl__cuda_pointer memory,
                              ddl__place *place, ddl__share *shares)
{
    int64_t count = ddl__chunk_count(c, k);
    for (int r = 0; r < c->size; r++)
        shares[r] = (ddl__share){blocks->n > 1 ? r * count : 0, count};
    return !blocks->n ||
           find_place(d, memory + (uint64_t)(blocks->host * count) * c->element, true, place);
}

/* Uneven blocks, from the start of their range on. What a rank has one of, it has for all. */
static void share_uneven(const ddl__chunks *c, int rank, ddl__share *sent, ddl__share *received)
{
    const ddl__call *call = c->call;
    const ddl__share *from = call->blocks, *to = from + c->size;
    const ddl__share *one_sent = NULL, *one_received = NULL;
    bool in_place = call->send == call->recv;
    if (call->kind == DDL__ALLGATHER || call->kind == DDL__GATHER)
        one_sent = in_place ? &to[rank] : &from[call->root];
    if (call->kind == DDL__REDUCE_SCATTER || call->kind == DDL__SCATTER)
        one_received = in_place                     ? &from[rank]
                       : call->kind == DDL__SCATTER ? &to[call->root]
                                                    : &to[rank];
    for (int r = 0; r < c->size; r++) {
        const ddl__share *s = one_sent ? one_sent : &from[r];
        const ddl__share *t = one_received ? one_received : &to[r];
        sent[r] = (ddl__share){s->start - c->sent.start, s->count};
        received[r] = (ddl__share){t->start - c->received.start, t->count};
    }
}

static bool place_range(const ddl__device *d, const ddl__share *range, ddl__cuda_pointer address,
                        bool is_own, ddl__place *place)
{
    return !range->count || find_place(d, address, is_own, place);
}

static ddl__cuda_pointer start_of(const ddl__chunks *c, const void *buffer, const ddl__share *range)
{
    return ddl__cuda_address(buffer) + (uint64_t)range->start * c->element;
}

static bool is_aligned(const ddl__chunks *c)
{
    uintptr_t both = (uintptr_t)c->call->send | (uintptr_t)c->call->recv;
    return both % c->element == 0;
}

/* Several parts are not one behind the other, and an all-to-all that replaces its operands needs
 * copies of them. */
static bool place_directly(const ddl__device *d, const ddl__chunks *c, int64_t k, ddl__places *own)
{
    const ddl__call *call = c->call;
    ddl__share *sent = own->blocks, *received = sent + c->size;
    bool replaces = call->send && call->send == call->recv;
    if (call->parts || (call->kind == DDL__ALLTOALL && replaces) || !is_aligned(c))
        return false;
    if (!c->is_whole)
        return place_even(d, c, k, &c->in, call->send, &own->send, sent) &&
               place_even(d, c, k, &c->out, call->recv, &own->recv, received);
    return place_range(d, &c->sent, start_of(c, call->send, &c->sent), false, &own->send) &&
           place_range(d, &c->received, start_of(c, call->recv, &c->received), false, &own->recv);
}

/* Whether this was allocated where an allocation lay that was exported, and then freed. */
static bool reuses(const ddl__device_sharing *s, ddl__cuda_pointer base, size_t bytes)
{
    const ddl__export made = {.base = base, .bytes = bytes};
    for (unsigned i = 0; i < s->n_exports; i++)
        if (overlap(&s->exports[i], &made))
            return true;
    return false;
}

static bool keep(ddl__device_sharing *s, ddl__cuda_pointer memory)
{
    if (s->n_kept == DDL__KEPT) {
        ddl__fail(DDL_ENOMEM, "the memory for copies on a GPU was replaced %d times", DDL__KEPT);
        return false;
    }
    s->kept[s->n_kept++] = memory;
    return true;
}

static bool allocate(const ddl__device *d, size_t bytes, ddl__cuda_pointer *made)
{
    for (;;) {
        if (!DDL__GOOD(d, memory_alloc, made, bytes))
            return false;
        if (!reuses(d->sharing, *made, bytes))
            return true;
        if (!keep(d->sharing, *made))
            return false;
    }
}

/* A scratch is replaced by one of twice its size, if there is so much. Leaders have opened the old
 * one, which is therefore kept. */
static bool grow(ddl__device *d, unsigned i, size_t bytes)
{
    ddl__device_sharing *s = d->sharing;
    size_t wanted = s->scratch[i] ? 2 * s->scratch_bytes[i] : DDL__SHARED_CHUNK;
    ddl__cuda_pointer made;
    ddl__device_settle(d); /* the driver may wait for the GPU when it allocates */
    wanted = wanted < bytes ? bytes : wanted;
    if (!allocate(d, wanted, &made)) {
        wanted = bytes;
        if (!allocate(d, wanted, &made))
            return false;
    }
    if (s->scratch[i] && !keep(s, s->scratch[i])) {
        d->cuda.memory_free(made);
        return false;
    }
    s->scratch[i] = made;
    s->scratch_bytes[i] = wanted;
    return true;
}

/* One of the memories for copies, which takes this much. */
static bool take_scratch(ddl__device *d, size_t bytes, ddl__cuda_pointer *memory,
                         ddl__cuda_event *freed)
{
    ddl__device_sharing *s = d->sharing;
    unsigned i =
        bytes > DDL__SHARED_CHUNK ? DDL__SCRATCHES : (unsigned)(s->n_scratch++ % DDL__SCRATCHES);
    if (!s->freed[i] && !DDL__GOOD(d, event_create, &s->freed[i], DDL__CUDA_EVENT_DISABLE_TIMING))
        return false;
    if (s->scratch_bytes[i] < bytes && !grow(d, i, bytes))
        return false;
    *memory = s->scratch[i];
    *freed = s->freed[i];
    return true;
}

static bool place_in_scratch(ddl__device *d, const ddl__chunks *c, int64_t k,
                             ddl__device_chunk *chunk, ddl__places *own)
{
    ddl__share *sent = own->blocks, *received = sent + c->size;
    ddl__cuda_pointer memory;
    if (!take_scratch(d, ddl__chunk_bytes(c, k), &memory, &chunk->freed))
        return false;
    chunk->memory = (unsigned char *)(uintptr_t)memory;
    own->send = own->recv = (ddl__place){.address = 0};
    if (!c->is_whole)
        return place_even_copied(d, c, k, &c->in, memory, &own->send, sent) &&
               place_even_copied(d, c, k, &c->out, memory, &own->recv, received);
    return place_range(d, &c->sent, memory, true, &own->send) &&
           place_range(d, &c->received, memory + ddl__chunk_recv_offset(c), true, &own->recv);
}

static bool place(ddl__device *d, const ddl__chunks *c, int64_t k, ddl__device_chunk *chunk,
                  ddl__places *own)
{
    own->signature = ddl__signature_of(c->call, 0);
    own->prescale = c->call->prescale;
    own->postscale = c->call->postscale;
    if (c->call->blocks)
        share_uneven(c, d->config.rank, own->blocks, own->blocks + c->size);
    return place_directly(d, c, k, own) || place_in_scratch(d, c, k, chunk, own);
}

/* -------------------------------------------------------------------- operations of a chunk */

const ddl__places *ddl__sharing_places(const ddl__shared_chunk *sc, int rank)
{
    return (const ddl__places *)(const void *)(sc->all + (size_t)rank * sc->bytes);
}

/* Add a call that starts when the hold is ready. */
static ddl_status add(const ddl__device_chunk *chunk, const ddl__call *call, ddl__hold *hold)
{
    ddl__call made = *call;
    made.hold = hold;
    return ddl__group_add(chunk->operation->group, &made);
}

static ddl_status add_both(const ddl__device *d, ddl__device_chunk *chunk, ddl__shared_chunk *sc)
{
    bool leads = d->sharing->leads;
    ddl__call gather = {.kind = d->sharing->n_gpus > 1 ? DDL__ALLGATHER : DDL__GATHER,
                        .dtype = DDL_U8,
                        .count = (int64_t)sc->bytes,
                        .send = sc->own,
                        .recv = sc->all,
                        .timeout_ms = sc->call.timeout_ms};
    ddl__call barrier = {.kind = DDL__BARRIER, .dtype = DDL_U8, .timeout_ms = sc->call.timeout_ms};
    sc->barrier.word = chunk->hold.word;
    sc->barrier.value = chunk->hold.value;
    atomic_init(&sc->barrier.ready, !leads);
    chunk->hold.word = &sc->gathered;
    chunk->hold.value = 1;
    chunk->hold.told = leads ? &d->sharing->told : NULL;
    ddl_status status = add(chunk, &gather, &chunk->hold);
    return status == DDL_OK ? add(chunk, &barrier, &sc->barrier) : status;
}

static ddl_status out_of_memory(const ddl__device *d)
{
    return ddl__fail(DDL_ENOMEM, "no memory for an operation of %d ranks on GPUs", d->config.size);
}

/* The other ranks may have submitted it, so a failure ends the comm. */
ddl_status ddl__sharing_add(ddl__device *d, const ddl__chunks *chunks, int64_t k,
                            ddl__device_chunk *chunk)
{
    bool leads = d->sharing->leads, hears = leads || d->sharing->n_gpus > 1;
    size_t size = (size_t)d->config.size;
    ddl__shared_chunk *sc = chunk->shared = calloc(1, sizeof *sc);
    if (!sc)
        return out_of_memory(d);
    sc->bytes = sizeof *sc->own + 2 * size * sizeof *sc->own->blocks;
    if (!(sc->own = calloc(1, sc->bytes)) || (hears && !(sc->all = calloc(size, sc->bytes))))
        return out_of_memory(d);
    sc->chunk = chunk;
    sc->call = *chunks->call;
    if (sc->call.order)
        ddl__order_retain(sc->call.order);
    if (!chunks->is_whole)
        sc->call.count = ddl__chunk_count(chunks, k);
    chunk->memory = NULL;
    if (place(d, chunks, k, chunk, sc->own) && (!leads || ddl__leader_prepare(d, sc)))
        return add_both(d, chunk, sc);
    char text[DDL__MESSAGE_MAX];
    snprintf(text, sizeof text, "%s", ddl__message());
    pthread_mutex_lock(&d->lock);
    ddl__device_fail(d, DDL_EABORTED, text);
    pthread_mutex_unlock(&d->lock);
    return ddl__fail(DDL_ESYSTEM, "%s", text);
}

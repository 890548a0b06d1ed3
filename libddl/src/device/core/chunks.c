/* SPDX-License-Identifier: Apache-2.0 */
#include "device/core/chunks.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "engine/calls/group.h"
#include "engine/calls/ordered.h"

/* alignment in bytes, and in elements, so ranges of any dtype begin at cache lines */
enum { ALIGNED = 64 };

/* -------------------------------------------------------------------------------- even blocks */

static const ddl__copied nothing = {0, 0, 0, -1};

static ddl__copied one(int device, int host)
{
    return (ddl__copied){1, device, host, -1};
}

static ddl__copied all(int size, int host, int except)
{
    return (ddl__copied){size, 0, host, except};
}

/* Find the blocks to copy. A chunk's operation runs in place in the chunk's memory, so this rank's
 * block is at its position among the blocks of all ranks. Only an all-to-all has separate send and
 * receive blocks there. */
static void find_blocks(ddl__chunks *c, int rank)
{
    const ddl__call *call = c->call;
    bool in_place = call->send == call->recv, is_root = call->root == rank;
    int own = in_place ? rank : 0; /* index of this rank's block in a buffer that, out of place,
                                      contains only this block */
    c->blocks = 1;
    c->recv_block = 0;
    c->in = c->out = nothing;
    switch (call->kind) {
    case DDL__ALLREDUCE: c->in = c->out = one(0, 0); break;
    case DDL__REDUCE_SCATTER:
        c->blocks = c->size;
        c->in = all(c->size, 0, -1);
        c->out = one(own, rank);
        break;
    case DDL__ALLGATHER:
        c->blocks = c->size;
        c->in = one(own, rank);
        c->out = all(c->size, 0, in_place ? rank : -1);
        break;
    case DDL__BROADCAST:
        c->in = is_root ? one(0, 0) : nothing;
        c->out = is_root ? nothing : one(0, 0);
        break;
    case DDL__REDUCE_TO_ROOT:
        c->in = one(0, 0);
        c->out = is_root ? one(0, 0) : nothing;
        break;
    case DDL__GATHER:
        c->blocks = c->size;
        c->in = is_root ? one(own, rank) : one(0, 0);
        c->out = is_root ? all(c->size, 0, in_place ? rank : -1) : nothing;
        break;
    case DDL__SCATTER:
        c->blocks = c->size;
        c->in = is_root ? all(c->size, 0, -1) : nothing;
        c->out = !is_root ? one(0, 0) : in_place ? nothing : one(0, rank);
        break;
    case DDL__ALLTOALL:
        c->blocks = 2 * c->size;
        c->recv_block = c->size;
        c->in = all(c->size, 0, -1);
        c->out = all(c->size, c->size, -1);
        break;
    case DDL__BARRIER:
    case DDL__SEND:
    case DDL__RECV:
    case DDL__ORDERED_ALLREDUCE:
    case DDL__ORDERED_REDUCE_SCATTER: break;
    }
}

int64_t ddl__chunk_count(const ddl__chunks *c, int64_t k)
{
    int64_t left = c->call->count - k * c->elements;
    return left < c->elements ? left : c->elements;
}

static bool copy_blocks(const ddl__chunks *c, int64_t k, const ddl__copied *blocks,
                        const void *buffer, unsigned char *memory, ddl__chunk_copy_fn *copy,
                        void *context)
{
    size_t bytes = (size_t)ddl__chunk_count(c, k) * c->element;
    for (int i = 0; bytes && i < blocks->n; i++) {
        int64_t at = (blocks->device + i) * c->call->count + k * c->elements;
        if (i != blocks->except &&
            !copy(context, (const unsigned char *)buffer + (size_t)at * c->element,
                  memory + (size_t)(blocks->host + i) * bytes, bytes))
            return false;
    }
    return true;
}

/* Make a bundle of the packed calls. The engine scales each call's elements in place. */
static bool make_packed(const ddl__chunks *c, unsigned char *memory, ddl__call *made)
{
    size_t n = (size_t)c->n_packed;
    ddl__bundle *bundle = malloc(sizeof *bundle + n * sizeof *bundle->calls);
    if (!bundle)
        return false;
    *bundle = (ddl__bundle){.scratch = memory, .n = (uint32_t)n};
    made->send = made->recv = memory;
    made->prescale = made->postscale = 0;
    made->bundle = bundle;
    for (size_t i = 0; i < n; i++) {
        bundle->calls[i] = *c->packed[i];
        bundle->calls[i].send = bundle->calls[i].recv = memory;
        memory += (size_t)bundle->calls[i].count * c->element;
    }
    return true;
}

static bool copy_packed(const ddl__chunks *c, bool in, unsigned char *memory,
                        ddl__chunk_copy_fn *copy, void *context)
{
    for (int i = 0; i < c->n_packed; i++) {
        const ddl__call *call = c->packed[i];
        size_t bytes = (size_t)call->count * c->element;
        if (bytes && !copy(context, in ? call->send : call->recv, memory, bytes))
            return false;
        memory += bytes;
    }
    return true;
}

/* ------------------------------------------------------------------------------ the whole call */

/* Return the range from the first to the last element of the blocks. */
static ddl__share extent(const ddl__share *blocks, int n)
{
    int64_t start = INT64_MAX, end = 0;
    for (int i = 0; i < n; i++) {
        if (!blocks[i].count)
            continue;
        start = blocks[i].start < start ? blocks[i].start : start;
        end = blocks[i].start + blocks[i].count > end ? blocks[i].start + blocks[i].count : end;
    }
    return end ? (ddl__share){start, end - start} : (ddl__share){0, 0};
}

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
}

/* Find the blocks that an in-place call copies for this rank, from this rank's entry in the list of
 * all ranks' blocks. */
static void find_in_place(ddl__chunks *c, int rank)
{
    const ddl__share *sent = c->call->blocks, *received = c->call->blocks + c->size;
    ddl__kind kind = c->call->kind;
    c->is_one_range = true;
    if (kind == DDL__ALLGATHER || kind == DDL__GATHER) {
        c->blocks_in = &received[rank];
        c->n_in = 1;
        c->sent = c->received;
    } else {
        if (kind != DDL__ALLTOALL)
            c->blocks_out = &sent[rank];
        if (kind == DDL__REDUCE_SCATTER)
            c->n_out = 1;
        if (kind == DDL__SCATTER)
            c->n_out = 0;
        c->received = c->sent;
    }
}

/* Return the length of one part of an ordered sum, in elements of the result. */
static int64_t part_count(const ddl__chunks *c)
{
    const ddl__call *call = c->call;
    int64_t blocks = call->kind == DDL__ORDERED_REDUCE_SCATTER ? c->size : 1;
    int64_t count = call->blocks ? extent(call->blocks, c->size).count : blocks * call->count;
    return count * call->wide;
}

static void find_extents(ddl__chunks *c, int rank)
{
    const ddl__call *call = c->call;
    c->is_whole = true;
    c->n = 1;
    if (call->order) {
        c->sent = (ddl__share){0, part_count(c) * call->order->parts[rank]};
        c->received =
            (ddl__share){0, call->blocks ? call->blocks[c->size + rank].count : call->count};
        return;
    }
    c->blocks_in = call->blocks;
    c->blocks_out = call->blocks + c->size;
    c->n_in = c->n_out = c->size;
    c->sent = extent(c->blocks_in, c->size);
    c->received = extent(c->blocks_out, c->size);
    if (call->send && call->send == call->recv)
        find_in_place(c, rank);
}

/* Return the offset of the receive buffer's range in the chunk's memory. The addresses of the two
 * buffers, which start before their ranges, must differ, because equal addresses mean that the call
 * is in place. */
static size_t recv_offset(const ddl__chunks *c)
{
    if (c->is_one_range)
        return 0;
    size_t offset = aligned((size_t)c->sent.count * c->element);
    bool is_one = (int64_t)offset == (c->received.start - c->sent.start) * (int64_t)c->element;
    return is_one ? offset + ALIGNED : offset;
}

static size_t whole_bytes(const ddl__chunks *c)
{
    return recv_offset(c) + (size_t)c->received.count * c->element;
}

/* Return the address of element 0 of a buffer. `range` is the address of the first element of its
 * range `extent`. */
static void *buffer_of(unsigned char *range, const ddl__share *extent, size_t element)
{
    return (void *)((uintptr_t)range - (size_t)extent->start * element);
}

static size_t part_bytes(const ddl__chunks *c)
{
    return (size_t)part_count(c) * c->element;
}

static int parts_of(const ddl__chunks *c)
{
    size_t bytes = part_bytes(c);
    return bytes ? (int)((size_t)c->sent.count * c->element / bytes) : 0;
}

static bool copy_list(const ddl__chunks *c, ddl__call *made)
{
    size_t bytes = 2 * (size_t)c->size * sizeof *made->blocks;
    if (!made->blocks)
        return true;
    made->blocks = malloc(bytes);
    if (made->blocks)
        memcpy(made->blocks, c->call->blocks, bytes);
    return made->blocks;
}

static bool make_ordered(const ddl__chunks *c, unsigned char *memory, ddl__call *made)
{
    int n = parts_of(c);
    if (!copy_list(c, made))
        return false;
    made->send = made->send ? memory : NULL;
    if (made->parts) {
        made->parts = malloc((size_t)(n ? n : 1) * sizeof *made->parts);
        for (int i = 0; made->parts && i < n; i++)
            made->parts[i] = memory + (size_t)i * part_bytes(c);
        if (!made->parts) {
            free(made->blocks);
            return false;
        }
    }
    made->recv = made->recv ? memory + recv_offset(c) : NULL;
    made->order = ddl__order_retain(c->call->order);
    return true;
}

static bool make_uneven(const ddl__chunks *c, unsigned char *memory, ddl__call *made)
{
    if (!copy_list(c, made))
        return false;
    made->send = made->send ? buffer_of(memory, &c->sent, c->element) : NULL;
    made->recv = made->recv ? buffer_of(memory + recv_offset(c), &c->received, c->element) : NULL;
    return true;
}

/* Copy the blocks. The list of an all-gather repeats the same block for each rank; the block is
 * copied only once. */
static bool copy_shares(const ddl__chunks *c, const ddl__share *blocks, int n, const void *buffer,
                        const ddl__share *range, unsigned char *memory, ddl__chunk_copy_fn *copy,
                        void *context)
{
    for (int i = 0; i < n; i++) {
        bool again =
            i && blocks[i].start == blocks[i - 1].start && blocks[i].count == blocks[i - 1].count;
        if (blocks[i].count && !again &&
            !copy(context, (const unsigned char *)buffer + (size_t)blocks[i].start * c->element,
                  memory + (size_t)(blocks[i].start - range->start) * c->element,
                  (size_t)blocks[i].count * c->element))
            return false;
    }
    return true;
}

static bool copy_parts(const ddl__chunks *c, unsigned char *memory, ddl__chunk_copy_fn *copy,
                       void *context)
{
    const ddl__call *call = c->call;
    for (int i = 0; i < parts_of(c); i++)
        if (!copy(context, call->parts ? call->parts[i] : call->send,
                  memory + (size_t)i * part_bytes(c), part_bytes(c)))
            return false;
    return true;
}

/* ---------------------------------------------------------------------------------- both kinds */

bool ddl__chunks_of(const ddl__call *call, int rank, int size, size_t bytes, ddl__chunks *c)
{
    *c = (ddl__chunks){.call = call, .size = size, .element = ddl__dtype_size(call->dtype)};
    if (call->order || call->blocks) {
        find_extents(c, rank);
        return true;
    }
    find_blocks(c, rank);
    c->elements = (int64_t)(bytes / c->element / (size_t)c->blocks);
    if (c->elements > ALIGNED)
        c->elements -= c->elements % ALIGNED;
    c->n = c->elements && call->count ? (call->count + c->elements - 1) / c->elements : 1;
    return c->elements;
}

size_t ddl__chunk_bytes(const ddl__chunks *c, int64_t k)
{
    return c->is_whole ? whole_bytes(c)
                       : (size_t)ddl__chunk_count(c, k) * c->element * (size_t)c->blocks;
}

bool ddl__chunk_call(const ddl__chunks *c, int64_t k, unsigned char *memory, ddl__call *made)
{
    *made = *c->call;
    if (c->is_whole)
        return c->call->order ? make_ordered(c, memory, made) : make_uneven(c, memory, made);
    made->count = ddl__chunk_count(c, k);
    if (c->n_packed)
        return make_packed(c, memory, made);
    size_t block = (size_t)made->count * c->element;
    made->send = c->call->send ? memory : NULL;
    made->recv = c->call->recv ? memory + (size_t)c->recv_block * block : NULL;
    return true;
}

bool ddl__chunk_copy_in(const ddl__chunks *c, int64_t k, unsigned char *memory,
                        ddl__chunk_copy_fn *copy, void *context)
{
    const ddl__call *call = c->call;
    if (c->n_packed)
        return copy_packed(c, true, memory, copy, context);
    if (!c->is_whole)
        return copy_blocks(c, k, &c->in, call->send, memory, copy, context);
    if (call->order)
        return copy_parts(c, memory, copy, context);
    return copy_shares(c, c->blocks_in, c->n_in, call->send, &c->sent, memory, copy, context);
}

bool ddl__chunk_copy_out(const ddl__chunks *c, int64_t k, unsigned char *memory,
                         ddl__chunk_copy_fn *copy, void *context)
{
    const ddl__call *call = c->call;
    if (c->n_packed)
        return copy_packed(c, false, memory, copy, context);
    if (!c->is_whole)
        return copy_blocks(c, k, &c->out, call->recv, memory, copy, context);
    unsigned char *received = memory + recv_offset(c);
    if (!call->order)
        return copy_shares(c, c->blocks_out, c->n_out, call->recv, &c->received, received, copy,
                           context);
    size_t bytes = (size_t)c->received.count * c->element;
    return !bytes || copy(context, call->recv, received, bytes);
}

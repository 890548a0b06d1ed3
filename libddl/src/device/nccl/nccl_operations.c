/* SPDX-License-Identifier: Apache-2.0 */
/* Runs device operations with NCCL. nccl_ranks.h has the design notes. */
#include <stdio.h>

#include "base/dtype.h"
#include "device/nccl/nccl_ranks.h"

enum {
    AHEAD = 4,   /* chunks that are reduced within a host before the first one is gathered */
    ALIGNED = 64 /* bytes and elements */
};

_Static_assert((int)AHEAD < (int)DDL__SLOTS, "each chunk that is under way has a slot");

typedef ddl__device_chunk chunk;

/* ------------------------------------------------------------------ the arguments of NCCL calls */

static bool reduces(const ddl__call *call)
{
    return call->kind == DDL__ALLREDUCE || call->kind == DDL__REDUCE_SCATTER ||
           call->kind == DDL__REDUCE_TO_ROOT;
}

/* Return NCCL's op. For an average over several hosts it is the sum, because the engine divides. */
static ddl__nccl_op op_of(const ddl__device *d, const ddl__call *call)
{
    bool sums = d->nccl->between.n > 1 && call->op == DDL_AVERAGE;
    return ddl__nccl_op_of(call->dtype, sums ? DDL_SUM : call->op, d->nccl->n);
}

bool ddl__nccl_takes(const ddl__device *d, const ddl__call *call)
{
    const ddl__device_nccl *n = d->nccl;
    if (call->blocks || call->order || call->prescale != 0 || call->postscale != 0 ||
        (n->between.n > 1 && (call->kind != DDL__ALLREDUCE || call->count < n->n)))
        return false;
    return !reduces(call) || (ddl__nccl_dtype_of(call->dtype) != DDL__NCCL_NO_DTYPE &&
                              op_of(d, call) != DDL__NCCL_NO_OP);
}

static int64_t elements_of(const ddl__device *d, size_t element)
{
    int64_t part = DDL__SLOT_BYTES / (int64_t)element / ALIGNED * ALIGNED;
    return part * d->nccl->n;
}

/* Return an address of the GPU. */
static void *at(const void *buffer, int64_t blocks, size_t bytes)
{
    return (void *)((uintptr_t)buffer + (uintptr_t)((size_t)blocks * bytes));
}

void ddl__nccl_cut(const ddl__device *d, const ddl__call *call, ddl__call *main, ddl__call *rest,
                   ddl__chunks *chunks)
{
    const ddl__device_nccl *n = d->nccl;
    size_t element = ddl__dtype_size(call->dtype);
    *main = *rest = *call;
    rest->count = 0;
    *chunks = (ddl__chunks){.call = main,
                            .n = 1,
                            .size = d->config.size,
                            .element = element,
                            .by_nccl = true,
                            .elements = call->count};
    if (n->between.n == 1)
        return;
    rest->count = call->count % n->n;
    main->count -= rest->count;
    chunks->rest = rest->count;
    rest->send = at(call->send, main->count, element);
    rest->recv = at(call->recv, main->count, element);
    chunks->elements = elements_of(d, element);
    chunks->n = (main->count + chunks->elements - 1) / chunks->elements;
}

/* --------------------------------------------------------------------- operations of the engine */

static ddl_status add_agreement(const ddl__chunks *chunks, chunk *c)
{
    ddl__call call = *chunks->call;
    call.only_agrees = true;
    call.count += chunks->rest; /* the count of the program's call */
    call.prescale = call.postscale = 0;
    call.hold = &c->agreement;
    c->agreement.word = &c->agreed;
    c->agreement.value = 1;
    return ddl__group_add(c->operation->group, &call);
}

/* Add the operation that reduces this rank's part with the parts of the other hosts. */
static ddl_status add_part(const ddl__device *d, const ddl__chunks *chunks, int64_t k, chunk *c)
{
    ddl__call call = *chunks->call;
    call.count = ddl__chunk_count(chunks, k) / d->nccl->n;
    call.send = call.recv = c->memory;
    call.among = &d->nccl->between;
    call.hold = &c->hold;
    return ddl__group_add(c->operation->group, &call);
}

ddl_status ddl__nccl_add(ddl__device *d, const ddl__chunks *chunks, int64_t k, chunk *c)
{
    ddl_status status = k ? DDL_OK : add_agreement(chunks, c);
    if (d->nccl->between.n == 1 || status != DDL_OK)
        return status;
    ddl__device_place_in_slot(d, c);
    return add_part(d, chunks, k, c);
}

/* ----------------------------------------------------------------------------- NCCL on one host */

/* Exchange messages as the call requires: between all ranks in an all-to-all, to or from the root
 * in a gather or scatter. In place, this rank's own block is not copied. */
static int exchange(const ddl__device *d, const ddl__call *call, const void *send,
                    ddl__nccl_comm *comm)
{
    const ddl__device_nccl *n = d->nccl;
    size_t bytes = (size_t)call->count * ddl__dtype_size(call->dtype);
    bool from_all = call->kind != DDL__SCATTER, to_all = call->kind != DDL__GATHER;
    bool is_root = n->self == call->root;
    int result = n->library.group_start();
    for (int r = 0; r < n->n && result == DDL__NCCL_SUCCESS; r++) {
        bool sends = (from_all || is_root) && (to_all || r == call->root);
        bool receives = (to_all || is_root) && (from_all || r == call->root);
        if (r == n->self && send == call->recv)
            continue;
        if (sends)
            result = n->library.send(at(send, to_all ? r : 0, bytes), bytes, DDL__NCCL_U8, r, comm,
                                     n->stream);
        if (receives && result == DDL__NCCL_SUCCESS)
            result = n->library.receive(at(call->recv, from_all ? r : 0, bytes), bytes,
                                        DDL__NCCL_U8, r, comm, n->stream);
    }
    int ended = n->library.group_end();
    return result == DDL__NCCL_SUCCESS ? ended : result;
}

static int call_nccl(const ddl__device *d, const ddl__call *call, const void *send,
                     ddl__nccl_comm *comm, const char **symbol)
{
    const ddl__device_nccl *n = d->nccl;
    size_t count = (size_t)call->count, bytes = count * ddl__dtype_size(call->dtype);
    ddl__nccl_dtype dtype = ddl__nccl_dtype_of(call->dtype);
    ddl__nccl_op op = op_of(d, call);
    /* this rank's block is already in place */
    void *own = at(call->recv, call->send == call->recv ? n->self : 0, bytes);
    switch (call->kind) {
    case DDL__ALLREDUCE:
        *symbol = "ncclAllReduce";
        return n->library.all_reduce(call->send, call->recv, count, dtype, op, comm, n->stream);
    case DDL__REDUCE_SCATTER:
        *symbol = "ncclReduceScatter";
        return n->library.reduce_scatter(call->send, own, count, dtype, op, comm, n->stream);
    case DDL__REDUCE_TO_ROOT:
        *symbol = "ncclReduce";
        return n->library.reduce(call->send, call->recv, count, dtype, op, call->root, comm,
                                 n->stream);
    case DDL__ALLGATHER:
        *symbol = "ncclAllGather";
        return n->library.all_gather(call->send == call->recv ? own : call->send, call->recv, bytes,
                                     DDL__NCCL_U8, comm, n->stream);
    case DDL__BROADCAST:
        *symbol = "ncclBroadcast";
        return n->library.broadcast(call->send, call->recv, bytes, DDL__NCCL_U8, call->root, comm,
                                    n->stream);
    case DDL__GATHER:
    case DDL__SCATTER:
    case DDL__ALLTOALL: *symbol = "ncclGroupEnd"; return exchange(d, call, send, comm);
    case DDL__BARRIER:
    case DDL__SEND:
    case DDL__RECV:
    case DDL__ORDERED_ALLREDUCE:
    case DDL__ORDERED_REDUCE_SCATTER: break;
    }
    return DDL__NCCL_SUCCESS;
}

/* Copy the operands that an all-to-all would overwrite to scratch memory on the GPU. A scratch
 * buffer that has become too small is kept, because queued operations may still use it. */
static bool copy_operands(ddl__device *d, const ddl__call *call, const void **send)
{
    ddl__device_nccl *n = d->nccl;
    size_t bytes = (size_t)n->n * (size_t)call->count * ddl__dtype_size(call->dtype);
    if (n->scratch_bytes < bytes) {
        size_t wanted = n->scratch_bytes ? 2 * n->scratch_bytes : DDL__SLOT_BYTES;
        while (wanted < bytes)
            wanted *= 2;
        if (!DDL__GOOD(d, memory_alloc, &n->scratch[n->n_scratch], wanted))
            return false;
        n->n_scratch++;
        n->scratch_bytes = wanted;
    }
    ddl__cuda_pointer scratch = n->scratch[n->n_scratch - 1];
    *send = (const void *)(uintptr_t)scratch;
    return DDL__GOOD(d, copy_within_device, scratch, ddl__cuda_address(call->send), bytes,
                     n->stream);
}

/* Finish a call of NCCL. If NCCL has failed, the comm ends. After the end of the comm, the
 * remaining work is queued without NCCL, so that all host functions are called. */
static void finish(ddl__device *d, ddl__nccl_comm *comm, const char *symbol, int result)
{
    char text[DDL__MESSAGE_MAX];
    if (ddl__nccl_leave(d, comm, symbol, result))
        return;
    snprintf(text, sizeof text, "%s", ddl__message());
    pthread_mutex_lock(&d->lock);
    ddl__device_fail(d, DDL_EABORTED, text);
    pthread_mutex_unlock(&d->lock);
}

static bool queue_whole(ddl__device *d, const ddl__call *call)
{
    const char *symbol = "";
    const void *send = call->send;
    bool replaces = call->kind == DDL__ALLTOALL && call->send == call->recv;
    if (replaces && !copy_operands(d, call, &send))
        return false;
    ddl__nccl_comm *comm = ddl__nccl_enter(d);
    if (!comm)
        return true;
    int result = call_nccl(d, call, send, comm, &symbol);
    finish(d, comm, symbol, result);
    return true;
}

/* ------------------------------------------------------------------------- NCCL and other hosts */

/* The position of this rank's part on the GPU. */
typedef struct part {
    void *address;
    size_t count, bytes;
} part;

static part part_of(const ddl__device *d, const ddl__chunks *chunks, int64_t k, const chunk *c)
{
    size_t count = (size_t)(ddl__chunk_count(chunks, k) / d->nccl->n);
    return (part){(void *)(uintptr_t)(d->nccl->parts + (ddl__cuda_pointer)(c->memory - d->slots)),
                  count, count * chunks->element};
}

static void reduce_scatter(ddl__device *d, const ddl__chunks *chunks, int64_t k, const part *p)
{
    const ddl__call *call = chunks->call;
    const void *send = at(call->send, k * chunks->elements, chunks->element);
    ddl__nccl_comm *comm = ddl__nccl_enter(d);
    if (comm)
        finish(d, comm, "ncclReduceScatter",
               d->nccl->library.reduce_scatter(send, p->address, p->count,
                                               ddl__nccl_dtype_of(call->dtype), op_of(d, call),
                                               comm, d->nccl->stream));
}

static void all_gather(ddl__device *d, const ddl__chunks *chunks, int64_t k, const part *p)
{
    void *recv = at(chunks->call->recv, k * chunks->elements, chunks->element);
    ddl__nccl_comm *comm = ddl__nccl_enter(d);
    if (comm)
        finish(d, comm, "ncclAllGather",
               d->nccl->library.all_gather(p->address, recv, p->bytes, DDL__NCCL_U8, comm,
                                           d->nccl->stream));
}

/* Queue the copy of this rank's part of the chunk, from the GPU to the engine's memory. */
static bool queue_in(ddl__device *d, const ddl__chunks *chunks, int64_t k, chunk *c)
{
    const ddl__device_nccl *n = d->nccl;
    part p = part_of(d, chunks, k, c);
    ddl__cuda_event reduced = n->reduced[(size_t)(c->memory - d->slots) / DDL__SLOT_BYTES];
    reduce_scatter(d, chunks, k, &p);
    return DDL__GOOD(d, event_record, reduced, n->stream) &&
           DDL__GOOD(d, stream_wait_event, d->from, reduced, 0) &&
           DDL__GOOD(d, stream_wait_event, d->from, c->freed, 0) &&
           DDL__GOOD(d, copy_to_host, c->memory, ddl__cuda_address(p.address), p.bytes, d->from) &&
           ddl__device_queue_start(d, c);
}

static bool queue_out(ddl__device *d, const ddl__chunks *chunks, int64_t k, chunk *c)
{
    part p = part_of(d, chunks, k, c);
    if (!DDL__GOOD(d, stream_wait_value, d->to, c->word, c->value, DDL__CUDA_WAIT_VALUE_GEQ) ||
        !DDL__GOOD(d, copy_to_device, ddl__cuda_address(p.address), c->memory, p.bytes, d->to) ||
        !DDL__GOOD(d, event_record, c->freed, d->to) ||
        !DDL__GOOD(d, stream_wait_event, d->nccl->stream, c->freed, 0))
        return false;
    all_gather(d, chunks, k, &p);
    return true;
}

static bool queue_chunks(ddl__device *d, const ddl__chunks *chunks, chunk *first)
{
    bool good = true;
    for (int64_t k = 0; good && k < chunks->n + AHEAD; k++) {
        int64_t behind = k - AHEAD;
        if (k < chunks->n)
            good = queue_in(d, chunks, k, &first[k]);
        if (good && behind >= 0 && behind < chunks->n)
            good = queue_out(d, chunks, behind, &first[behind]);
    }
    return good;
}

static void open_agreement(void *argument)
{
    chunk *c = argument;
    ddl__device_open(c->operation->device, &c->agreement);
}

/* Queue the start of the agreement. `to` waits for it, too, so that the operation is not freed
 * before the host function was called. */
static bool queue_agreement(ddl__device *d, chunk *c)
{
    ddl__cuda_event begun = d->nccl->begun;
    return DDL__GOOD(d, launch_host, d->from, open_agreement, c) &&
           DDL__GOOD(d, event_record, begun, d->from) &&
           DDL__GOOD(d, stream_wait_event, d->to, begun, 0);
}

bool ddl__nccl_queue(ddl__device *d, const ddl__chunks *chunks, chunk *first)
{
    const ddl__device_nccl *n = d->nccl;
    return DDL__GOOD(d, stream_wait_event, n->stream, first->operation->start, 0) &&
           queue_agreement(d, first) &&
           (n->between.n > 1 ? queue_chunks(d, chunks, first) : queue_whole(d, chunks->call)) &&
           DDL__GOOD(d, event_record, n->done, n->stream) &&
           DDL__GOOD(d, stream_wait_event, d->to, n->done, 0);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The exported collective operations on even blocks, after the checks common to all operations. */
#include "api/api_operations.h"

#include <stdlib.h>
#include <string.h>

#include "api/check_object.h"
#include "api/take_struct.h"
#include "base/dtype.h"

/* Return the range from the first to the last element of all blocks. */
static ddl__share blocks_extent(const ddl__share *blocks, int n)
{
    int64_t start = INT64_MAX, end = 0;
    for (int i = 0; i < n; i++) {
        ddl__share block = blocks[i];
        if (block.count && block.start < start)
            start = block.start;
        if (block.count && block.start + block.count > end)
            end = block.start + block.count;
    }
    return end ? (ddl__share){start, end - start} : (ddl__share){0, 0};
}

static ddl_status check_overlap(const ddl__buffers *b, ddl__share sent, ddl__share received,
                                size_t element)
{
    size_t send_bytes = (size_t)sent.count * element, recv_bytes = (size_t)received.count * element;
    uintptr_t send = (uintptr_t)b->send + (size_t)sent.start * element;
    uintptr_t recv = (uintptr_t)b->recv + (size_t)received.start * element;
    if (send < recv + recv_bytes && recv < send + send_bytes)
        return ddl__fail(
            DDL_EINVAL,
            "send and recv overlap: %zu bytes at %p, %zu bytes at %p; in place means "
            "send == recv, send NULL, or this rank's block at the same address in both",
            send_bytes, (void *)send, recv_bytes, (void *)recv);
    return DDL_OK;
}

/* Return the address of this rank's block in a buffer of `n_blocks` blocks. */
static uintptr_t own_block(const ddl_comm *comm, const ddl__call *call, const void *buffer,
                           const ddl__share *blocks, int64_t n_blocks)
{
    int64_t start = blocks ? blocks[comm->rank].start : n_blocks > 1 ? comm->rank * call->count : 0;
    return (uintptr_t)buffer + (size_t)start * ddl__dtype_size(call->dtype);
}

/* Return true if one buffer is this rank's block in the other, which also means in place, as in
 * other libraries. */
static bool is_own_block_of_other(const ddl_comm *comm, const ddl__call *call,
                                  const ddl__buffers *b)
{
    if (call->kind != DDL__ALLGATHER && call->kind != DDL__REDUCE_SCATTER &&
        call->kind != DDL__GATHER && call->kind != DDL__SCATTER)
        return false;
    const ddl__share *from = call->blocks, *to = from ? from + comm->size : NULL;
    return own_block(comm, call, call->send, from, b->send_blocks) ==
           own_block(comm, call, call->recv, to, b->recv_blocks);
}

/* Convert the call to the in-place form in which both pointers point to the buffer that contains
 * all blocks. */
static void put_in_place(ddl__call *call)
{
    if (call->kind == DDL__ALLGATHER || call->kind == DDL__GATHER)
        call->send = call->recv;
    else
        call->recv = (void *)(uintptr_t)call->send;
}

/* Set the call's buffers. Converts all in-place forms to one form, and sets pointers that are
 * ignored to NULL. */
static ddl_status take_buffers(const ddl_comm *comm, ddl__call *call, const ddl__buffers *b)
{
    ddl__share sent = {0, b->send_blocks * call->count};
    ddl__share received = {0, b->recv_blocks * call->count};
    if (call->blocks) {
        sent = blocks_extent(call->blocks, comm->size);
        received = blocks_extent(call->blocks + comm->size, comm->size);
    }
    if (call->order && !b->send) /* this rank has no parts, so it sends nothing */
        sent.count = 0;
    call->send = !sent.count ? NULL : b->send ? b->send : b->recv;
    call->recv = received.count ? b->recv : NULL;
    if (sent.count && !call->send)
        return ddl__fail(DDL_EINVAL, "send is NULL, and recv is not a buffer that can be sent");
    if (received.count && !b->recv)
        return ddl__fail(DDL_EINVAL, "recv is NULL, but the operation receives %lld elements",
                         (long long)received.count);
    if (sent.count && received.count && is_own_block_of_other(comm, call, b))
        put_in_place(call);
    if (sent.count && received.count && call->send != call->recv)
        return check_overlap(b, sent, received, ddl__dtype_size(call->dtype));
    return DDL_OK;
}

static ddl_status check_reduction(ddl_dtype dtype, ddl_op op)
{
    if (op < DDL_SUM || op > DDL_LOGICAL_OR)
        return ddl__fail(DDL_EINVAL, "op is %d; must be a value of ddl_op", (int)op);
    if (ddl__reduces(dtype, op))
        return DDL_OK;
    const char *name = ddl__dtype_name(dtype), *has = "sum, average, min, max and product";
    if (ddl__dtype_class(dtype) == DDL__TRUTH)
        has = "all others";
    if (ddl__dtype_class(dtype) == DDL__COMPLEX)
        has = "sum and average";
    return ddl__fail(DDL_EUNSUPPORTED, "%s of %s is not supported; %s supports %s",
                     ddl__op_name(op), name, name, has);
}

static bool reduces(const ddl__call *call)
{
    return call->kind == DDL__ALLREDUCE || call->kind == DDL__REDUCE_SCATTER ||
           call->kind == DDL__REDUCE_TO_ROOT;
}

ddl_status ddl__check_elements(const ddl_comm *comm, const ddl__call *call)
{
    size_t element = ddl__dtype_size(call->dtype);
    if (call->count < 0)
        return ddl__fail(DDL_EINVAL, "count is %lld; must be at least 0", (long long)call->count);
    if (!element)
        return ddl__fail(DDL_EINVAL, "dtype is %d; must be a value of ddl_dtype", (int)call->dtype);
    if (call->count > DDL__COUNT_MAX ||
        call->count > DDL__BYTES_MAX / (int64_t)element / comm->size)
        return ddl__fail(DDL_EINVAL, "count is %lld, which is too large for %d ranks",
                         (long long)call->count, comm->size);
    return DDL_OK;
}

static ddl_status check_call(const ddl_comm *comm, const ddl__call *call)
{
    ddl_status status = ddl__check_elements(comm, call);
    if (status == DDL_OK && reduces(call))
        status = check_reduction(call->dtype, call->op);
    if (status == DDL_OK && comm->config.invariant > 0 && reduces(call))
        status = ddl__check_invariant(comm, call);
    if (status == DDL_OK && (call->root < 0 || call->root >= comm->size))
        return ddl__fail(DDL_EINVAL, "root is %d; must be from 0 to %d", call->root,
                         comm->size - 1);
    return status;
}

static ddl_status check_options(const ddl_options *options)
{
    if (options->memory > DDL_MEMORY_CUDA)
        return ddl__fail(DDL_EINVAL, "options.memory is %u; must be a value of ddl_memory",
                         options->memory);
    if (options->stream && options->memory != DDL_MEMORY_CUDA)
        return ddl__fail(DDL_EINVAL,
                         "options.stream is set, but options.memory is %u, not DDL_MEMORY_CUDA",
                         options->memory);
    if (options->timeout_ms < 0 || options->queued > 1)
        return ddl__fail(
            DDL_EINVAL,
            "options.timeout_ms is %lld and options.queued is %u; must be at least 0, and 0 or 1",
            (long long)options->timeout_ms, options->queued);
    size_t length = options->name ? strnlen(options->name, DDL_NAME_MAX) : 0;
    if (length == DDL_NAME_MAX)
        return ddl__fail(
            DDL_EINVAL,
            "options.name is \"%.40s...\", which has %d bytes or more; must have at most %d",
            options->name, DDL_NAME_MAX, DDL_NAME_MAX - 1);
    if (options->reserved)
        return ddl__fail(DDL_EINVAL, "options.reserved is %u; must be 0", options->reserved);
    return DDL_OK;
}

ddl_status ddl__take_options(ddl_options *own, const ddl_options *options, ddl_work *const *work)
{
    ddl_status status = ddl__take_struct(own, sizeof *own, options, "ddl_options");
    if (status == DDL_OK)
        status = check_options(own);
    if (status == DDL_OK && own->queued && !work)
        status = ddl__fail(DDL_EINVAL, "options.queued is 1, but work is NULL: only a call with a "
                                       "work can be queued");
    if (status == DDL_OK && own->wait_ms && (own->queued || own->group || !work))
        status = ddl__fail(DDL_EINVAL,
                           "options.wait_ms is %u: set it only for a call with a work that "
                           "is neither queued nor part of a group",
                           own->wait_ms);
    return status;
}

void ddl__apply_options(ddl__call *call, const ddl_options *own, int64_t limit_ms)
{
    call->timeout_ms = own->timeout_ms ? own->timeout_ms : limit_ms;
    call->queued = own->queued;
    call->wait_ms = own->wait_ms;
    call->user = own->user;
    call->name = own->name && own->name[0] ? own->name : NULL;
    call->prescale = own->prescale == 1 ? 0 : own->prescale;
    call->postscale = own->postscale == 1 ? 0 : own->postscale;
    call->residual = own->residual;
}

static const char *place_of(uint32_t memory)
{
    return memory == DDL_MEMORY_CUDA ? "CUDA" : "HOST";
}

/* Check the call's memory. All calls of a group use one kind of memory, and their stream is given
 * when the group is submitted. */
static ddl_status check_memory(ddl_comm *comm, const ddl_group *group, const ddl__call *call,
                               const ddl_options *options)
{
    if (group->n_calls && options->memory != group->memory)
        return ddl__fail(DDL_EINVAL,
                         "options.memory is DDL_MEMORY_%s, but the group's operations have "
                         "DDL_MEMORY_%s: all operations of a group must use the same memory",
                         place_of(options->memory), place_of(group->memory));
    if (options->stream)
        return ddl__fail(DDL_EINVAL, "options.stream and options.group are both set: pass the "
                                     "stream to ddl_group_submit instead");
    return options->memory == DDL_MEMORY_CUDA ? ddl__check_for_device(comm, call) : DDL_OK;
}

/* Add the call to the group in its options. */
static ddl_status add_to_group(ddl_comm *comm, const ddl__call *call, const ddl_options *options,
                               ddl_work *const *work)
{
    ddl_group *group = options->group;
    ddl_status status = ddl__check_group(group);
    if (status != DDL_OK)
        return status;
    if (group->engine != comm->engine)
        return ddl__fail(DDL_EINVAL, "options.group belongs to another comm");
    if (work)
        return ddl__fail(DDL_EINVAL,
                         "work is not NULL, but options.group is set: "
                         "ddl_group_submit returns one work for all operations of the group");
    if (options->name && options->name[0])
        return ddl__fail(
            DDL_EINVAL,
            "options.name is \"%.64s\": an operation of a group has no name; pass the name "
            "to ddl_group_submit",
            options->name);
    if (ddl__engine_holds_group(comm->engine, group))
        return ddl__fail(DDL_ESTATE,
                         "the group is pending: add operations after its work is complete");
    status = check_memory(comm, group, call, options);
    if (status != DDL_OK)
        return status;
    group->memory = options->memory;
    return ddl__group_add(group, call);
}

static ddl_status check_scales(const ddl__call *call, const ddl_options *own)
{
    if (own->prescale == 0 && own->postscale == 0)
        return DDL_OK;
    const char *which = own->prescale != 0 ? "prescale" : "postscale";
    double factor = own->prescale != 0 ? own->prescale : own->postscale;
    if (call->order)
        return ddl__fail(DDL_EUNSUPPORTED,
                         "options.%s is %g: ordered sums are not scaled; scale the parts", which,
                         factor);
    if (!reduces(call))
        return ddl__fail(DDL_EINVAL, "options.%s is %g, but this operation reduces nothing", which,
                         factor);
    ddl__class class = ddl__dtype_class(call->dtype);
    if (class != DDL__FLOAT && class != DDL__COMPLEX)
        return ddl__fail(DDL_EUNSUPPORTED,
                         "options.%s is %g, but %s cannot be scaled: only floats "
                         "and complex numbers can",
                         which, factor, ddl__dtype_name(call->dtype));
    return DDL_OK;
}

/* Return true for sums that support wire formats, if their buffers are in host memory. */
static bool is_packable_sum(const ddl__call *call)
{
    return (call->kind == DDL__ALLREDUCE || call->kind == DDL__REDUCE_SCATTER) &&
           call->dtype == DDL_F32 && (call->op == DDL_SUM || call->op == DDL_AVERAGE);
}

/* Return true for operations that support wire formats, if their buffers are in host memory. */
static bool may_pack(const ddl__call *call)
{
    return is_packable_sum(call) || (call->kind == DDL__ALLGATHER && call->dtype == DDL_F32);
}

/* Return true if two buffers of f32 overlap. */
static bool overlaps(const void *a, int64_t a_count, const void *b, int64_t b_count)
{
    uintptr_t one = (uintptr_t)a, other = (uintptr_t)b;
    return one < other + (size_t)b_count * sizeof(float) &&
           other < one + (size_t)a_count * sizeof(float);
}

static ddl_status check_residual(const ddl_comm *comm, const ddl__call *call,
                                 const ddl_options *own)
{
    if (!own->residual)
        return DDL_OK;
    if (!is_packable_sum(call) || own->memory != DDL_MEMORY_HOST || own->group)
        return ddl__fail(DDL_EINVAL,
                         "options.residual is set; it is supported only for a sum or an average "
                         "of f32 by an all-reduce or a reduce-scatter, in DDL_MEMORY_HOST and not "
                         "in a group: set it to NULL");
    ddl__share sent = {0,
                       call->kind == DDL__REDUCE_SCATTER ? call->count * comm->size : call->count};
    if (call->blocks)
        sent = blocks_extent(call->blocks, comm->size);
    int64_t received = call->blocks ? call->blocks[comm->rank].count : call->count;
    int64_t count = sent.start + sent.count;
    if (overlaps(own->residual, count, call->send, count) ||
        overlaps(own->residual, count, call->recv, received))
        return ddl__fail(DDL_EINVAL, "options.residual overlaps send or recv: give it memory of "
                                     "its own");
    return DDL_OK;
}

static ddl_status check_wire(const ddl_comm *comm, const ddl__call *call, const ddl_options *own)
{
    if (own->wire > DDL_WIRE_BF16)
        return ddl__fail(DDL_EINVAL, "options.wire is %u; must be 0, or a value of ddl_wire",
                         own->wire);
    if (own->wire <= DDL_WIRE_F32)
        return DDL_OK;
    if (!may_pack(call) || own->memory != DDL_MEMORY_HOST)
        return ddl__fail(DDL_EINVAL,
                         "options.wire is %s, which is only for f32 in DDL_MEMORY_HOST: an "
                         "all-gather, or a sum or an average by an all-reduce or a "
                         "reduce-scatter",
                         ddl__wire_name(own->wire));
    if (comm->config.invariant != DDL_INVARIANT_NONE)
        return ddl__fail(DDL_EINVAL,
                         "options.wire is %s, but invariant sums must not be rounded: choose f32",
                         ddl__wire_name(own->wire));
    return DDL_OK;
}

/* Set the call's wire format. `requested` 0 means the comm's format for sums. An all-gather is then
 * not packed, because its data may be parameters or indices. */
static void set_wire(const ddl_comm *comm, ddl__call *call, uint32_t requested)
{
    uint32_t wire = requested                      ? requested
                    : call->kind == DDL__ALLGATHER ? DDL_WIRE_F32
                                                   : comm->config.wire;
    call->wire = wire > DDL_WIRE_F32 && may_pack(call) ? (uint8_t)wire : 0;
}

static ddl_status submit_to_engine(ddl_comm *comm, const ddl__call *call, ddl_work **work)
{
    if (comm->times && !call->name && call->kind != DDL__SEND && call->kind != DDL__RECV)
        ddl__operation_times_next(comm->times);
    return ddl__engine_submit(comm->engine, call, work);
}

ddl_status ddl__submit_call(ddl_comm *comm, ddl__call *call, const ddl_options *own,
                            ddl_work **work)
{
    ddl_status status = check_scales(call, own);
    if (status == DDL_OK)
        status = check_residual(comm, call, own);
    if (status == DDL_OK)
        status = check_wire(comm, call, own);
    ddl__apply_options(call, own, comm->operation_timeout_ms);
    if (status == DDL_OK && own->memory == DDL_MEMORY_HOST) {
        set_wire(comm, call, own->wire);
        ddl__comm_warn_unpacked(comm, own->wire);
    }
    if (status == DDL_OK && own->memory == DDL_MEMORY_CUDA && !own->group) {
        status = ddl__submit_to_device(comm, call, own->stream, work);
        ddl__call_drop(call);
        return status;
    }
    if (status == DDL_OK && !own->group)
        return submit_to_engine(comm, call, work);
    if (status == DDL_OK)
        status = add_to_group(comm, call, own, work);
    if (status != DDL_OK)
        ddl__call_drop(call);
    return status;
}

ddl_status ddl__submit(ddl_comm *comm, ddl__call *call, const ddl__buffers *buffers,
                       const ddl_options *options, ddl_work **work)
{
    ddl_options own;
    ddl_status status = ddl__check_comm(comm);
    if (status == DDL_OK)
        status = check_call(comm, call);
    if (status == DDL_OK)
        status = take_buffers(comm, call, buffers);
    if (status == DDL_OK && !options) {
        call->timeout_ms = comm->operation_timeout_ms;
        set_wire(comm, call, 0);
        return submit_to_engine(comm, call, work);
    }
    if (status == DDL_OK)
        status = ddl__take_options(&own, options, work);
    if (status == DDL_OK)
        return ddl__submit_call(comm, call, &own, work);
    ddl__call_drop(call);
    return status;
}

/* ------------------------------------------------------------------------------- the operations */

ddl_status ddl_allreduce(ddl_comm *comm, const void *send, void *recv, int64_t count,
                         ddl_dtype dtype, ddl_op op, const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__ALLREDUCE, .dtype = dtype, .op = op, .count = count};
    return ddl__submit(comm, &call, &(ddl__buffers){send, recv, 1, 1}, options, work);
}

ddl_status ddl_reduce_scatter(ddl_comm *comm, const void *send, void *recv, int64_t count,
                              ddl_dtype dtype, ddl_op op, const ddl_options *options,
                              ddl_work **work)
{
    ddl__call call = {.kind = DDL__REDUCE_SCATTER, .dtype = dtype, .op = op, .count = count};
    return ddl__submit(comm, &call, &(ddl__buffers){send, recv, comm ? comm->size : 0, 1}, options,
                       work);
}

ddl_status ddl_allgather(ddl_comm *comm, const void *send, void *recv, int64_t count,
                         ddl_dtype dtype, const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__ALLGATHER, .dtype = dtype, .count = count};
    return ddl__submit(comm, &call, &(ddl__buffers){send, recv, 1, comm ? comm->size : 0}, options,
                       work);
}

ddl_status ddl_broadcast(ddl_comm *comm, void *buffer, int64_t count, ddl_dtype dtype, int root,
                         const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__BROADCAST, .dtype = dtype, .root = root, .count = count};
    return ddl__submit(comm, &call, &(ddl__buffers){NULL, buffer, 1, 1}, options, work);
}

/* Return true on the root. ddl__submit rejects comm NULL and an invalid root. */
static bool is_root(const ddl_comm *comm, int root)
{
    return comm && comm->rank == root;
}

ddl_status ddl_reduce(ddl_comm *comm, const void *send, void *recv, int64_t count, ddl_dtype dtype,
                      ddl_op op, int root, const ddl_options *options, ddl_work **work)
{
    ddl__call call = {
        .kind = DDL__REDUCE_TO_ROOT, .dtype = dtype, .op = op, .root = root, .count = count};
    return ddl__submit(comm, &call, &(ddl__buffers){send, recv, 1, is_root(comm, root)}, options,
                       work);
}

ddl_status ddl_gather(ddl_comm *comm, const void *send, void *recv, int64_t count, ddl_dtype dtype,
                      int root, const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__GATHER, .dtype = dtype, .root = root, .count = count};
    ddl__buffers buffers = {.send = send, .send_blocks = 1};
    if (is_root(comm, root)) {
        buffers.recv = recv;
        buffers.recv_blocks = comm->size;
    }
    return ddl__submit(comm, &call, &buffers, options, work);
}

ddl_status ddl_scatter(ddl_comm *comm, const void *send, void *recv, int64_t count, ddl_dtype dtype,
                       int root, const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__SCATTER, .dtype = dtype, .root = root, .count = count};
    ddl__buffers buffers = {.recv = recv, .recv_blocks = 1};
    if (is_root(comm, root)) {
        ddl__scatter_from(&buffers, send);
        buffers.send_blocks = comm->size;
    }
    return ddl__submit(comm, &call, &buffers, options, work);
}

ddl_status ddl_alltoall(ddl_comm *comm, const void *send, void *recv, int64_t count,
                        ddl_dtype dtype, const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__ALLTOALL, .dtype = dtype, .count = count};
    int64_t size = comm ? comm->size : 0;
    return ddl__submit(comm, &call, &(ddl__buffers){send, recv, size, size}, options, work);
}

ddl_status ddl_barrier(ddl_comm *comm, const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__BARRIER, .dtype = DDL_U8};
    return ddl__submit(comm, &call, &(ddl__buffers){NULL, NULL, 0, 0}, options, work);
}

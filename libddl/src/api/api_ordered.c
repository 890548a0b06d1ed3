/* SPDX-License-Identifier: Apache-2.0 */
/* The exported functions for ordered sums. */
#include <string.h>

#include "api/api_operations.h"
#include "api/check_object.h"
#include "base/dtype.h"

enum {
    /* The largest product of the number of ranks and the number of parts of one rank. A rank can
     * publish this many values of 16 bytes in all waves in flight together. */
    PARTS_TIMES_RANKS = 32 * 1024
};

static ddl_status check_order(const ddl_order *order)
{
    return ddl__check_object(order, "order", order && order->generation != ddl__generation());
}

ddl_status ddl_order_create(const int *owners, int workers, int ranks, ddl_order **order)
{
    if (!owners || !order)
        return ddl__fail(DDL_EINVAL, "%s is NULL", owners ? "order" : "owners");
    if (workers < 1 || workers > DDL__WORKERS_MAX)
        return ddl__fail(DDL_EINVAL, "workers is %d; must be from 1 to %d", workers,
                         DDL__WORKERS_MAX);
    if (ranks < 1)
        return ddl__fail(DDL_EINVAL, "ranks is %d; must be at least 1", ranks);
    for (int v = 0; v < workers; v++)
        if (owners[v] < 0 || owners[v] >= ranks)
            return ddl__fail(DDL_EINVAL, "owners[%d] is %d; must be from 0 to %d", v, owners[v],
                             ranks - 1);
    ddl_order *made = ddl__order_create(owners, workers, ranks);
    if (!made)
        return ddl__fail(DDL_ENOMEM, "out of memory for the order of %d workers", workers);
    *order = made;
    return DDL_OK;
}

ddl_status ddl_order_parts(const ddl_order *order, int rank, int *firsts, int *sizes, int capacity,
                           int *count)
{
    ddl_status status = check_order(order);
    if (status != DDL_OK)
        return status;
    if (rank < 0 || rank >= order->ranks)
        return ddl__fail(DDL_EINVAL, "rank is %d; must be from 0 to %d", rank, order->ranks - 1);
    if (!count || capacity < 0 || (capacity > 0 && (!firsts || !sizes)))
        return ddl__fail(DDL_EINVAL,
                         "firsts is %p, sizes is %p, capacity is %d and count is %p; give count, "
                         "and firsts and sizes unless capacity is 0",
                         (void *)firsts, (void *)sizes, capacity, (void *)count);
    ddl__order_part parts[order->most_parts];
    int n = ddl__order_parts(&order->by_rank, rank, parts, order->most_parts);
    for (int i = 0; i < n && i < capacity; i++) {
        firsts[i] = parts[i].first;
        sizes[i] = parts[i].size;
    }
    *count = n;
    return DDL_OK;
}

void ddl_order_destroy(ddl_order *order)
{
    if (order && order->generation == ddl__generation())
        ddl__order_release(order);
}

/* ------------------------------------------------------------------------------------ the sums */

static ddl_status check_type(ddl_dtype dtype, bool half)
{
    ddl__class class = ddl__dtype_class(dtype);
    if (class == DDL__NO_CLASS || !ddl__dtype_size(dtype))
        return ddl__fail(DDL_EINVAL, "dtype is %d; must be a value of ddl_dtype", (int)dtype);
    if (dtype == DDL_F8_E4M3 || dtype == DDL_F8_E5M2 || class == DDL__TRUTH)
        return ddl__fail(DDL_EUNSUPPORTED, "ordered sums of %s are not supported",
                         ddl__dtype_name(dtype));
    if (!half && (dtype == DDL_F16 || dtype == DDL_BF16))
        return ddl__fail(
            DDL_EUNSUPPORTED,
            "dtype is %s, whose parts are f32: convert the operands to f32, then add them",
            ddl__dtype_name(dtype));
    return DDL_OK;
}

static bool overlap(const void *a, const void *b, size_t bytes_a, size_t bytes_b)
{
    return (uintptr_t)a < (uintptr_t)b + bytes_b && (uintptr_t)b < (uintptr_t)a + bytes_a;
}

/* The lengths of a part and of the result, in elements. */
typedef struct call_lengths {
    int64_t part, result;
} call_lengths;

static ddl_status check_parts(const ddl__call *call, call_lengths lengths, const void *const *parts,
                              int n, const void *recv)
{
    size_t element = ddl__dtype_size(call->dtype), bytes = (size_t)lengths.result * element;
    size_t part_bytes = (size_t)lengths.part * element * call->wide;
    if (!part_bytes || !n)
        return DDL_OK;
    if (!parts)
        return ddl__fail(DDL_EINVAL, "parts is NULL, but this rank has %d parts", n);
    for (int k = 0; k < n; k++) {
        if (!parts[k])
            return ddl__fail(DDL_EINVAL, "parts[%d] is NULL, but this rank has %d parts", k, n);
        if (overlap(parts[k], recv, part_bytes, bytes))
            return ddl__fail(
                DDL_EINVAL,
                "parts[%d] and recv overlap: %zu bytes at %p, %zu bytes at %p; recv must not "
                "overlap the parts",
                k, part_bytes, parts[k], bytes, recv);
    }
    return DDL_OK;
}

static ddl_status check_call(ddl_comm *comm, const ddl__call *call, const ddl_order *order)
{
    ddl_status status = ddl__check_comm(comm);
    if (status == DDL_OK)
        status = check_order(order);
    if (status == DDL_OK)
        status = check_type(call->dtype, true);
    if (status == DDL_OK)
        status = ddl__check_elements(comm, call);
    if (status != DDL_OK)
        return status;
    if (call->op != DDL_SUM && call->op != DDL_AVERAGE)
        return ddl__fail(DDL_EUNSUPPORTED,
                         "op is %s; must be DDL_SUM or DDL_AVERAGE for an ordered sum",
                         ddl__op_name(call->op));
    if (order->ranks != comm->size)
        return ddl__fail(DDL_EINVAL, "the order is for %d ranks, but the comm has %d", order->ranks,
                         comm->size);
    if (order->most_parts > PARTS_TIMES_RANKS / comm->size)
        return ddl__fail(DDL_EUNSUPPORTED,
                         "a rank has %d parts; must have at most %d in a comm of %d ranks: assign "
                         "consecutive workers to each rank",
                         order->most_parts, PARTS_TIMES_RANKS / comm->size, comm->size);
    return DDL_OK;
}

/* Check and submit a call, unless `status` is already an error. Takes ownership of the call's
 * blocks. */
static ddl_status submit(ddl_status status, ddl_comm *comm, ddl__call call, ddl_order *order,
                         call_lengths lengths, const void *const *parts, void *recv,
                         const ddl_options *options, ddl_work **work)
{
    bool half = call.dtype == DDL_F16 || call.dtype == DDL_BF16; /* these types have parts in f32 */
    call.wide = half ? 2 : 1;
    if (status == DDL_OK)
        status = check_call(comm, &call, order);
    int n = status == DDL_OK ? order->parts[comm->rank] : 0;
    if (status == DDL_OK)
        status = check_parts(&call, lengths, parts, n, recv);
    if (status == DDL_OK && n > 1 && lengths.part) {
        size_t bytes = (size_t)n * sizeof *parts;
        if ((call.parts = malloc(bytes)))
            memcpy(call.parts, parts, bytes);
        else
            status = ddl__fail(DDL_ENOMEM, "out of memory for %d parts", n);
    }
    if (status != DDL_OK) {
        free(call.blocks);
        return status;
    }
    ddl__buffers buffers = {.recv = recv, .recv_blocks = 1};
    if (n && lengths.part) {
        buffers.send = parts[0];
        buffers.send_blocks =
            call.kind == DDL__ORDERED_ALLREDUCE ? call.wide : call.wide * comm->size;
    }
    call.order = ddl__order_retain(order);
    return ddl__submit(comm, &call, &buffers, options, work);
}

ddl_status ddl_allreduce_ordered(ddl_comm *comm, ddl_order *order, const void *const *parts,
                                 void *recv, int64_t count, ddl_dtype dtype, ddl_op op,
                                 const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__ORDERED_ALLREDUCE, .dtype = dtype, .op = op, .count = count};
    ddl_status status = check_order(order);
    if (status == DDL_OK)
        call.counts_digest = order->digest;
    return submit(status, comm, call, order, (call_lengths){count, count}, parts, recv, options,
                  work);
}

ddl_status ddl_reduce_scatter_ordered(ddl_comm *comm, ddl_order *order, const void *const *parts,
                                      void *recv, int64_t count, ddl_dtype dtype, ddl_op op,
                                      const ddl_options *options, ddl_work **work)
{
    ddl__call call = {
        .kind = DDL__ORDERED_REDUCE_SCATTER, .dtype = dtype, .op = op, .count = count};
    ddl_status status = ddl__check_comm(comm);
    if (status == DDL_OK)
        status = check_order(order);
    if (status == DDL_OK)
        status = ddl__check_elements(comm, &call);
    call_lengths lengths = {0};
    if (status == DDL_OK) {
        call.counts_digest = order->digest;
        lengths.part = count * comm->size;
        lengths.result = count;
    }
    return submit(status, comm, call, order, lengths, parts, recv, options, work);
}

ddl_status ddl_reduce_scatterv_ordered(ddl_comm *comm, ddl_order *order, const void *const *parts,
                                       void *recv, const int64_t *counts, ddl_dtype dtype,
                                       ddl_op op, const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__ORDERED_REDUCE_SCATTER, .dtype = dtype, .op = op};
    call_lengths lengths = {0};
    ddl_status status = ddl__check_comm(comm);
    if (status == DDL_OK)
        status = check_order(order);
    if (status == DDL_OK)
        status = ddl__read_scatter_blocks(comm, counts, dtype, &call.blocks);
    if (status == DDL_OK) {
        const ddl__share *last = &call.blocks[comm->size - 1];
        call.counts_digest = ddl__digest_of_counts(counts, comm->size, order->digest);
        lengths.part = last->start + last->count;
        lengths.result = counts[comm->rank];
    }
    return submit(status, comm, call, order, lengths, parts, recv, options, work);
}

ddl_status ddl_add(void *dst, const void *left, const void *right, int64_t count, ddl_dtype dtype)
{
    ddl_status status = check_type(dtype, false);
    if (status != DDL_OK)
        return status;
    if (count < 0 || count > DDL__COUNT_MAX)
        return ddl__fail(DDL_EINVAL, "count is %lld; must be from 0 to %lld", (long long)count,
                         (long long)DDL__COUNT_MAX);
    if (count && (!dst || !left || !right))
        return ddl__fail(DDL_EINVAL, "%s is NULL, but count is %lld",
                         !dst    ? "dst"
                         : !left ? "left"
                                 : "right",
                         (long long)count);
    size_t bytes = (size_t)count * ddl__dtype_size(dtype);
    const void *const operands[] = {left, right};
    for (int k = 0; k < 2; k++)
        if (dst != operands[k] && overlap(dst, operands[k], bytes, bytes))
            return ddl__fail(
                DDL_EINVAL,
                "dst and %s overlap: %zu bytes at %p and at %p; must be equal or disjoint",
                k ? "right" : "left", bytes, dst, operands[k]);
    ddl__order_add(dst, left, right, (size_t)count, dtype);
    return DDL_OK;
}

#include "api/submit.h"

#include <stdlib.h>

#include "api/check_object.h"
#include "api/take_struct.h"
#include "base/dtype.h"

/* From the first to the last element of all blocks. */
static ddl__share extent(const ddl__share *blocks, int n)
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
        return ddl__fail(DDL_EINVAL,
                         "send and recv overlap: %zu bytes at %p, %zu bytes at %p; in place means "
                         "send == recv or send NULL",
                         send_bytes, (void *)send, recv_bytes, (void *)recv);
    return DDL_OK;
}

/* Decide what is in place, and forget pointers that are to be ignored. */
static ddl_status take_buffers(const ddl_comm *comm, ddl__call *call, const ddl__buffers *b)
{
    ddl__share sent = {0, b->send_blocks * call->count};
    ddl__share received = {0, b->recv_blocks * call->count};
    if (call->blocks) {
        sent = extent(call->blocks, comm->size);
        received = extent(call->blocks + comm->size, comm->size);
    }
    call->send = !sent.count ? NULL : b->send ? b->send : b->recv;
    call->recv = received.count ? b->recv : NULL;
    if (sent.count && !call->send)
        return ddl__fail(DDL_EINVAL, "send is NULL, and recv is no buffer to send from");
    if (received.count && !b->recv)
        return ddl__fail(DDL_EINVAL, "recv is NULL, for %lld elements", (long long)received.count);
    if (sent.count && received.count && call->send != call->recv)
        return check_overlap(b, sent, received, ddl__dtype_size(call->dtype));
    return DDL_OK;
}

static ddl_status check_call(const ddl_comm *comm, const ddl__call *call)
{
    size_t element = ddl__dtype_size(call->dtype);
    if (call->count < 0)
        return ddl__fail(DDL_EINVAL, "count is %lld", (long long)call->count);
    if (!element)
        return ddl__fail(DDL_EINVAL, "dtype is %d, which is none", (int)call->dtype);
    if (call->count > DDL__COUNT_MAX ||
        call->count > DDL__BYTES_MAX / (int64_t)element / comm->size)
        return ddl__fail(DDL_EINVAL, "count is %lld, too large for %d ranks",
                         (long long)call->count, comm->size);
    bool reduces = call->kind == DDL__ALLREDUCE || call->kind == DDL__REDUCE_SCATTER ||
                   call->kind == DDL__REDUCE_TO_ROOT;
    if (reduces && (call->op < DDL_SUM || call->op > DDL_LOGICAL_OR))
        return ddl__fail(DDL_EINVAL, "op is %d, which is none", (int)call->op);
    if (call->root < 0 || call->root >= comm->size)
        return ddl__fail(DDL_EINVAL, "root is %d, size is %d", call->root, comm->size);
    return DDL_OK;
}

static ddl_status check(const ddl_comm *comm, ddl__call *call, const ddl__buffers *b,
                        const ddl_options *options, ddl_work **work)
{
    ddl_options own = {0};
    ddl_status status = ddl__check_comm(comm);
    if (status == DDL_OK)
        status = check_call(comm, call);
    if (status == DDL_OK)
        status = take_buffers(comm, call, b);
    if (status == DDL_OK && options)
        status = ddl__take_struct(&own, sizeof own, options, "ddl_options");
    if (status != DDL_OK)
        return status;
    if (own.memory != DDL_MEMORY_HOST)
        return ddl__fail(DDL_EUNSUPPORTED, "options.memory is %u: only host memory so far",
                         own.memory);
    if (own.timeout_ms < 0 || own.queued > 1)
        return ddl__fail(DDL_EINVAL, "options.timeout_ms is %lld, options.queued is %u",
                         (long long)own.timeout_ms, own.queued);
    if (own.queued && !work)
        return ddl__fail(DDL_EINVAL, "options.queued is 1, but work is NULL: a blocking call has "
                                     "nothing to report");
    call->timeout_ms = own.timeout_ms ? own.timeout_ms : comm->operation_timeout_ms;
    call->queued = own.queued;
    call->user = own.user;
    return DDL_OK;
}

ddl_status ddl__submit(ddl_comm *comm, ddl__call call, ddl__buffers b, const ddl_options *options,
                       ddl_work **work)
{
    ddl_status status = check(comm, &call, &b, options, work);
    if (status != DDL_OK) {
        free(call.blocks);
        return status;
    }
    return ddl__engine_submit(comm->engine, &call, work);
}
